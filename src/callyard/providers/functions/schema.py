"""Input and output of a function: JSON Schemas and checks, made from its signature.

Arguments are checked strictly as JSON text, whatever the channel, so that a date is a string everywhere.
"""

import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec

from callyard._internal.converted import has_more
from callyard.dispatch.arguments import Bind, BoundArguments, bound_to, canonical, not_comparable
from callyard.dispatch.call import Arguments
from callyard.dispatch.tool import Check, InvalidArgumentsError
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
from callyard.providers.functions.signature import REQUIRED, ArgumentSchema, Default, Factory, Parameter

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
    for opening, instead in (("Input should ", "should "), ("Value error, ", ""), ("Assertion failed, ", "")):
        if message.startswith(opening):
            return message.replace(opening, instead, 1)
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
_REPEATING: Final = frozenset({"list", "set", "frozenset", "tuple", "dict"})
_UNIONS: Final = frozenset({"union", "tagged-union"})
_NO_SCHEMAS: Final = frozenset(
    {"metadata", "default", "expected", "members", "config", "cls", "function", "serialization", "ref", "type"}
)
"""Keys of a schema of pydantic-core whose values contain no schemas."""
_IMMUTABLE: Final = (str, int, float, bool, bytes, type(None), Enum)
_SESSION_ID: Final = Parameter("session_id", str | None, None)
_SESSION_DESCRIPTION: Final = "Needed if several are live."


class Input(msgspec.Struct, frozen=True):
    """JSON Schema and check of a function's arguments."""

    schema: dict[str, Any]
    check: Check
    bind: Bind


def input_of(what: str, parameters: tuple[Parameter, ...], descriptions: Mapping[str, str], *, session: bool) -> Input:
    """Return the schema and the check of a function's arguments.

    Raises:
        PublishError: An annotation cannot become a schema, or a default does not fit it.
    """
    if session and all(parameter.name != _SESSION_ID.name for parameter in parameters):
        parameters = (*parameters, _SESSION_ID)
        descriptions = {_SESSION_ID.name: _SESSION_DESCRIPTION, **descriptions}
    simple = [simple_type(parameter.annotation) for parameter in parameters]
    if all(simple) and not any(type(parameter.default).__name__ == "FieldInfo" for parameter in parameters):
        built = _simple_arguments(parameters, cast("list[SimpleType]", simple))
    else:
        # importing pydantic takes as long as the rest of a small yard
        from callyard.providers.functions.pydantic import pydantic_arguments  # noqa: PLC0415 - see above

        built = pydantic_arguments(what, parameters)
    for name, key in built.keys.items():
        if descriptions.get(name):
            built.schema["properties"][key].setdefault("description", descriptions[name])
    _fill_defaults(what, built)
    check = _make_check(built)
    return Input(built.schema, check, _make_bind(built, check))


def _simple_arguments(parameters: tuple[Parameter, ...], simple: list[SimpleType]) -> ArgumentSchema:
    fields: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not REQUIRED}
    for parameter, kind in zip(parameters, simple, strict=True):
        is_required = parameter.name not in defaults
        fields[parameter.name] = {"type": "typed-dict-field", "schema": kind.core, "required": is_required}
        properties[parameter.name] = dict(kind.schema)
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if len(defaults) < len(parameters):
        schema["required"] = [name for name in properties if name not in defaults]
    keys = {name: name for name in properties}
    core = {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}
    return ArgumentSchema(schema, partial(make_validate, core), defaults, keys, is_simple=True)


def make_validate(core: Mapping[str, Any], *, fail_fast: bool = False) -> Validate:
    """Return the validation by a schema of pydantic-core, with all errors or the first of each list."""
    from pydantic_core import SchemaValidator  # noqa: PLC0415 - slow to load, and listing tools never needs it

    if not fail_fast:
        return cast("Validate", SchemaValidator(cast("CoreSchema", core)).validate_json)
    # without the validators that models have already, which do not fail fast
    return cast("Validate", SchemaValidator(_failing_fast(core), _use_prebuilt=False).validate_json)


def _failing_fast(core: Any) -> Any:
    """Return a copy of a pydantic-core schema whose lists stop at the first wrong item; its unions have one error."""
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
    factories: dict[str, Callable[[], object]] = {
        name: default.make if isinstance(default, Factory) else partial(deepcopy, default)
        for name, default in defaults.items()
        if not isinstance(default, _IMMUTABLE)
    }

    def check(text: bytes) -> Arguments:
        nonlocal validate
        if validate is None:
            validate = built.make_validate()
        if len(text) > _LARGE_BYTES and has_more(text, b",", _MANY_VALUES):
            checked = large.validate(text)
        else:
            try:
                checked = validate(text, strict=True)
            except ValueError as error:
                invalid = cast("ValidationError", error)
                raise InvalidArgumentsError(_first_issues(invalid, schema, _decode_invalid(text))) from None
        if not defaults:
            return checked
        fresh = {name: make() for name, make in factories.items() if name not in checked}
        return {**defaults, **fresh, **checked}

    return check


def _make_bind(built: ArgumentSchema, check: Check) -> Bind:
    """Return the function that binds arguments to the JSON that is judged and approved."""
    generated = {built.keys[name] for name, default in built.defaults.items() if isinstance(default, Factory)}
    published = {
        built.keys[name]: built.schema["properties"][built.keys[name]].get("default")
        for name, default in built.defaults.items()
        if not isinstance(default, Factory)
    }

    def bind(text: bytes) -> BoundArguments:
        given = msgspec.json.decode(text)
        if built.form is None and generated <= given.keys():
            return bound_to({**published, **given}, check)
        checked = check(text)
        try:
            value = _input_form(built, given, checked, {"static", "generated"})
            parsed = _input_form(built, given, checked, {"generated"})  # models remember which fields were given
            common = _input_form(built, given, checked, {"static"})
            common = value if common == value else common
        except (TypeError, ValueError) as error:  # a default that is no JSON
            raise not_comparable() from error
        return BoundArguments(value, encode(parsed), check, common)

    return bind


def _input_form(
    built: ArgumentSchema, given: Mapping[str, Any], checked: Arguments, fills: AbstractSet[Default]
) -> dict[str, Any]:
    """Return arguments as JSON under their published names, with the defaults of parameters and models filled in."""
    members: dict[str, Any] = {}
    for name, key in built.keys.items():
        used = next((accepted for accepted in built.accepted.get(name, (key,)) if accepted in given), None)
        if used is not None:
            members[key] = given[used] if built.form is None else built.form(given[used], checked[name], fills)
        elif "generated" in fills or not isinstance(built.defaults[name], Factory):
            members[key] = built.to_input(checked[name])
    return canonical(members)


class _LargeArguments:
    """Validates arguments of many values, and names the first issues of invalid ones in bounded time.

    pydantic makes every error, each with a copy of the value: a million wrong items take seconds, and thirty arguments
    that are missing beside a large one take 4 GB. So the validator stops at the first wrong item of each list, and the
    JSON Schema explains what is wrong, before it if the copies could be many. What only pydantic knows, such as the
    format of a date, is named once for each list.
    """

    def __init__(self, built: ArgumentSchema) -> None:
        self._built = built
        self._by_schema = SchemaValidator(built.schema)
        self._validate: Validate | None = None

    def validate(self, text: bytes) -> Arguments:
        """Return the arguments, validated.

        Raises:
            InvalidArgumentsError: They do not fit.
        """
        if self._validate is None:
            self._validate = self._built.make_validate(fail_fast=True)
        if text.count(b",") * (1 + _count_required(self._built.schema)) > _MAX_COPIED:
            self._check_by_schema(_decode_invalid(text))
        try:
            return self._validate(text, strict=True)
        except ValueError as error:
            arguments = _decode_invalid(text)
            if arguments is not None:
                self._check_by_schema(arguments)
            invalid = cast("ValidationError", error)
            raise InvalidArgumentsError(_first_issues(invalid, self._built.schema, arguments)) from None

    def _check_by_schema(self, arguments: object) -> None:
        if not self._by_schema.fits(arguments):
            raise InvalidArgumentsError(self._by_schema.issues(arguments))


def _count_required(node: Any) -> int:
    if isinstance(node, list):
        return sum(map(_count_required, cast("list[Any]", node)))
    if not isinstance(node, dict):
        return 0
    here = cast("dict[str, Any]", node)
    required = here.get("required")
    own = len(cast("list[Any]", required)) if isinstance(required, list) else 0
    return own + sum(map(_count_required, here.values()))


def _first_issues(error: "ValidationError", schema: Schema, arguments: object) -> list[Issue]:
    """Return the issues of an error; the schema names the first ones where reading all of them would take long."""
    if error.error_count() <= _MAX_ERRORS:
        return issues_of(error, schema, arguments)
    return SchemaValidator(schema).issues(arguments) or [Issue(ROOT, "invalid", "The arguments do not fit.")]


def _decode_invalid(text: bytes) -> object:
    """Return invalid arguments as data; unlike msgspec, json accepts NaN and very large numbers."""
    try:
        return json.loads(text)
    except ValueError:
        return None  # an integer with thousands of digits


_NO_SCHEMA: Final = frozenset(
    {Envelope, Block, Image, Audio, Blob, Embedded, ResourceLink, Text, bytes, bytearray, memoryview}
)
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
    if annotation in (str, int, bool):  # a value of exactly this type needs no validator, which takes 5 MB once loaded
        return Output(schema, lambda value: type(value) is annotation or fits(value), may_be_none)
    return Output(schema, fits, may_be_none)


def _member_types(annotation: Any) -> list[Any]:
    """Return the member types of a union or a container, to find content blocks in it."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return _member_types(get_args(annotation)[0])
    if origin in {typing.Union, types.UnionType}:
        return [part for argument in get_args(annotation) for part in _member_types(argument)]
    if origin in {list, tuple, dict}:
        return [
            annotation,
            *(part for argument in get_args(annotation) for part in _member_types(argument) if part is not type(None)),
        ]
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
