"""Rich types: annotations that pydantic turns into a check and a schema.

This is the only module that imports pydantic, and it is itself imported only by signatures that need it.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, NotRequired, Required, Self, cast, get_origin

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticUndefined
from typing_extensions import TypedDict

from toolyard.dispatch.call import Arguments
from toolyard.model.spec import PublishError
from toolyard.providers.functions.signature import REQUIRED, Built, Factory, Parameter

__all__ = ["rich_arguments", "rich_schema"]

_NO_FIELD = frozenset({"default", "default_factory", "init", "init_var", "kw_only", "repr", "frozen", "alias_priority", "validate_default"})
_NO_ANNOTATION: tuple[Any, ...] = (NotRequired, Required, ClassVar, Final, cast("Any", Self))
_CANNOT = (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError, ValueError)


class _Untitled(GenerateJsonSchema):
    """JSON Schema without the titles that only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Give no field a title that its author did not."""
        return False


def rich_arguments(what: str, parameters: tuple[Parameter, ...]) -> Built:
    """Return what parameters become.

    Raises:
        PublishError: An annotation cannot become a schema; the sentence names the parameter.
    """
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for parameter in parameters:
        if any(parameter.annotation is form or get_origin(parameter.annotation) is form for form in _NO_ANNOTATION):
            raise PublishError(f"{what} has the parameter '{parameter.name}', whose annotation cannot become a schema.")
        annotation, default, alias = _split(parameter)
        keys[parameter.name] = alias or parameter.name
        if default is not REQUIRED:
            defaults[parameter.name] = default
        fields[parameter.name] = annotation if default is REQUIRED else NotRequired[annotation]
    try:
        shape = TypedDict("Arguments", fields)  # pyright: ignore - the fields are not known before
        shape.__pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)  # pyright: ignore[reportAttributeAccessIssue] - pydantic's own way
        adapter = cast("TypeAdapter[Arguments]", TypeAdapter(shape))
        schema = _schema(adapter, "validation")
    except _CANNOT as error:
        raise _blame(what, parameters) from error
    return Built(schema, lambda: cast("Callable[..., Arguments]", adapter.validator.validate_json), defaults, keys)


def rich_schema(annotation: Any) -> dict[str, Any] | None:
    """Return the schema of what a function returns, or nothing if pydantic cannot say."""
    try:
        return _schema(TypeAdapter(annotation), "serialization")
    except _CANNOT:
        return None


def _split(parameter: Parameter) -> tuple[Any, Any, str | None]:
    """Return the annotation, the default and the alias of a parameter; a `Field` may stand in the place of either of the first."""
    annotation: Any = parameter.annotation
    default = parameter.default
    given = [extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, FieldInfo)]
    alias = next((name for field in given if (name := _alias_of(field))), None)
    for field in given:
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
    """Return what a field says of a value, without what stands for the value when there is none."""
    known = field.asdict()
    said = {name: value for name, value in known["attributes"].items() if value is not None and name not in _NO_FIELD}
    return [*known["metadata"], Field(**said)]


def _default_of(field: FieldInfo) -> Any:
    if field.default_factory is not None:
        return Factory(lambda: field.get_default(call_default_factory=True, validated_data={}))
    return REQUIRED if field.default is PydanticUndefined or field.default is ... else field.default


def _schema(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> dict[str, Any]:
    schema = adapter.json_schema(schema_generator=_Untitled, mode=mode)
    _untitle(schema)
    return schema


def _untitle(schema: dict[str, Any]) -> None:
    """Take the names of models out, which are in `$defs` anyway."""
    schema.pop("title", None)
    for name, inner in cast("Mapping[str, dict[str, Any]]", schema.get("$defs", {})).items():
        if inner.get("title") == name:
            del inner["title"]


def _blame(what: str, parameters: tuple[Parameter, ...]) -> PublishError:
    """Return the error that names the parameter at fault."""
    for parameter in parameters:
        try:
            TypeAdapter(_split(parameter)[0]).json_schema()
        except _CANNOT as error:
            why = str(error).splitlines()[0].rstrip(".")
            return PublishError(f"{what} has the parameter '{parameter.name}', whose annotation cannot become a schema: {why}.")
    return PublishError(f"{what} has a signature that cannot become a schema.")
