"""Arguments of a function: their schema and their check, from its signature.

Arguments are JSON, whatever the door: they are checked strictly as JSON text, so that a date is a string everywhere.
"""

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Union, cast, get_args, get_origin

import msgspec

from toolyard.dispatch.call import Arguments
from toolyard.dispatch.tool import Check, InvalidArgumentsError
from toolyard.model.content import Audio, Blob, Block, Embedded, Image, ResourceLink, Text
from toolyard.model.envelope import Envelope, encode
from toolyard.model.schema import (
    EXTRA,
    ISSUES,
    Issue,
    Path,
    Schema,
    SchemaValidator,
    field_name,
    inlined,
    plainly_fits,
    subschema,
    unexpected,
)
from toolyard.model.spec import PublishError
from toolyard.providers.functions.signature import REQUIRED, Built, Factory, Parameter

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, ErrorDetails, ValidationError  # who has an issue has loaded it

__all__ = ["Plain", "Promised", "Taken", "arguments_of", "issues_of", "output_of", "plain"]


_EXTRA = frozenset({EXTRA, "unexpected_keyword_argument"})


def issues_of(error: "ValidationError", schema: Schema, arguments: object) -> list[Issue]:
    """Return every issue, one for each field; where several types were tried, what each of them wanted."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for fault in error.errors(include_url=False, include_input=False):
        names_a_field = fault["type"] == "missing" or fault["type"] in _EXTRA
        path = _path(fault["loc"], arguments, names_a_field=names_a_field)
        if len(by_path) == ISSUES and path not in by_path:
            break
        by_path.setdefault(path, []).append(fault)
    return [_issue(path, faults, schema) for path, faults in by_path.items()]


def _issue(path: Path, faults: "list[ErrorDetails]", schema: Schema) -> Issue:
    field = field_name(path)
    code = faults[0]["type"] if len(faults) == 1 else "union"
    if code in _EXTRA:
        parent = cast("dict[str, Any]", subschema(schema, path[:-1]) or {})
        return unexpected(path, list(parent.get("properties", {})))
    expected = inlined(schema, subschema(schema, path))
    if code == "missing":
        return Issue(field, code, f"'{field}' is required.", expected)
    wanted = " or ".join(dict.fromkeys(_wanted(fault["msg"]) for fault in faults))
    return Issue(field, code, f"'{field}' {wanted}.", expected)


def _wanted(message: str) -> str:
    for opening in ("Input should ", "Value error, ", "Assertion failed, "):
        if message.startswith(opening):
            rest = message.removeprefix(opening)
            return f"should {rest}" if opening == "Input should " else rest
    return f"is wrong: {message[:1].lower()}{message[1:]}"


def _path(location: Sequence[str | int], value: object, *, names_a_field: bool) -> Path:
    """Return the way to the value that is wrong, without the types that pydantic tried on the way.

    Only where a field is missing or not known does the last part name something that is not there, or not a part of the schema.
    """
    path: list[str | int] = []
    for number, part in enumerate(location):
        last = number == len(location) - 1
        if isinstance(value, dict):
            pairs = cast("dict[str, object]", value)
            if part in pairs:
                path.append(part)
                value = pairs[part]
            elif last and names_a_field:
                path.append(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(cast("list[object]", value)):
            path.append(part)
            value = cast("list[object]", value)[part]
    return tuple(path)


class Plain(NamedTuple):
    """One annotation, as pydantic-core checks it and as JSON Schema says it."""

    core: dict[str, Any]
    schema: dict[str, Any]


_SCALARS: Final[dict[object, Callable[[], Plain]]] = {
    str: lambda: Plain({"type": "str"}, {"type": "string"}),
    int: lambda: Plain({"type": "int"}, {"type": "integer"}),
    float: lambda: Plain({"type": "float", "allow_inf_nan": False}, {"type": "number"}),
    bool: lambda: Plain({"type": "bool"}, {"type": "boolean"}),
    type(None): lambda: Plain({"type": "none"}, {"type": "null"}),
    None: lambda: Plain({"type": "none"}, {"type": "null"}),
    Any: lambda: Plain({"type": "any"}, {}),
    object: lambda: Plain({"type": "any"}, {}),
    list: lambda: Plain({"type": "list"}, {"items": {}, "type": "array"}),
    dict: lambda: Plain({"type": "dict"}, {"additionalProperties": True, "type": "object"}),
}


def plain(annotation: object) -> Plain | None:
    """Return the check and the schema of a plain annotation, or nothing if it is not plain."""
    try:
        scalar = _SCALARS.get(annotation)
    except TypeError:  # an annotation that cannot be hashed is not plain
        return None
    return scalar() if scalar is not None else _compound(get_origin(annotation), get_args(annotation))


def _compound(origin: Any, arguments: tuple[Any, ...]) -> Plain | None:
    if not arguments:  # the bare names of lists and dictionaries in `typing`
        return _SCALARS[origin]() if origin in {list, dict} else None
    if origin is list:
        return _list(plain(arguments[0]))
    if origin is dict and arguments[0] is str:
        return _dict(plain(arguments[1]))
    if origin in {Union, types.UnionType}:
        return _union([plain(argument) for argument in arguments])
    return _literal(arguments) if origin is Literal and all(type(argument) is str for argument in arguments) else None


def _list(item: Plain | None) -> Plain | None:
    return item and Plain({"type": "list", "items_schema": item.core}, {"items": item.schema, "type": "array"})


def _dict(value: Plain | None) -> Plain | None:
    if value is None:
        return None
    schema = {"additionalProperties": value.schema or True, "type": "object"}
    return Plain({"type": "dict", "keys_schema": {"type": "str"}, "values_schema": value.core}, schema)


def _union(choices: list[Plain | None]) -> Plain | None:
    given = [choice for choice in choices if choice is not None]
    if len(given) < len(choices) or any(not choice.schema for choice in given):
        return None
    others = [choice for choice in given if choice.schema != {"type": "null"}]
    core = others[0].core if len(others) == 1 else {"type": "union", "choices": [choice.core for choice in others]}
    if len(others) < len(given):
        core = {"type": "nullable", "schema": core}
        others.append(Plain({"type": "none"}, {"type": "null"}))
    return Plain(core, {"anyOf": [choice.schema for choice in others]})


def _literal(values: tuple[str, ...]) -> Plain:
    named = {"const": values[0]} if len(values) == 1 else {"enum": list(values)}
    return Plain({"type": "literal", "expected": list(values)}, {**named, "type": "string"})


Validate = Callable[..., Arguments]
_IMMUTABLE: Final = (str, int, float, bool, bytes, type(None), Enum)
_SESSION_ID: Final = Parameter("session_id", str | None, None)
_SESSION_TEXT: Final = "The session to use; may be left out when there is only one."


class Taken(NamedTuple):
    """What a function takes: as JSON Schema, and as a check."""

    schema: dict[str, Any]
    check: Check


def arguments_of(what: str, parameters: tuple[Parameter, ...], texts: Mapping[str, str], *, session: bool) -> Taken:
    """Return the schema and the check of a function's arguments.

    Raises:
        PublishError: An annotation cannot become a schema, or a default does not fit it.
    """
    if session and all(parameter.name != _SESSION_ID.name for parameter in parameters):
        parameters = (*parameters, _SESSION_ID)
        texts = {_SESSION_ID.name: _SESSION_TEXT, **texts}
    plains = [plain(parameter.annotation) for parameter in parameters]
    if all(plains) and not any(_is_field(parameter.default) for parameter in parameters):
        built = _light(parameters, cast("list[Plain]", plains))
    else:
        # pydantic costs as much to import as the rest of a small yard, so only signatures that need it pay for it
        from toolyard.providers.functions.pydantic import rich_arguments  # noqa: PLC0415 - as said above

        built = rich_arguments(what, parameters)
    for name, key in built.keys.items():
        if texts.get(name):
            built.schema["properties"][key].setdefault("description", texts[name])
    _fill_defaults(what, built)
    return Taken(built.schema, _checking(built))


def _is_field(default: object) -> bool:
    return type(default).__name__ == "FieldInfo"


def _light(parameters: tuple[Parameter, ...], plains: list[Plain]) -> Built:
    fields: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter, known in zip(parameters, plains, strict=True):
        needed = parameter.default is REQUIRED
        fields[parameter.name] = {"type": "typed-dict-field", "schema": known.core, "required": needed}
        properties[parameter.name] = dict(known.schema)
        if needed:
            required.append(parameter.name)
    schema = _object(properties, required)
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not REQUIRED}
    return Built(schema, partial(_validator_of, fields), defaults, {name: name for name in properties}, is_plain=True)


def _validator_of(fields: dict[str, Any]) -> Validate:
    from pydantic_core import SchemaValidator  # noqa: PLC0415 - dear to load, and no list of tools needs it

    core = {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}
    return cast("Validate", SchemaValidator(cast("CoreSchema", core)).validate_json)


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return schema


def _fill_defaults(what: str, built: Built) -> None:
    """Write the defaults into the schema, having checked that each fits."""
    for name, default in built.defaults.items():
        if isinstance(default, Factory):
            continue
        key = built.keys[name]
        try:
            text = encode({key: default})
        except TypeError as error:
            raise PublishError(f"{what} has a default for '{name}' that cannot be written as JSON.") from error
        told = msgspec.json.decode(text)[key]
        property_schema = built.schema["properties"][key]
        if not (built.is_plain and plainly_fits(property_schema, told)):
            _check_default(what, name, built, text)
        if default is not None:
            property_schema["default"] = told


def _check_default(what: str, name: str, built: Built, text: bytes) -> None:
    try:
        built.make_validate()(text, strict=True)
    except ValueError as error:
        faults = cast("ValidationError", error).errors(include_url=False)
        if any(str(fault["loc"][0]) == built.keys[name] for fault in faults if fault["loc"]):
            raise PublishError(f"{what} has a default for '{name}' that does not fit its annotation.") from error


def _checking(built: Built) -> Check:
    schema, defaults = built.schema, built.defaults
    validate: Validate | None = None
    made_anew = {name: _maker(default) for name, default in defaults.items() if not isinstance(default, _IMMUTABLE)}

    def check(text: bytes) -> Arguments:
        nonlocal validate
        if validate is None:
            validate = built.make_validate()
        try:
            checked = validate(text, strict=True)
        except ValueError as error:
            raise InvalidArgumentsError(issues_of(cast("ValidationError", error), schema, _seen(text))) from None
        if not defaults:
            return checked
        fresh = {name: make() for name, make in made_anew.items() if name not in checked}
        return {**defaults, **fresh, **checked}

    return check


def _seen(text: bytes) -> object:
    """Return arguments that are wrong as plain data, even with a number in them that none can be."""
    import json  # noqa: PLC0415 - what is right is read without it

    try:
        return json.loads(text)
    except ValueError:
        return None  # an integer of some thousand digits


def _maker(default: object) -> Callable[[], object]:
    return default.make if isinstance(default, Factory) else partial(deepcopy, default)


_NO_SCHEMA: Final = frozenset({Envelope, Block, Image, Audio, Blob, Embedded, ResourceLink, Text, bytes, bytearray, memoryview})
_EXACT: Final = (str, int, bool)
_ANYTHING: Final = (Any, object)
_NEVER: Final = (typing.NoReturn, typing.Never)


class Promised(NamedTuple):
    """What a function returns: as JSON Schema, as a check, and whether nothing is an answer, too."""

    schema: dict[str, Any] | None
    fits: Callable[[object], bool] | None
    may_be_none: bool


def output_of(what: str, annotation: Any) -> Promised:
    """Return what a return annotation promises.

    Raises:
        PublishError: It cannot become a schema.
    """
    if annotation is REQUIRED or annotation in _NEVER:
        return Promised(None, None, may_be_none=False)
    if any(annotation is anything for anything in _ANYTHING):
        return Promised(None, None, may_be_none=True)
    parts = _parts(annotation)
    may_be_none = any(part is None or part is type(None) for part in parts)
    if any(isinstance(part, type) and part in _NO_SCHEMA for part in parts):
        return Promised(None, None, may_be_none)
    schema = _schema(what, annotation)
    fits = SchemaValidator(schema).fits
    return Promised(schema, _quickly(annotation, fits) if annotation in _EXACT else fits, may_be_none)


def _quickly(kind: type, fits: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the same check, which asks the schema only where the type does not say it all."""
    return lambda value: type(value) is kind or fits(value)


def _parts(annotation: Any) -> list[Any]:
    """Return the types that a union or a container is made of, so that a block in one is seen."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return _parts(get_args(annotation)[0])
    if origin in {typing.Union, types.UnionType}:
        return [part for argument in get_args(annotation) for part in _parts(argument)]
    if origin in {list, tuple, dict}:
        return [annotation, *(part for argument in get_args(annotation) for part in _parts(argument) if part is not type(None))]
    return [annotation]


def _schema(what: str, annotation: Any) -> dict[str, Any]:
    known = plain(annotation)
    if known is not None:
        return known.schema
    from toolyard.providers.functions.pydantic import rich_schema  # noqa: PLC0415 - as in arguments: pydantic only where needed

    schema = rich_schema(annotation)
    if schema is not None:
        return schema
    try:
        return msgspec.json.schema(annotation)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PublishError(f"{what} has a return annotation that cannot become a schema.") from error
