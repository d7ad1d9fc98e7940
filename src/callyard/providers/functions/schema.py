"""Input and output of a function: JSON Schemas and checks, made from its signature.

Arguments are checked strictly as JSON text, whatever the channel, so that a date is a string everywhere.
"""

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec

from callyard._internal.lazy import PausedCollection
from callyard.dispatch.call import Arguments
from callyard.dispatch.tool import Check, InvalidArgumentsError, has_more_commas
from callyard.model.content import Audio, Blob, Block, Embedded, Image, ResourceLink, Text
from callyard.model.envelope import Envelope, encode
from callyard.model.schema import (
    EXTRA,
    MAX_ISSUES,
    ROOT,
    Issue,
    Path,
    Schema,
    SchemaValidator,
    field_name,
    inline_references,
    subschema,
    unknown_field_issue,
)
from callyard.model.simple_schema import fits_simple_schema
from callyard.model.spec import PublishError
from callyard.providers.functions.signature import REQUIRED, ArgumentSchema, Errors, Factory, Parameter

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, ErrorDetails, ValidationError  # loaded when the first check runs

__all__ = ["Input", "Output", "SimpleType", "input_of", "issues_of", "make_validate", "output_of", "simple_type"]


_EXTRA = frozenset({EXTRA, "unexpected_keyword_argument"})


def issues_of(error: "ValidationError", schema: Schema, arguments: object) -> list[Issue]:
    """Return one issue for each invalid field; for a union it has the message of every type."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for fault in error.errors(include_url=False, include_input=False):
        names_a_field = fault["type"] == "missing" or fault["type"] in _EXTRA
        path = _path(fault["loc"], arguments, names_a_field=names_a_field)
        if len(by_path) == MAX_ISSUES and path not in by_path:
            break
        by_path.setdefault(path, []).append(fault)
    return [_issue(path, faults, schema) for path, faults in by_path.items()]


def _issue(path: Path, faults: "list[ErrorDetails]", schema: Schema) -> Issue:
    field = field_name(path)
    code = faults[0]["type"] if len(faults) == 1 else "union"
    if code in _EXTRA:
        parent = cast("dict[str, Any]", subschema(schema, path[:-1]) or {})
        return unknown_field_issue(path, list(parent.get("properties", {})))
    expected = inline_references(schema, subschema(schema, path))
    if code == "missing":
        return Issue(field, code, f"'{field}' is required.", expected)
    text = " or ".join(dict.fromkeys(_predicate(fault["msg"]) for fault in faults))
    return Issue(field, code, f"'{field}' {text}.", expected)


def _predicate(message: str) -> str:
    for opening in ("Input should ", "Value error, ", "Assertion failed, "):
        if message.startswith(opening):
            rest = message.removeprefix(opening)
            return f"should {rest}" if opening == "Input should " else rest
    return f"is wrong: {message[:1].lower()}{message[1:]}"


def _path(location: Sequence[str | int], value: object, *, names_a_field: bool) -> Path:
    """Return the path of the invalid value, without the union members that pydantic puts into a location.

    With `names_a_field` the last part is a field that is missing or unknown, so it is not in the value.
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


class SimpleType(msgspec.Struct, frozen=True):
    """One annotation as a schema of pydantic-core and as a JSON Schema."""

    core: dict[str, Any]
    schema: dict[str, Any]


_SCALARS: Final[dict[object, Callable[[], SimpleType]]] = {
    str: lambda: SimpleType({"type": "str"}, {"type": "string"}),
    int: lambda: SimpleType({"type": "int"}, {"type": "integer"}),
    float: lambda: SimpleType({"type": "float", "allow_inf_nan": False}, {"type": "number"}),
    bool: lambda: SimpleType({"type": "bool"}, {"type": "boolean"}),
    type(None): lambda: SimpleType({"type": "none"}, {"type": "null"}),
    None: lambda: SimpleType({"type": "none"}, {"type": "null"}),
    Any: lambda: SimpleType({"type": "any"}, {}),
    object: lambda: SimpleType({"type": "any"}, {}),
    list: lambda: SimpleType({"type": "list"}, {"items": {}, "type": "array"}),
    dict: lambda: SimpleType({"type": "dict"}, {"additionalProperties": True, "type": "object"}),
}


def simple_type(annotation: object) -> SimpleType | None:
    """Return the schemas of an annotation made of scalars, lists, dictionaries, unions and literals, or None."""
    try:
        scalar = _SCALARS.get(annotation)
    except TypeError:  # an annotation that cannot be hashed is not simple
        return None
    return scalar() if scalar is not None else _compound(get_origin(annotation), get_args(annotation))


def _compound(origin: Any, arguments: tuple[Any, ...]) -> SimpleType | None:
    if not arguments:  # `typing.List` and `typing.Dict`
        return _SCALARS[origin]() if origin in {list, dict} else None
    if origin is list:
        return _list(simple_type(arguments[0]))
    if origin is dict and arguments[0] is str:
        return _dict(simple_type(arguments[1]))
    if origin in {Union, types.UnionType}:
        return _union([simple_type(argument) for argument in arguments])
    return _literal(arguments) if origin is Literal and all(type(argument) is str for argument in arguments) else None


def _list(item: SimpleType | None) -> SimpleType | None:
    return item and SimpleType({"type": "list", "items_schema": item.core}, {"items": item.schema, "type": "array"})


def _dict(value: SimpleType | None) -> SimpleType | None:
    if value is None:
        return None
    schema = {"additionalProperties": value.schema or True, "type": "object"}
    return SimpleType({"type": "dict", "keys_schema": {"type": "str"}, "values_schema": value.core}, schema)


def _union(choices: list[SimpleType | None]) -> SimpleType | None:
    simple = [choice for choice in choices if choice is not None]
    if len(simple) < len(choices) or any(not choice.schema for choice in simple):
        return None
    others = [choice for choice in simple if choice.schema != {"type": "null"}]
    core = others[0].core if len(others) == 1 else {"type": "union", "choices": [choice.core for choice in others]}
    if len(others) < len(simple):
        core = {"type": "nullable", "schema": core}
        others.append(SimpleType({"type": "none"}, {"type": "null"}))
    return SimpleType(core, {"anyOf": [choice.schema for choice in others]})


def _literal(values: tuple[str, ...]) -> SimpleType:
    allowed = {"const": values[0]} if len(values) == 1 else {"enum": list(values)}
    return SimpleType({"type": "literal", "expected": list(values)}, {**allowed, "type": "string"})


Validate = Callable[..., Arguments]
_LARGE_BYTES: Final = 8 * 1024
_MANY_VALUES: Final = 1000
_MAX_ERRORS: Final = 1000
_MAX_COPIED: Final = 200_000
"""Most values that the errors of pydantic copy: 50 milliseconds."""
_MAX_EXPLAINED: Final = 200_000
"""Most commas of arguments in which pydantic looks for the place that does not fit: 0.1 seconds."""
_ONE: Final = "invalid"
_REPEATING: Final = frozenset({"list", "set", "frozenset", "tuple", "dict"})
_UNIONS: Final = frozenset({"union", "tagged-union"})
_NO_SCHEMAS: Final = frozenset({"metadata", "default", "expected", "members", "config", "cls", "function", "serialization", "ref", "type"})
"""Keys of a schema of pydantic-core whose values contain no schemas."""
_IMMUTABLE: Final = (str, int, float, bool, bytes, type(None), Enum)
_SESSION_ID: Final = Parameter("session_id", str | None, None)
_SESSION_DESCRIPTION: Final = "The session to use; may be left out when there is only one."


class Input(msgspec.Struct, frozen=True):
    """JSON Schema and check of a function's arguments."""

    schema: dict[str, Any]
    check: Check


def input_of(what: str, parameters: tuple[Parameter, ...], descriptions: Mapping[str, str], *, session: bool) -> Input:
    """Return the schema and the check of a function's arguments.

    Raises:
        PublishError: An annotation cannot become a schema, or a default does not fit it.
    """
    if session and all(parameter.name != _SESSION_ID.name for parameter in parameters):
        parameters = (*parameters, _SESSION_ID)
        descriptions = {_SESSION_ID.name: _SESSION_DESCRIPTION, **descriptions}
    simple = [simple_type(parameter.annotation) for parameter in parameters]
    if all(simple) and not any(_is_pydantic_field(parameter.default) for parameter in parameters):
        built = _simple_arguments(parameters, cast("list[SimpleType]", simple))
    else:
        # importing pydantic takes as long as the rest of a small yard
        from callyard.providers.functions.pydantic import pydantic_arguments  # noqa: PLC0415 - see above

        built = pydantic_arguments(what, parameters)
    for name, key in built.keys.items():
        if descriptions.get(name):
            built.schema["properties"][key].setdefault("description", descriptions[name])
    _fill_defaults(what, built)
    return Input(built.schema, _make_check(built))


def _is_pydantic_field(default: object) -> bool:
    return type(default).__name__ == "FieldInfo"


def _simple_arguments(parameters: tuple[Parameter, ...], simple: list[SimpleType]) -> ArgumentSchema:
    fields: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter, kind in zip(parameters, simple, strict=True):
        is_required = parameter.default is REQUIRED
        fields[parameter.name] = {"type": "typed-dict-field", "schema": kind.core, "required": is_required}
        properties[parameter.name] = dict(kind.schema)
        if is_required:
            required.append(parameter.name)
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not REQUIRED}
    return ArgumentSchema(schema, partial(_make_validate, fields), defaults, {name: name for name in properties}, is_simple=True)


def _make_validate(fields: dict[str, Any], *, errors: Errors = "all") -> Validate:
    return make_validate({"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}, errors=errors)


def make_validate(core: Mapping[str, Any], *, errors: Errors) -> Validate:
    """Return the validation by a schema of pydantic-core, with all errors, the first of each list, or only one."""
    from pydantic_core import SchemaValidator  # noqa: PLC0415 - slow to load, and listing tools never needs it

    if errors == "all":
        return cast("Validate", SchemaValidator(cast("CoreSchema", core)).validate_json)
    core = cast("dict[str, Any]", _failing_fast(core))
    if errors == "one":
        core = {"type": "custom-error", "schema": core, "custom_error_type": _ONE, "custom_error_message": "Input should fit"}
    # without the validators that models have already, which do not fail fast
    return cast("Validate", SchemaValidator(cast("CoreSchema", core), _use_prebuilt=False).validate_json)


def _failing_fast(core: Any) -> Any:
    """Return a copy of a schema of pydantic-core whose lists stop at the first wrong item, and whose unions have one error."""
    if type(core) is list:
        return [_failing_fast(part) for part in cast("list[Any]", core)]
    if type(core) is tuple:
        return tuple(_failing_fast(part) for part in cast("tuple[Any, ...]", core))
    if type(core) is not dict:
        return core
    node = cast("dict[str, Any]", core)
    copied = {key: value if key in _NO_SCHEMAS else _failing_fast(value) for key, value in node.items()}
    if node.get("type") in _REPEATING:
        copied["fail_fast"] = True
    elif node.get("type") in _UNIONS and "custom_error_type" not in node:
        copied |= {"custom_error_type": "union", "custom_error_message": "Input should fit one of its types"}
    return copied


def _fill_defaults(what: str, built: ArgumentSchema) -> None:
    """Check every default and write it into the schema."""
    for name, default in built.defaults.items():
        if isinstance(default, Factory):
            continue
        key = built.keys[name]
        try:
            text = encode({key: default})
        except TypeError as error:
            raise PublishError(f"{what} has a default for '{name}' that cannot be written as JSON.") from error
        value = msgspec.json.decode(text)[key]
        property_schema = built.schema["properties"][key]
        if not (built.is_simple and fits_simple_schema(property_schema, value)):
            _check_default(what, name, built, text)
        if default is not None:
            property_schema["default"] = value


def _check_default(what: str, name: str, built: ArgumentSchema, text: bytes) -> None:
    try:
        built.make_validate()(text, strict=True)
    except ValueError as error:
        faults = cast("ValidationError", error).errors(include_url=False)
        if any(str(fault["loc"][0]) == built.keys[name] for fault in faults if fault["loc"]):
            raise PublishError(f"{what} has a default for '{name}' that does not fit its annotation.") from error


def _make_check(built: ArgumentSchema) -> Check:
    schema, defaults = built.schema, built.defaults
    validate: Validate | None = None
    large = _LargeArguments(built)
    factories = {name: _factory(default) for name, default in defaults.items() if not isinstance(default, _IMMUTABLE)}

    def check(text: bytes) -> Arguments:
        nonlocal validate
        if validate is None:
            validate = built.make_validate()
        if len(text) > _LARGE_BYTES and has_more_commas(text, _MANY_VALUES):
            with PausedCollection():  # collections of a million new lists take 300 ms and free nothing
                checked = large.validate(text)
        else:
            try:
                checked = validate(text, strict=True)
            except ValueError as error:
                raise InvalidArgumentsError(_first_issues(cast("ValidationError", error), schema, _decode_invalid(text))) from None
        if not defaults:
            return checked
        fresh = {name: make() for name, make in factories.items() if name not in checked}
        return {**defaults, **fresh, **checked}

    return check


class _LargeArguments:
    """Validates arguments of many values, and names the first issues of invalid ones in bounded time.

    pydantic makes every error, each with a copy of the value: a million wrong items take seconds, and thirty arguments that
    are missing beside a large one take 4 GB. So a validator that makes one error says whether they fit, and the JSON Schema
    explains why not. What only pydantic knows, such as the format of a date, is named once for each list.
    """

    def __init__(self, built: ArgumentSchema) -> None:
        self._built = built
        self._by_schema = SchemaValidator(built.schema)
        self._validate: Validate | None = None
        self._required = 1

    def validate(self, text: bytes) -> Arguments:
        """Return the arguments, validated.

        Raises:
            InvalidArgumentsError: They do not fit.
        """
        if self._validate is None:
            self._validate = self._built.make_validate(errors="one")
            self._required += _count_required(self._built.schema)
        is_checked = text.count(b",") * self._required > _MAX_COPIED  # a missing field may cost a copy, even inside one error
        if is_checked:
            self._check_by_schema(_decode_invalid(text))
        try:
            return self._validate(text, strict=True)
        except ValueError as error:
            fault = cast("ValidationError", error).errors(include_url=False, include_input=False)[0]  # the input would be another copy
        if fault["type"] != _ONE or fault["loc"]:  # it is no JSON
            raise InvalidArgumentsError([_issue((), [fault], self._built.schema)])
        if text.count(b",") > _MAX_EXPLAINED and is_checked:
            raise InvalidArgumentsError(_UNEXPLAINED)
        arguments = _decode_invalid(text)
        self._check_by_schema(arguments)
        raise InvalidArgumentsError(self._issues_by_pydantic(text, arguments))

    def _check_by_schema(self, arguments: object) -> None:
        if not self._by_schema.fits(arguments):
            raise InvalidArgumentsError(self._by_schema.issues(arguments))

    def _issues_by_pydantic(self, text: bytes, arguments: object) -> list[Issue]:
        try:
            self._built.make_validate(errors="first")(text, strict=True)
        except ValueError as error:
            return _first_issues(cast("ValidationError", error), self._built.schema, arguments)
        return _UNEXPLAINED


def _count_required(node: Any) -> int:
    """Return how many required fields all objects of a schema have."""
    if isinstance(node, list):
        return sum(map(_count_required, cast("list[Any]", node)))
    if not isinstance(node, dict):
        return 0
    here = cast("dict[str, Any]", node)
    required = here.get("required")
    return (len(cast("list[Any]", required)) if isinstance(required, list) else 0) + sum(map(_count_required, here.values()))


def _first_issues(error: "ValidationError", schema: Schema, arguments: object) -> list[Issue]:
    """Return the issues of an error; the schema names the first ones where reading all of them would take long."""
    if error.error_count() <= _MAX_ERRORS:
        return issues_of(error, schema, arguments)
    return SchemaValidator(schema).issues(arguments) or _UNEXPLAINED


_UNEXPLAINED: Final = [Issue(ROOT, _ONE, "The arguments do not fit.")]


def _decode_invalid(text: bytes) -> object:
    """Return invalid arguments as data; unlike msgspec, json accepts NaN and very large numbers."""
    import json  # noqa: PLC0415 - valid arguments never need it

    try:
        return json.loads(text)
    except ValueError:
        return None  # an integer with thousands of digits


def _factory(default: object) -> Callable[[], object]:
    return default.make if isinstance(default, Factory) else partial(deepcopy, default)


_NO_SCHEMA: Final = frozenset({Envelope, Block, Image, Audio, Blob, Embedded, ResourceLink, Text, bytes, bytearray, memoryview})
_EXACT_TYPES: Final = (str, int, bool)
_ANYTHING: Final = (Any, object)
_NEVER: Final = (typing.NoReturn, typing.Never)


class Output(msgspec.Struct, frozen=True):
    """JSON Schema and check of a function's result, and whether the result may be None."""

    schema: dict[str, Any] | None
    fits: Callable[[object], bool] | None
    may_be_none: bool


def output_of(what: str, annotation: Any) -> Output:
    """Return the schema and the check of a return annotation.

    Raises:
        PublishError: The annotation cannot become a schema.
    """
    if annotation is REQUIRED or annotation in _NEVER:
        return Output(None, None, may_be_none=False)
    if any(annotation is anything for anything in _ANYTHING):
        return Output(None, None, may_be_none=True)
    parts = _member_types(annotation)
    may_be_none = any(part is None or part is type(None) for part in parts)
    if any(isinstance(part, type) and part in _NO_SCHEMA for part in parts):
        return Output(None, None, may_be_none)
    schema = _schema(what, annotation)
    fits = SchemaValidator(schema).fits
    return Output(schema, _check_type_first(annotation, fits) if annotation in _EXACT_TYPES else fits, may_be_none)


def _check_type_first(kind: type, fits: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the same check with a shortcut: a value of exactly this type needs no validator."""
    return lambda value: type(value) is kind or fits(value)


def _member_types(annotation: Any) -> list[Any]:
    """Return the member types of a union or a container, to find content blocks in it."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return _member_types(get_args(annotation)[0])
    if origin in {typing.Union, types.UnionType}:
        return [part for argument in get_args(annotation) for part in _member_types(argument)]
    if origin in {list, tuple, dict}:
        return [annotation, *(part for argument in get_args(annotation) for part in _member_types(argument) if part is not type(None))]
    return [annotation]


def _schema(what: str, annotation: Any) -> dict[str, Any]:
    simple = simple_type(annotation)
    if simple is not None:
        return simple.schema
    from callyard.providers.functions.pydantic import pydantic_schema  # noqa: PLC0415 - slow to load

    schema = pydantic_schema(annotation)
    if schema is not None:
        return schema
    try:
        return msgspec.json.schema(annotation)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PublishError(f"{what} has a return annotation that cannot become a schema.") from error
