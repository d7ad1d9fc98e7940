"""Shapes: what is learnt of the results of tools that do not say what they answer: names and types, never values.

A shape is shown and never enforced. What was seen in fewer than three results is not shown, nor what may be a key of data.
"""

import re
from typing import Any, Final, cast

from toolyard.spec import ToolSpec

__all__ = ["Shapes"]

_OFTEN: Final = 3
_RESULTS: Final = 50
_EVERY: Final = 64
_TOOLS: Final = 5000
_NAMES: Final = 40
_DEPTH: Final = 4
_ITEMS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_.-]{0,39}[0-9]?\Z", re.ASCII)
"""What a field is called; anything else is the key of a map, which says something of the data."""
_TYPES: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string"}


class _Node:
    """One place in the results of a tool."""

    __slots__ = ("count", "inner", "is_map", "items", "last", "types")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        self.types: dict[str, int] = {}
        self.inner: dict[str, _Node] = {}
        self.items: _Node | None = None
        self.is_map = False

    def see(self, value: object, result: int, depth: int) -> None:
        """Note a value that a result has in this place; a result counts once, however often it has the place."""
        fresh = self.last != result
        self.last = result
        self.count += fresh
        if isinstance(value, dict):
            self._add("object", fresh=fresh)
            self._see_fields(cast("dict[str, object]", value), result, depth)
        elif isinstance(value, list):
            self._add("array", fresh=fresh)
            self._see_items(cast("list[object]", value), result, depth)
        else:
            self._add(_TYPES.get(type(value), "null"), fresh=fresh)

    def shown(self) -> dict[str, Any]:
        """Return the place as a schema, with what was seen often enough."""
        types = [name for name, count in self.types.items() if count >= _OFTEN] or ["any"]
        told: dict[str, Any] = {} if types == ["any"] else {"type": types[0] if len(types) == 1 else types}
        if "object" in types:
            told |= self._shown_fields()
        if "array" in types and self.items is not None and self.items.count >= _OFTEN:
            told["items"] = self.items.shown()
        return told

    def _shown_fields(self) -> dict[str, Any]:
        if self.is_map:
            often = self.items is not None and self.items.count >= _OFTEN
            return {"additionalProperties": cast("_Node", self.items).shown() if often else True}
        fields = {name: node.shown() for name, node in sorted(self.inner.items()) if node.count >= _OFTEN}
        always = [name for name in fields if self.inner[name].count == self.count]
        return {"properties": fields, **({"required": always} if always else {})}

    def _see_fields(self, pairs: dict[str, object], result: int, depth: int) -> None:
        known = self.inner.keys() | pairs.keys()
        if not self.is_map and (len(known) > _NAMES or not all(map(_NAME.match, pairs))):
            self.is_map = True
            self.inner.clear()
        if not depth:
            return
        if self.is_map:
            self._see_items(list(pairs.values()), result, depth)
            return
        for name, item in pairs.items():
            if name not in self.inner:
                self.inner[name] = _Node()
            self.inner[name].see(item, result, depth - 1)

    def _see_items(self, items: list[object], result: int, depth: int) -> None:
        if depth and items:
            if self.items is None:
                self.items = _Node()
            for item in items[:_ITEMS]:
                self.items.see(item, result, depth - 1)

    def _add(self, name: str, *, fresh: bool) -> None:
        self.types[name] = self.types.get(name, 0) + (fresh or name not in self.types)


class _Seen:
    """What was seen of one tool, which is a new one once it is published anew."""

    __slots__ = ("calls", "root", "spec")

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.root = _Node()
        self.calls = 0


class Shapes:
    """What was learnt of each tool, from its first results and then from one in a while."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def learn(self, spec: ToolSpec, data: object) -> None:
        """Note what a tool answered; never fails, and soon costs next to nothing."""
        known = self._seen.get(spec.name)
        if known is None or known.spec is not spec:
            if len(self._seen) >= _TOOLS:
                del self._seen[next(iter(self._seen))]
            known = self._seen[spec.name] = _Seen(spec)
        known.calls = calls = known.calls + 1
        if calls <= _RESULTS or not calls % _EVERY:
            known.root.see(data, calls, _DEPTH)

    def of(self, name: str) -> dict[str, Any] | None:
        """Return what was learnt of a tool's results, marked as such, or nothing if too few were seen."""
        known = self._seen.get(name)
        if known is None or known.root.count < _OFTEN:
            return None
        return {
            "schema": known.root.shown(),
            "learnt_from": known.root.count,
            "note": "Learnt from results, not declared: it may be wrong.",
        }
