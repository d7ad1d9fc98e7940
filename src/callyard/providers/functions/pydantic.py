"""Annotations that need pydantic for their schema and their check.

No other module imports pydantic. This one is imported only for signatures that need it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, NamedTuple, NotRequired, Required, Self, cast, get_origin

from pydantic import (
    AliasChoices,
    ConfigDict,
    Field,
    PydanticUserError,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
)
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticUndefined
from typing_extensions import TypedDict

from callyard.dispatch.call import Arguments
from callyard.model.spec import PublishError
from callyard.providers.functions.schema import make_validate
from callyard.providers.functions.signature import (
    REQUIRED,
    ArgumentSchema,
    Default,
    Factory,
    Fills,
    Parameter,
    to_json,
)

__all__ = ["pydantic_arguments", "pydantic_schema"]

_NOT_COPIED = frozenset(
    {
        "default",
        "default_factory",
        "init",
        "init_var",
        "kw_only",
        "repr",
        "frozen",
        "alias_priority",
        "validate_default",
    }
)
_UNSUPPORTED_FORMS: tuple[Any, ...] = (NotRequired, Required, ClassVar, Final, cast("Any", Self))
_SCHEMA_ERRORS = (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError, ValueError)


class _Untitled(GenerateJsonSchema):
    """Generates JSON Schema without titles that only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


def pydantic_arguments(what: str, parameters: tuple[Parameter, ...]) -> ArgumentSchema:
    """Return the schema and the validator of parameters.

    Raises:
        PublishError: An annotation cannot become a schema; the message names the parameter.
    """
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    keys: dict[str, str] = {}
    accepted: dict[str, tuple[str, ...]] = {}
    for parameter in parameters:
        if any(parameter.annotation is form or get_origin(parameter.annotation) is form for form in _UNSUPPORTED_FORMS):
            raise PublishError(f"{what} has the parameter '{parameter.name}', whose annotation cannot become a schema.")
        annotation, default, aliases = _split(parameter)
        accepted[parameter.name] = aliases or (parameter.name,)
        keys[parameter.name] = accepted[parameter.name][0]
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
    make_validate = partial(_make_validate, adapter)
    return ArgumentSchema(schema, make_validate, defaults, keys, accepted=accepted, form=input_form, to_input=to_input)


def _make_validate(adapter: TypeAdapter[Arguments], *, fail_fast: bool = False) -> Callable[..., Arguments]:
    if not fail_fast:
        return cast("Callable[..., Arguments]", adapter.validator.validate_json)
    return make_validate(cast("Mapping[str, Any]", adapter.core_schema), fail_fast=True)


def pydantic_schema(annotation: Any) -> dict[str, Any] | None:
    """Return the schema of a return annotation, or None if pydantic has none."""
    try:
        return _schema(TypeAdapter(annotation), "serialization")
    except _SCHEMA_ERRORS:
        return None


def _split(parameter: Parameter) -> tuple[Any, Any, tuple[str, ...]]:
    """Return the annotation, default and aliases of a parameter; a `Field` may be in the annotation or the default."""
    annotation: Any = parameter.annotation
    default = parameter.default
    fields = [extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, FieldInfo)]
    aliases = next((names for field in fields if (names := _aliases(field))), ())
    for field in fields:
        others = [extra for extra in annotation.__metadata__ if extra is not field]
        annotation = cast("Any", Annotated[(annotation.__origin__, *others, *_without_default(field))])
        default = _default_of(field) if default is REQUIRED else default
    if isinstance(default, FieldInfo):
        annotation = Annotated[(annotation, *_without_default(default))]
        return annotation, _default_of(default), _aliases(default) or aliases
    return annotation, default, aliases


def _aliases(field: FieldInfo) -> tuple[str, ...]:
    """Return the names that a field accepts instead of its own; the first one is published."""
    alias = field.validation_alias or field.alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return tuple(choice for choice in choices if isinstance(choice, str))


def _without_default(field: FieldInfo) -> list[Any]:
    parts = field.asdict()
    kept = {name: value for name, value in parts["attributes"].items() if value is not None and name not in _NOT_COPIED}
    return [*parts["metadata"], Field(**kept)]


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
            return PublishError(
                f"{what} has the parameter '{parameter.name}', whose annotation cannot become a schema: {why}."
            )
    return PublishError(f"{what} has a signature that cannot become a schema.")


class _Field(NamedTuple):
    name: str
    accepted: tuple[str, ...]
    """The names that it has in JSON, the published one first; none if its value comes from deeper in the JSON."""
    default: Default


def _fields_of(value: object) -> list[_Field] | None:
    kind = type(value)
    described: Mapping[str, FieldInfo] | None = getattr(kind, "__pydantic_fields__", None)
    if described is not None:
        config: Mapping[str, Any] = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", {})
        return [
            _Field(name, _accepted(field, name, config), "static" if field.default_factory is None else "generated")
            for name, field in described.items()
        ]
    if not dataclasses.is_dataclass(value):
        return None
    return [
        _Field(field.name, (field.name,), "static" if field.default_factory is dataclasses.MISSING else "generated")
        for field in dataclasses.fields(value)
        if field.init
    ]


def _accepted(field: FieldInfo, name: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    if config.get("validate_by_alias") is False or (field.validation_alias or field.alias) is None:
        return (name,)
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    return (*_aliases(field), name) if by_name else _aliases(field)


def input_form(given: Any, checked: object, fills: Fills) -> Any:
    """Return JSON that was checked under its published names, with the defaults of models filled in."""
    if isinstance(checked, RootModel):
        return input_form(given, cast("RootModel[Any]", checked).root, fills)
    fields = _fields_of(checked)
    if isinstance(given, dict) and fields is not None:
        return _model_form(cast("dict[str, Any]", given), checked, fields, fills)
    if isinstance(given, dict) and isinstance(checked, dict):
        members, values = cast("dict[str, Any]", given), cast("dict[str, Any]", checked)
        return {key: input_form(value, values.get(key), fills) for key, value in members.items()}
    if isinstance(given, list) and isinstance(checked, list | tuple):
        items, values = cast("list[Any]", given), cast("Sequence[object]", checked)
        if len(items) == len(values):
            return [input_form(item, value, fills) for item, value in zip(items, values, strict=True)]
    return cast("Any", given)


def _model_form(given: dict[str, Any], checked: object, fields: Sequence[_Field], fills: Fills) -> dict[str, Any]:
    found = dict(given)
    for field in fields:
        used = [name for name in field.accepted if name in given]
        for name in used:
            del found[name]
        if used:
            found[field.accepted[0]] = input_form(given[used[0]], getattr(checked, field.name), fills)
        elif field.accepted and field.default in fills:
            found[field.accepted[0]] = to_input(getattr(checked, field.name))
    return found


def to_input(value: object) -> Any:
    """Return a value as the JSON that is checked to such a value.

    Raises:
        TypeError: It cannot become JSON.
    """
    if isinstance(value, RootModel):
        value = cast("RootModel[Any]", value).root
    if isinstance(value, Secret | SecretStr | SecretBytes):
        value = cast("Secret[Any]", value).get_secret_value()
    if isinstance(value, bytes):
        value = value.decode()
    fields = _fields_of(value)
    if fields is not None:
        return {field.accepted[0]: to_input(getattr(value, field.name)) for field in fields if field.accepted}
    if isinstance(value, Mapping):
        return {to_json(key): to_input(inner) for key, inner in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_input(item) for item in cast("Sequence[object]", value)]
    return to_json(value)
