"""Parameters: what a schema says of what a tool takes, wherever in it that is said."""

from typing import Any, Final, cast

from toolyard.schema import Schema, resolve

__all__ = ["parameters_of"]

_PARAMETERS: Final = 64
_CHARACTERS: Final = 300
_CHOICES: Final = 32
_DEPTH: Final = 3
_PARTS: Final = 64
"""Parts that are read of one parameter: itself, and what is behind its references, branches and items."""
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")
_INNER: Final = (*_BRANCHES, "items", "prefixItems", "additionalProperties")
_BRANCHING: Final = frozenset({"$ref", *_BRANCHES})
_IN_PARTS: Final = frozenset({"$ref", *_INNER})
_MORE: Final = _IN_PARTS | {"const", "enum", "properties"}
"""What a parameter has that is more than a name and a description."""


def parameters_of(schema: Schema) -> tuple[list[str], list[str], list[str]]:
    """Return the names of all parameters, what is said of them, and the values that they may take.

    Those that are in the fewest objects come first. A part of the schema that is referred to more than once is read where it is
    first met: so one that holds itself comes to an end, and one that many parameters share does not crowd out the others. A schema
    need not be a correct one.
    """
    names: list[str] = []
    texts: list[str] = []
    choices: list[str] = []
    seen = {id(schema)}
    objects: list[tuple[object, int]] = [(schema.get("properties"), 0)]
    if not _BRANCHING.isdisjoint(schema):
        objects = [(part.get("properties"), 0) for part in _parts(schema, schema, seen)]
    for properties, depth in objects:
        if not isinstance(properties, dict):
            continue
        for name, inner in cast("dict[object, object]", properties).items():
            if not isinstance(name, str) or not isinstance(inner, dict):
                continue
            names.append(name)
            parameter = cast("dict[str, Any]", inner)
            if _MORE.isdisjoint(parameter):
                text = parameter.get("description")
                if isinstance(text, str):
                    texts.append(text[:_CHARACTERS])
            else:
                parts = _parts(schema, parameter, seen)
                texts.append(" ".join(_texts(parts))[:_CHARACTERS])
                choices += _choices(parts)[:_CHOICES]
                if depth < _DEPTH:
                    objects += [(part["properties"], depth + 1) for part in parts if "properties" in part]
            if len(names) >= _PARAMETERS:
                return names, texts, choices
    return names, texts, choices


def _texts(parts: list[Schema]) -> list[str]:
    return [text for part in parts if isinstance(text := part.get("description"), str)]


def _choices(parts: list[Schema]) -> list[str]:
    found: list[Any] = []
    for part in parts:
        given = part.get("enum")
        if isinstance(given, list):
            found += cast("list[Any]", given)[:_CHOICES]
        if "const" in part:
            found.append(part["const"])
    return [choice for choice in found if isinstance(choice, str)]


def _parts(root: Schema, node: Schema, seen: set[int]) -> list[Schema]:
    """Return a part of a schema, and those behind it that speak of the same value or of what is in it and were not seen before."""
    parts = [node]
    for part in parts:
        if _IN_PARTS.isdisjoint(part):
            continue
        for inner in _behind(root, part):
            if len(parts) >= _PARTS:
                return parts
            if isinstance(inner, dict) and id(found := cast("dict[str, Any]", inner)) not in seen:
                seen.add(id(found))
                parts.append(found)
    return parts


def _behind(root: Schema, part: Schema) -> list[Any]:
    found: list[Any] = [resolve(root, part)] if "$ref" in part else []
    for keyword in _INNER:
        if keyword in part:
            inner: Any = part[keyword]
            found += cast("list[Any]", inner) if isinstance(inner, list) else [inner]
    return found
