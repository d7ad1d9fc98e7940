"""Rich types: annotations that pydantic turns into a check and a schema.

This is the only module that imports pydantic, and it is itself imported only by signatures that need it.
"""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Annotated, Any, NotRequired, cast

from pydantic import ConfigDict, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import PydanticUndefined
from typing_extensions import TypedDict

from toolyard.call import Arguments
from toolyard.providers.functions.signature import REQUIRED, Parameter
from toolyard.spec import PublishError

__all__ = ["rich_arguments", "rich_schema"]

_CANNOT = (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError, ValueError)


class _Untitled(GenerateJsonSchema):
    """JSON Schema without the titles that only repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        """Give no field a title that its author did not."""
        return False


def rich_arguments(tool: str, parameters: tuple[Parameter, ...]) -> tuple[dict[str, Any], Callable[..., Arguments], dict[str, Any]]:
    """Return the schema, the check and the defaults of parameters.

    Raises:
        PublishError: An annotation cannot become a schema; the sentence names the parameter.
    """
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for parameter in parameters:
        annotation, default = _split(parameter)
        if default is not REQUIRED:
            defaults[parameter.name] = default
        fields[parameter.name] = annotation if default is REQUIRED else NotRequired[annotation]
    shape = TypedDict("Arguments", fields)  # pyright: ignore - the fields are not known before
    shape.__pydantic_config__ = ConfigDict(extra="forbid")  # pyright: ignore[reportAttributeAccessIssue] - pydantic's own way
    try:
        adapter = cast("TypeAdapter[Arguments]", TypeAdapter(shape))
        schema = _schema(adapter, "validation")
    except _CANNOT as error:
        raise _blame(tool, parameters) from error
    return schema, cast("Callable[..., Arguments]", adapter.validator.validate_json), defaults


def rich_schema(annotation: Any) -> dict[str, Any] | None:
    """Return the schema of what a function returns, or nothing if pydantic cannot say."""
    try:
        return _schema(TypeAdapter(annotation), "serialization")
    except _CANNOT:
        return None


def _split(parameter: Parameter) -> tuple[Any, Any]:
    """Return the annotation and the default of a parameter, whose `Field` may stand in either's place."""
    if isinstance(parameter.default, FieldInfo):
        return _without_default(parameter.annotation, parameter.default)
    for extra in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(extra, FieldInfo) and _default_of(extra) is not REQUIRED:
            kept = [other for other in parameter.annotation.__metadata__ if other is not extra]
            inner, default = _without_default(parameter.annotation.__origin__, extra)
            annotation = Annotated[(inner, *kept)] if kept else inner
            return annotation, default if parameter.default is REQUIRED else parameter.default
    return parameter.annotation, parameter.default


def _without_default(annotation: Any, field: FieldInfo) -> tuple[Any, Any]:
    bare = copy(field)
    bare.default = PydanticUndefined
    bare.default_factory = None
    return Annotated[annotation, bare], _default_of(field)


def _default_of(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True, validated_data={})
    return REQUIRED if default is PydanticUndefined or default is ... else default


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


def _blame(tool: str, parameters: tuple[Parameter, ...]) -> PublishError:
    """Return the error that names the parameter at fault."""
    for parameter in parameters:
        try:
            TypeAdapter(_split(parameter)[0]).json_schema()
        except _CANNOT as error:
            why = str(error).splitlines()[0].rstrip(".")
            return PublishError(f"Tool '{tool}' has the parameter '{parameter.name}', whose annotation cannot become a schema: {why}.")
    return PublishError(f"Tool '{tool}' has a signature that cannot become a schema.")
