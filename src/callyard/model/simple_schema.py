"""Simple schemas, which are checked without the validator, so that a yard of simple tools starts sooner."""

from collections.abc import Callable
from math import isfinite
from typing import Any, Final, cast

__all__ = ["fits_simple_schema", "is_simple_schema", "json_type"]

_MAX_INTEGER: Final = 2**53
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_ANNOTATION_KEYWORDS: Final = frozenset({"title", "description", "default"})


def is_simple_schema(schema: object) -> bool:
    """Return whether this is certainly a JSON Schema; a false answer leaves it open.

    It saves loading and running the validator for the schemas of most tools.
    """
    if type(schema) is bool:
        return True
    if type(schema) is not dict:
        return False
    for key, value in cast(
        "dict[str, object]", schema
    ).items():  # a loop is quicker than 'all', and a yard that opens checks many
        check = _KEYWORDS.get(key)
        if check is None or not check(value):
            return False
    return True


def fits_simple_schema(schema: dict[str, Any], value: object) -> bool:
    """Return whether a value certainly fits a simple schema of scalars; a false answer leaves it open."""
    for key, expected in schema.items():
        if key == "type":
            fits = type(expected) is str and type(value) in _TYPES[expected]
        elif key == "enum":
            fits = type(value) is str and value in expected
        elif key == "anyOf":
            fits = any(type(branch) is dict and fits_simple_schema(branch, value) for branch in expected)
        elif key == "minimum":
            fits = type(value) in {int, float} and cast("float", value) >= expected
        elif key == "maximum":
            fits = type(value) in {int, float} and cast("float", value) <= expected
        else:
            fits = key in _ANNOTATION_KEYWORDS
        if not fits:
            return False
    return True


def json_type(value: object) -> str:
    """Return the name of a value's type in JSON."""
    return next((name for name, kinds in _TYPES.items() if type(value) in kinds), "object")


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_number(value: object) -> bool:
    return (type(value) is int and abs(value) < _MAX_INTEGER) or (type(value) is float and isfinite(value))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_INTEGER


def _is_type(value: object) -> bool:
    if type(value) is str:
        return value in _TYPES
    return _are_names(value) and bool(value) and set(cast("list[str]", value)) <= _TYPES.keys()


def _is_json(value: object) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_json(item) for key, item in cast("dict[object, object]", value).items())
    if type(value) is list:
        return all(map(_is_json, cast("list[object]", value)))
    return value is None or type(value) in {str, bool} or _is_number(value)


def _are_json(value: object) -> bool:
    return type(value) is list and _is_json(cast("object", value))


def _are_names(value: object) -> bool:
    if type(value) is not list:
        return False
    names = cast("list[object]", value)
    return all(type(name) is str for name in names) and len(set(names)) == len(names)


def _are_properties(value: object) -> bool:
    if type(value) is not dict:
        return False
    properties = cast("dict[object, object]", value)
    return all(type(key) is str for key in properties) and all(map(is_simple_schema, properties.values()))


def _are_branches(value: object) -> bool:
    branches = cast("list[object]", value) if type(value) is list else []
    return bool(branches) and all(map(is_simple_schema, branches))


_KEYWORDS: Final[dict[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("additionalProperties", "items"), is_simple_schema),
    **dict.fromkeys(("const", "default"), _is_json),
    **dict.fromkeys(("description", "title"), _is_text),
    **dict.fromkeys(("enum", "examples"), _are_json),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _is_number),
    **dict.fromkeys(("maxItems", "maxLength", "minItems", "minLength"), _is_count),
    "anyOf": _are_branches,
    "properties": _are_properties,
    "required": _are_names,
    "type": _is_type,
}
