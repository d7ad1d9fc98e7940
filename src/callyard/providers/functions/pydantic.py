"""Annotations that need pydantic for their schema and their check.

No other module imports pydantic. This one is imported only for signatures that need it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, NotRequired, Required, Self, cast, get_origin

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticUndefined
from typing_extensions import TypedDict

from callyard.dispatch.call import Arguments
from callyard.model.spec import PublishError
from callyard.providers.functions.schema import make_validate
from callyard.providers.functions.signature import REQUIRED, ArgumentSchema, Errors, Factory, Parameter

__all__ = ["pydantic_arguments", "pydantic_schema"]

_NOT_COPIED = frozenset(
    {"default", "default_factory", "init", "init_var", "kw_only", "repr", "frozen", "alias_priority", "validate_default"}
)
_UNSUPPORTED_FORMS: tuple[Any, ...] = (NotRequired, Required, ClassVar, Final, cast("Any", Self))
_SCHEMA_ERRORS = (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError, ValueError)


class _Untitled(GenerateJsonSchema):
    """Generates JSON Schema without titles that only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Return False: a field has only the title that its author wrote."""
        return False


def pydantic_arguments(what: str, parameters: tuple[Parameter, ...]) -> ArgumentSchema:
    """Return the schema and the validator of parameters.

    Raises:
        PublishError: An annotation cannot become a schema; the message names the parameter.
    """
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for parameter in parameters:
        if any(parameter.annotation is form or get_origin(parameter.annotation) is form for form in _UNSUPPORTED_FORMS):
            raise PublishError(f"{what} has the parameter '{parameter.name}', whose annotation cannot become a schema.")
        annotation, default, alias = _split(parameter)
        keys[parameter.name] = alias or parameter.name
        if default is not REQUIRED:
            defaults[parameter.name] = default
        fields[parameter.name] = annotation if default is REQUIRED else NotRequired[annotation]
    try:
        shape = TypedDict("Arguments", fields)  # pyright: ignore - the fields are computed
        shape.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)  # pyright: ignore[reportAttributeAccessIssue] - how pydantic configures a TypedDict
        adapter = cast("TypeAdapter[Arguments]", TypeAdapter(shape))
        schema = _schema(adapter, "validation")
    except _SCHEMA_ERRORS as error:
        raise _schema_error(what, parameters) from error
    return ArgumentSchema(schema, partial(_make_validate, adapter), defaults, keys)


def _make_validate(adapter: TypeAdapter[Arguments], *, errors: Errors = "all") -> Callable[..., Arguments]:
    if errors == "all":
        return cast("Callable[..., Arguments]", adapter.validator.validate_json)
    return make_validate(cast("Mapping[str, Any]", adapter.core_schema), errors=errors)


def pydantic_schema(annotation: Any) -> dict[str, Any] | None:
    """Return the schema of a return annotation, or None if pydantic has none."""
    try:
        return _schema(TypeAdapter(annotation), "serialization")
    except _SCHEMA_ERRORS:
        return None


def _split(parameter: Parameter) -> tuple[Any, Any, str | None]:
    """Return the annotation, the default and the alias of a parameter; a `Field` may be in the annotation or the default."""
    annotation: Any = parameter.annotation
    default = parameter.default
    fields = [extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, FieldInfo)]
    alias = next((name for field in fields if (name := _alias_of(field))), None)
    for field in fields:
        others = [extra for extra in annotation.__metadata__ if extra is not field]
        annotation = cast("Any", Annotated[(annotation.__origin__, *others, *_without_default(field))])
        default = _default_of(field) if default is REQUIRED else default
    if isinstance(default, FieldInfo):
        annotation = Annotated[(annotation, *_without_default(default))]
        return annotation, _default_of(default), _alias_of(default) or alias
    return annotation, default, alias


def _alias_of(field: FieldInfo) -> str | None:
    return field.validation_alias if isinstance(field.validation_alias, str) else field.alias


def _without_default(field: FieldInfo) -> list[Any]:
    """Return the constraints of a field, without its default."""
    parts = field.asdict()
    attributes = {name: value for name, value in parts["attributes"].items() if value is not None and name not in _NOT_COPIED}
    return [*parts["metadata"], Field(**attributes)]


def _default_of(field: FieldInfo) -> Any:
    if field.default_factory is not None:
        return Factory(lambda: field.get_default(call_default_factory=True, validated_data={}))
    return REQUIRED if field.default is PydanticUndefined or field.default is ... else field.default


def _schema(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> dict[str, Any]:
    schema = adapter.json_schema(schema_generator=_Untitled, mode=mode)
    _remove_titles(schema)
    return schema


def _remove_titles(schema: dict[str, Any]) -> None:
    """Remove the titles that repeat the names of models, which are the keys of `$defs`."""
    schema.pop("title", None)
    for name, inner in cast("Mapping[str, dict[str, Any]]", schema.get("$defs", {})).items():
        if inner.get("title") == name:
            del inner["title"]


def _schema_error(what: str, parameters: tuple[Parameter, ...]) -> PublishError:
    """Return the error of the first parameter that has no schema."""
    for parameter in parameters:
        try:
            TypeAdapter(_split(parameter)[0]).json_schema()
        except _SCHEMA_ERRORS as error:
            why = str(error).splitlines()[0].rstrip(".")
            return PublishError(f"{what} has the parameter '{parameter.name}', whose annotation cannot become a schema: {why}.")
    return PublishError(f"{what} has a signature that cannot become a schema.")
