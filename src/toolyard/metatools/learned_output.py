"""LearnedOutputs: what is learnt of the results of tools that do not say what they answer: names and types, never values.

A shape is shown and never enforced. A name is shown if three results or more had it, if it does not look like a key of data, and if
whoever asks has seen it himself or three identities have: what only some callers are answered is nothing to tell the others.
"""

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, cast

from toolyard.dispatch.call import Caller
from toolyard.model.envelope import encode
from toolyard.model.spec import ToolSpec

__all__ = ["LearnedOutputs"]

_OFTEN: Final = 3
_VARIED: Final = 6
"""Results after which names that come and go are taken for keys of data."""
_RESULTS: Final = 50
_EVERY: Final = 64
_TOOLS: Final = 5000
_CALLERS: Final = 16
_NAMES: Final = 40
_PLACES: Final = 200
_VISITS: Final = 300
_CHARACTERS: Final = 4000
_DEPTH: Final = 4
_ITEMS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_.-]{0,39}[0-9]?\Z", re.ASCII)
"""What a field is called; anything else is the key of a map, which says something of the data."""
_TYPES: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}

CallerKey = tuple[str, str]
"""A caller: the identity and the scope."""


class _Node:
    """One place in the results of a tool."""

    __slots__ = ("count", "inner", "is_common", "is_map", "items", "last", "last_of", "objects", "seen_by", "times", "types")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        self.types: dict[str, int] = {}
        self.last_of: dict[str, int] = {}
        """The last result that had a type here."""
        self.objects = 0
        """Objects whose fields were looked at here, of which a result may have several in a list."""
        self.times = 0
        """How many of the objects around had this field."""
        self.inner: dict[str, _Node] = {}
        self.items: _Node | None = None
        self.is_map = False
        self.is_common = False
        """Whether results of several identities have the place, so that it tells nothing of any of them."""
        self.seen_by: dict[CallerKey, None] = {}
        """Whose results have it, until it is common; of many callers the last."""

    def see(self, value: object, result: int, who: CallerKey) -> None:
        """Note a value that a result has in this place; a result counts once for the place and for each type, however often it has them."""
        kind = _TYPES.get(type(value), "null")
        self.count += self.last != result
        self.last = result
        self.types[kind] = self.types.get(kind, 0) + (self.last_of.get(kind) != result)
        self.last_of[kind] = result
        if not self.is_common and who not in self.seen_by:
            if len(self.seen_by) >= _CALLERS:
                del self.seen_by[next(iter(self.seen_by))]
            self.seen_by[who] = None
            if len({identity for identity, _ in self.seen_by}) >= _OFTEN:
                self.is_common = True
                self.seen_by.clear()

    def shown(self, who: CallerKey, depth: int) -> dict[str, Any]:
        """Return the place as a schema of so many levels, with what was seen often enough and is no secret to the caller."""
        types = [name for name, count in self.types.items() if count >= _OFTEN]
        told: dict[str, Any] = {"type": types[0] if len(types) == 1 else types} if types else {}
        if not depth:
            return told
        items = None if self.items is None or self.items.count < _OFTEN else self.items.shown(who, depth - 1)
        if "object" in types:
            told |= {"additionalProperties": items or True} if self.is_map else self._shown_fields(who, depth)
        if "array" in types and items is not None:
            told["items"] = items
        return told

    def looks_like_map(self, pairs: dict[str, object]) -> bool:
        """Return whether these names, or those of all results together, are rather keys of data than fields."""
        if len(pairs) > _NAMES or not all(map(_NAME.match, pairs)) or len(self.inner.keys() | pairs.keys()) > _NAMES:
            return True
        if self.count < _VARIED:
            return False
        steady = sum(2 * node.count >= self.count for node in self.inner.values())
        kinds = {"number" if kind == "integer" else kind for node in self.inner.values() for kind in node.types}
        return 2 * steady < len(self.inner) and len(kinds - {"null"}) <= 1

    def size(self) -> int:
        """Return how many places are in this one."""
        inner = [*self.inner.values(), *([] if self.items is None else [self.items])]
        return len(inner) + sum(node.size() for node in inner)

    def _shown_fields(self, who: CallerKey, depth: int) -> dict[str, Any]:
        nodes = {
            name: node for name, node in sorted(self.inner.items()) if node.count >= _OFTEN and (node.is_common or who in node.seen_by)
        }
        fields = {name: node.shown(who, depth - 1) for name, node in nodes.items()}
        always = [name for name, node in nodes.items() if node.times == self.objects]
        return {**({"properties": fields} if fields else {}), **({"required": always} if always else {})}


class _Seen:
    """What was seen of one tool, which is a new one once it is published anew."""

    __slots__ = ("calls", "places", "root", "spec")

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.root = _Node()
        self.places = 0
        self.calls = 0

    def learn(self, data: object, who: CallerKey) -> None:
        """Look at a result level by level, as far as there is time for, so that of a large one at least the outside is known."""
        waiting: deque[tuple[_Node, object, int]] = deque([(self.root, data, _DEPTH)])
        for visited in range(_VISITS):
            if not waiting:
                return
            node, value, depth = waiting.popleft()
            node.see(value, self.calls, who)
            if depth and visited + len(waiting) < _VISITS:  # else nobody would come to what is inside
                waiting.extend((inner, item, depth - 1) for inner, item in self._inside(node, value))

    def _inside(self, node: _Node, value: object) -> Iterator[tuple[_Node, object]]:
        """Yield the places inside a place, and what a result has there."""
        if isinstance(value, list):
            yield from self._items(node, islice(cast("list[object]", value), _ITEMS))
        elif isinstance(value, dict):
            pairs = cast("dict[str, object]", value)
            if not node.is_map and node.looks_like_map(pairs):
                node.is_map = True
                node.inner.clear()
                self.places = self.root.size()
            if node.is_map:
                yield from self._items(node, islice(pairs.values(), _ITEMS))
            else:
                yield from self._fields(node, pairs)

    def _fields(self, node: _Node, pairs: dict[str, object]) -> Iterator[tuple[_Node, object]]:
        node.objects += 1
        for name, item in pairs.items():
            if name not in node.inner and self._has_room():
                node.inner[name] = _Node()
            if name in node.inner:
                node.inner[name].times += 1  # counted here, because not all of a large result is visited
                yield node.inner[name], item

    def _items(self, node: _Node, items: Iterator[object]) -> Iterator[tuple[_Node, object]]:
        for item in items:
            if node.items is None and self._has_room():
                node.items = _Node()
            if node.items is not None:
                yield node.items, item

    def _has_room(self) -> bool:
        """Return whether there may be one place more, and count it."""
        has_room = self.places < _PLACES
        self.places += has_room
        return has_room


class LearnedOutputs:
    """What was learnt of each tool, from its first results and then from one in a while."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def learn(self, spec: ToolSpec, data: object, caller: Caller) -> None:
        """Note what a tool answered a caller; never fails, and soon costs next to nothing."""
        known = self._seen.get(spec.name)
        if known is None or known.spec is not spec:
            if len(self._seen) >= _TOOLS:
                del self._seen[next(iter(self._seen))]
            known = self._seen[spec.name] = _Seen(spec)
        known.calls = calls = known.calls + 1
        if calls <= _RESULTS or not calls % _EVERY:
            known.learn(data, (caller.identity, caller.scope))

    def of(self, name: str, caller: Caller) -> dict[str, Any] | None:
        """Return what a caller may know of a tool's results, marked as learnt, or nothing if too few were seen."""
        known = self._seen.get(name)
        if known is None or known.root.count < _OFTEN:
            return None
        outputs = (known.root.shown((caller.identity, caller.scope), depth) for depth in range(_DEPTH, -1, -1))
        return {
            "schema": next(shape for shape in outputs if len(encode(shape)) <= _CHARACTERS),
            "learnt_from": known.root.count,
            "note": "LearnedOutput from results, not declared: it may be wrong.",
        }
