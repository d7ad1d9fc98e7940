"""Plain schemas: those that can be seen to be right at a glance, so that a yard of them starts without a validator.

It only ever says what is certain. Whatever is not plain is for the validator to judge.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any, Final, cast

__all__ = ["is_plain", "plainly_fits"]

_LARGEST: Final = 2**53
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_SAYS_NOTHING: Final = frozenset({"title", "description", "default"})


def is_plain(schema: object) -> bool:
    """Return whether this is a JSON Schema for certain; a schema that is not plain may well be one, too."""
    if type(schema) is bool:
        return True
    if type(schema) is not dict:
        return False
    for key, value in cast("dict[str, object]", schema).items():  # a loop, because many schemas are looked at when a yard opens
        check = _KEYWORDS.get(key)
        if check is None or not check(value):
            return False
    return True


def plainly_fits(schema: dict[str, Any], value: object) -> bool:
    """Return whether a value fits a plain schema of texts, numbers and the like for certain."""
    for key, wanted in schema.items():
        if key == "type":
            fits = type(wanted) is str and type(value) in _TYPES[wanted]
        elif key == "enum":
            fits = type(value) is str and value in wanted
        elif key == "anyOf":
            fits = any(type(branch) is dict and plainly_fits(branch, value) for branch in wanted)
        elif key == "minimum":
            fits = type(value) in {int, float} and cast("float", value) >= wanted
        elif key == "maximum":
            fits = type(value) in {int, float} and cast("float", value) <= wanted
        else:
            fits = key in _SAYS_NOTHING
        if not fits:
            return False
    return True


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_number(value: object) -> bool:
    return (type(value) is int and abs(value) < _LARGEST) or (type(value) is float and isfinite(value))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


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
    return all(type(key) is str for key in properties) and all(map(is_plain, properties.values()))


def _are_branches(value: object) -> bool:
    branches = cast("list[object]", value) if type(value) is list else []
    return bool(branches) and all(map(is_plain, branches))


_KEYWORDS: Final[dict[str, Callable[[object], bool]]] = {
    "additionalProperties": is_plain,
    "anyOf": _are_branches,
    "const": _is_json,
    "default": _is_json,
    "description": _is_text,
    "enum": _are_json,
    "examples": _are_json,
    "exclusiveMaximum": _is_number,
    "exclusiveMinimum": _is_number,
    "items": is_plain,
    "maxItems": _is_count,
    "maxLength": _is_count,
    "maximum": _is_number,
    "minItems": _is_count,
    "minLength": _is_count,
    "minimum": _is_number,
    "properties": _are_properties,
    "required": _are_names,
    "title": _is_text,
    "type": _is_type,
}
"""What a plain schema may say, and what makes it right beyond doubt."""
