"""Types: a part of a schema in a word or two, as people write types.

A reference may lead to a place that no check of the schema has seen, because it is none of a schema: what stands there may be
anything.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, cast

from toolyard.schema import Schema, resolve

__all__ = ["Types", "list_in", "visible"]

_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "object",
    "array": "list",
}
_ANY: Final = "any"
_CHOICES: Final = 5
_CHOICES_CHARACTERS: Final = 40
_DEPTH: Final = 4
_PARTS: Final = 256
"""Parts of a schema that are read; one that refers to itself has no end of them."""
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Types:
    """What the parts of one schema are called, as far as they are read."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _PARTS

    def of(self, node: object, depth: int = _DEPTH) -> str:
        """Return a part of the schema as a short type."""
        self._left -= 1
        named = _name_of(node)
        here = resolve(self._root, node)
        if not isinstance(here, dict) or not here or not depth or self._left < 0:
            return named or _ANY
        schema = cast("dict[str, Any]", here)
        choices = list_in(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
        if choices:
            return _choices(choices)
        branches = [*list_in(schema.get("anyOf")), *list_in(schema.get("oneOf"))]
        if branches:
            return self.of_either(branches, depth - 1)
        if "type" not in schema and "allOf" in schema:
            every = (self.of(part, depth - 1) for part in list_in(schema["allOf"])[:_PARTS])
            return next((kind for kind in every if kind != _ANY), _ANY)
        kinds = schema.get("type", "object" if "properties" in schema else None)
        return _either(self._plain(schema, kind, named, depth) for kind in list_in(kinds) or [kinds])

    def of_either(self, nodes: list[Any], depth: int = _DEPTH) -> str:
        """Return the types of several parts, of which one holds."""
        read = nodes[: max(self._left, 1)]
        return _either([*(self.of(node, depth) for node in read), *([_ANY] if len(read) < len(nodes) else [])])

    def _plain(self, schema: dict[str, Any], kind: object, named: str, depth: int) -> str:
        if kind == "array":
            items = schema.get("items")
            return f"list[{self.of(cast('object', items), depth - 1)}]" if isinstance(items, dict) else "list"
        if kind == "object":
            values = schema.get("additionalProperties")
            if not schema.get("properties") and isinstance(values, dict) and values:
                return f"dict[str, {self.of(cast('object', values), depth - 1)}]"
            title = schema.get("title")
            return named or (title if isinstance(title, str) and title.isidentifier() else "object")
        return _TYPES.get(kind if isinstance(kind, str) else "", named or _ANY)


def list_in(value: object) -> list[Any]:
    """Return a list, or an empty one where something else stands."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def visible(text: str) -> str:
    """Return a text with what would break the line written as an escape, so that whoever passes it on knows what it is."""
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _name_of(node: object) -> str:
    """Return what a reference calls the thing that it refers to, if that is a name."""
    reference = cast("dict[str, Any]", node).get("$ref") if isinstance(node, dict) else None
    name = reference.rpartition("/")[2] if isinstance(reference, str) else ""
    return name if name.isidentifier() else ""


def _choices(choices: list[Any]) -> str:
    written = "|".join(f"'{visible(choice)}'" if isinstance(choice, str) else str(choice) for choice in choices[:_CHOICES])
    if len(choices) <= _CHOICES and len(written) <= _CHOICES_CHARACTERS:
        return written
    return _either("str" if isinstance(choice, str) else type(choice).__name__ for choice in choices)


def _either(types: Iterable[str]) -> str:
    return "|".join(dict.fromkeys(types))
