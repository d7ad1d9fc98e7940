"""Output schemas that are learned from the results of tools without one: names and types, never values.

They are shown and never enforced. A field is shown if at least three results had it, if it does not look like a key of
data, and if the caller or at least three identities have received it: results of some callers must not reveal anything
to others.

What was learned goes to the store of the yard now and then, if it was given one, never as part of a call.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from itertools import islice
from typing import Any, Final, cast

import msgspec

from callyard.dispatch.call import Call, Caller
from callyard.dispatch.outcome import Outcome
from callyard.model.envelope import Envelope, encode
from callyard.model.spec import ToolSpec
from callyard.state.store import Store, StoreUnavailableError

__all__ = ["LearnedOutputs", "ToolResults"]

_FIRST_RESULTS: Final = 50
"""Results of a tool that are all read; after these one in `_INTERVAL`."""
_INTERVAL: Final = 64
_TOOLS: Final = 5000
_PREFIX: Final = "learned_output/"
_STORED_SECONDS: Final = 30 * 24 * 3600.0
_SAVE_S: Final = 60.0
_ENOUGH: Final = 3
"""Results, and identities, that must have a field before it is shown."""
_VARIED: Final = 6
"""Results after which fields that come and go count as keys of data."""
_CALLERS: Final = 16
_NAMES: Final = 40
_NODES: Final = 200
_VISITS: Final = 300
"""Values that are read of one result."""
_ITEMS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z_.-]{0,39}[0-9]?\Z", re.ASCII)
"""A name of a field; anything else is the key of a map, and so part of the data."""
_TYPES: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
    list: "array",
}
_DEPTH: Final = 4
_CHARACTERS: Final = 4000
CallerKey = tuple[str, str]


class _Node(msgspec.Struct, eq=False, omit_defaults=True):
    """One field, or the items of one list, in the results of a tool."""

    count: int = 0
    last: int = 0
    types: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    last_of: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """The number of the last result that had it with a type."""
    objects: int = 0
    """Objects that were read here; a result may have several in a list."""
    times: int = 0
    """Surrounding objects that had this field."""
    fields: dict[str, "_Node"] = msgspec.field(default_factory=dict[str, "_Node"])
    items: "_Node | None" = None
    is_map: bool = False
    is_common: bool = False
    """Whether results of enough identities had it, so that it reveals nothing about one."""
    callers: dict[CallerKey, None] = msgspec.field(default_factory=dict[CallerKey, None])
    """The last callers whose results had it; empty once it is common."""

    def record(self, value: object, result: int, caller: CallerKey) -> None:
        """Record a value; each result counts once, and once for each type."""
        kind = _TYPES.get(type(value), "null")
        self.count += self.last != result
        self.last = result
        self.types[kind] = self.types.get(kind, 0) + (self.last_of.get(kind) != result)
        self.last_of[kind] = result
        if not self.is_common and caller not in self.callers:
            if len(self.callers) >= _CALLERS:
                del self.callers[next(iter(self.callers))]
            self.callers[caller] = None
            if len({identity for identity, _ in self.callers}) >= _ENOUGH:
                self.is_common = True
                self.callers.clear()

    def schema(self, caller: CallerKey, depth: int) -> dict[str, Any]:
        """Return a schema of so many levels, with what was seen often enough and may be shown to the caller."""
        types = [name for name, count in self.types.items() if count >= _ENOUGH]
        schema: dict[str, Any] = {}
        if types:
            schema["type"] = types[0] if len(types) == 1 else types
        if not depth:
            return schema
        items = None if self.items is None or self.items.count < _ENOUGH else self.items.schema(caller, depth - 1)
        if "object" in types:
            schema |= {"additionalProperties": items or True} if self.is_map else self._object_schema(caller, depth)
        if "array" in types and items is not None:
            schema["items"] = items
        return schema

    def looks_like_map(self, pairs: dict[str, object]) -> bool:
        """Return whether these names, or those of all results together, look like keys of data."""
        if len(pairs) > _NAMES or not all(map(_NAME.match, pairs)) or len(self.fields.keys() | pairs.keys()) > _NAMES:
            return True
        if self.count < _VARIED:
            return False
        steady = sum(2 * node.count >= self.count for node in self.fields.values())
        kinds = {"number" if kind == "integer" else kind for node in self.fields.values() for kind in node.types}
        return 2 * steady < len(self.fields) and len(kinds - {"null"}) <= 1

    def size(self) -> int:
        """Return the number of nodes below this one."""
        nodes = [*self.fields.values(), *([] if self.items is None else [self.items])]
        return len(nodes) + sum(node.size() for node in nodes)

    def _object_schema(self, caller: CallerKey, depth: int) -> dict[str, Any]:
        nodes = {
            name: node
            for name, node in sorted(self.fields.items())
            if node.count >= _ENOUGH and (node.is_common or caller in node.callers)
        }
        fields = {name: node.schema(caller, depth - 1) for name, node in nodes.items()}
        always = [name for name, node in nodes.items() if node.times == self.objects]
        return {**({"properties": fields} if fields else {}), **({"required": always} if always else {})}


class ToolResults(msgspec.Struct, eq=False):
    """What was learned about one version of a tool."""

    fingerprint: str
    root: _Node = msgspec.field(default_factory=_Node)
    nodes: int = 0
    calls: int = 0

    def schema(self, caller: CallerKey) -> dict[str, Any] | None:
        """Return the schema of the results that a caller may see, or None after too few results."""
        if self.root.count < _ENOUGH:
            return None
        schemas = (self.root.schema(caller, depth) for depth in range(_DEPTH, -1, -1))
        return {
            "schema": next(schema for schema in schemas if len(encode(schema)) <= _CHARACTERS),
            "learnt_from": self.root.count,
            "note": "Learnt from results, not declared: it may be wrong.",
        }

    def learn(self, data: object, caller: CallerKey) -> None:
        """Read a result breadth-first up to a limit, so that the outer levels of a large one are known."""
        queue: deque[tuple[_Node, object, int]] = deque([(self.root, data, _DEPTH)])
        for visited in range(_VISITS):
            if not queue:
                return
            node, value, depth = queue.popleft()
            node.record(value, self.calls, caller)
            if depth and visited + len(queue) < _VISITS:  # else the limit ends the loop before these
                queue.extend((inner, item, depth - 1) for inner, item in self._inside(node, value))

    def _inside(self, node: _Node, value: object) -> Iterator[tuple[_Node, object]]:
        """Yield the nodes below a node, with their values in a result."""
        if isinstance(value, list):
            yield from self._items(node, islice(cast("list[object]", value), _ITEMS))
        elif isinstance(value, dict):
            pairs = cast("dict[str, object]", value)
            if not node.is_map and node.looks_like_map(pairs):
                node.is_map = True
                node.fields.clear()
                self.nodes = self.root.size()
            if node.is_map:
                yield from self._items(node, islice(pairs.values(), _ITEMS))
            else:
                yield from self._fields(node, pairs)

    def _fields(self, node: _Node, pairs: dict[str, object]) -> Iterator[tuple[_Node, object]]:
        node.objects += 1
        for name, item in pairs.items():
            if name not in node.fields and self._has_room():
                node.fields[name] = _Node()
            if name in node.fields:
                node.fields[name].times += 1  # here, because not all values of a large result are visited
                yield node.fields[name], item

    def _items(self, node: _Node, items: Iterator[object]) -> Iterator[tuple[_Node, object]]:
        for item in items:
            if node.items is None and self._has_room():
                node.items = _Node()
            if node.items is not None:
                yield node.items, item

    def _has_room(self) -> bool:
        """Return whether there may be one more node, and count it."""
        has_room = self.nodes < _NODES
        self.nodes += has_room
        return has_room


def _fingerprint(spec: ToolSpec) -> str:
    """Return a hash of what a tool does and takes, which tells versions of it apart."""
    parts = [spec.source, spec.operation, spec.description, spec.input_schema]
    return sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:32]


class LearnedOutputs:
    """Learns output schemas from the first results of each tool that declares none, and then from a sample."""

    def __init__(self) -> None:
        self._tools: dict[str, tuple[ToolSpec, ToolResults]] = {}
        self._stored: dict[str, bytes] = {}
        """What was read from the store and not used yet."""
        self._changed: set[str] = set()
        """The tools that were learned about since they were stored."""

    @asynccontextmanager
    async def kept_in(self, store: Store) -> AsyncGenerator[None]:
        """Read what was learned before, and store it every minute and at the end."""
        task = asyncio.create_task(self._keep(store))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self._save(store)

    async def _keep(self, store: Store) -> None:
        with suppress(StoreUnavailableError):  # logged by the store, here and below
            await self.load(store)
        while True:
            await asyncio.sleep(_SAVE_S)
            await self._save(store)

    async def load(self, store: Store) -> None:
        """Read what was stored; a tool that was learned about since keeps what is known here."""
        after = ""
        while keys := await store.keys(_PREFIX, after=after):
            after = keys[-1]
            wanted = keys[: max(_TOOLS - len(self._stored), 0)]
            for key, data in zip(wanted, await store.get_many(wanted), strict=True):
                self._stored[key.removeprefix(_PREFIX)] = data or b""

    async def _save(self, store: Store) -> None:
        for name in tuple(self._changed):
            self._changed.discard(name)
            if name not in self._tools:
                continue
            results = msgspec.msgpack.encode(self._tools[name][1])
            try:
                await store.put(_PREFIX + name, results, ttl=_STORED_SECONDS)
            except StoreUnavailableError:
                self._changed.add(name)
                return

    def _restored(self, spec: ToolSpec) -> ToolResults | None:
        """Return what was stored about this version of a tool, if anything."""
        stored = self._stored.pop(spec.name, None)
        if stored is not None:
            with suppress(msgspec.DecodeError):  # of another version of Callyard
                results = msgspec.msgpack.decode(stored, type=ToolResults)
                return self._add(spec, results) if results.fingerprint == _fingerprint(spec) else None
        return None

    def _add(self, spec: ToolSpec, results: ToolResults) -> ToolResults:
        if len(self._tools) >= _TOOLS:
            del self._tools[next(iter(self._tools))]
        self._tools[spec.name] = spec, results
        return results

    def finished(self, call: Call, envelope: Envelope, result: Outcome) -> None:  # noqa: ARG002 - the shape of an observer
        """Learn from the result of a tool."""
        if call.spec.output_schema is None and result.error is None and call.may_have_run:
            self.learn(call.spec, result.data, call.request.caller)

    def learn(self, spec: ToolSpec, data: object, caller: Caller) -> None:
        """Learn from the result of a call; it never raises."""
        known, results = self._tools.get(spec.name, (None, None))
        if results is None or known is not spec:
            results = self._restored(spec) or self._add(spec, ToolResults(_fingerprint(spec)))
        results.calls = calls = results.calls + 1
        if calls <= _FIRST_RESULTS or not calls % _INTERVAL:
            results.learn(data, (caller.identity, caller.scope))
            self._changed.add(spec.name)

    def of(self, spec: ToolSpec, caller: Caller) -> dict[str, Any] | None:
        """Return the schema of a tool's results that a caller may see, or None after too few results."""
        _, results = self._tools.get(spec.name, (None, None))
        results = results or self._restored(spec)
        return None if results is None else results.schema((caller.identity, caller.scope))
