"""Integers that were written with a point: JSON Schema takes 5.0 where it says integer, and a handler must get 5."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from toolyard.envelope import encode
from toolyard.schema import Schema, resolve

__all__ = ["Integers"]

_DEPTH: Final = 32
_NESTING: Final = (dict, list)
_BRANCHES: Final = ("anyOf", "oneOf", "allOf")


class Integers:
    """Makes integers of the whole numbers in values that fit one schema, wherever it says integer and nowhere number."""

    __slots__ = ("_root", "_says")

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._says: bool | None = None

    def put(self, value: Any) -> Any:
        """Return a value with its integers as such; it is the value itself where none was written with a point."""
        if self._says is None:
            self._says = b'"integer"' in encode(self._root)
        return self._put([self._root], value, 0) if self._says and _holds_pointed(value) else value

    def _put(self, said: Iterable[Any], value: Any, depth: int) -> Any:
        """Return a value as the parts of the schema that speak of it have it."""
        nodes = list(self._unfold(said, set())) if depth <= _DEPTH else []
        if not nodes:
            return value
        if isinstance(value, float):
            return int(value) if value.is_integer() and _is_integer(nodes) else value
        if isinstance(value, list):
            items = cast("list[Any]", value)
            return [self._put([_item(node, index) for node in nodes], item, depth + 1) for index, item in enumerate(items)]
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value)
            return {key: self._put([_member(node, key) for node in nodes], item, depth + 1) for key, item in pairs.items()}
        return value

    def _unfold(self, said: Iterable[Any], seen: set[int]) -> Iterator[dict[str, Any]]:
        """Yield every part that speaks, with what it refers to and branches into."""
        for part in said:
            node = resolve(self._root, part)
            if isinstance(node, dict) and id(cast("object", node)) not in seen:
                seen.add(id(cast("object", node)))
                here = cast("dict[str, Any]", node)
                yield here
                for word in _BRANCHES:
                    yield from self._unfold(here.get(word, ()), seen)


def _holds_pointed(value: Any) -> bool:
    """Return whether there is a whole number with a point anywhere, however deep; hardly ever there is."""
    left: list[Any] = [[value]]
    while left:
        node = left.pop()
        for item in cast("list[object]", node.values() if isinstance(node, dict) else node):
            if isinstance(item, float):
                if item.is_integer():
                    return True
            elif isinstance(item, _NESTING):
                left.append(item)
    return False


def _is_integer(nodes: list[dict[str, Any]]) -> bool:
    types: set[str] = set()
    for node in nodes:
        named: str | list[str] = node.get("type", [])
        types |= {named} if isinstance(named, str) else set(named)
    return "integer" in types and "number" not in types


def _item(node: dict[str, Any], index: int) -> Any:
    first: list[Any] = node.get("prefixItems", [])
    return first[index] if index < len(first) else node.get("items")


def _member(node: dict[str, Any], key: str) -> Any:
    return node.get("properties", {}).get(key, node.get("additionalProperties"))
