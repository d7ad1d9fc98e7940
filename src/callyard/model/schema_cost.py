"""The cost of a JSON Schema: how many subschemas a validator applies to one place of a value.

A short schema can apply millions: two references to the next definition, forty definitions deep. No validator ends
there. Subschemas below `properties` and `items` apply to other places, so a schema with many of them costs no more.
"""

from collections.abc import Iterator
from typing import Any, Final, cast
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from callyard._internal.converted import as_list, as_object

__all__ = ["Cost", "schema_cost"]

_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SINGLE: Final = ("not", "if", "then", "else")
_REFERENCES: Final = ("$ref", "$dynamicRef")
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_AGAIN: Final = 3
"""How often a validator applies the subschemas beside `unevaluatedProperties`.

Once to check, and again to find which properties they evaluate.
"""
_OUTSIDE: Final = 64
"""The cost of a reference to another document; only those of JSON Schema itself can be followed."""
_CEILING: Final = 1_000_000_000


class Cost(msgspec.Struct, frozen=True):
    """What a validator does for one value of a schema."""

    applied: int
    """The most subschemas that apply to one place of a value."""
    unevaluated: int
    """The subschemas that are compiled once more for `unevaluatedProperties` and `unevaluatedItems`, in all."""
    nested: int
    """The most subschemas in each other that apply to one place."""
    patterns: int
    """How many regular expressions it has."""


class _Node(msgspec.Struct, frozen=True):
    schema: dict[str, Any]
    base: str
    """The URI that references in it are relative to."""


def schema_cost(schema: object) -> Cost:
    """Return the cost of a schema, in time linear in its size; a cycle counts once."""
    return _Document(schema).cost()


class _Document:
    """A schema with its references resolved, as a graph of the subschemas that apply to one place."""

    def __init__(self, root: object) -> None:
        self._nodes: list[_Node] = []
        self._by_identity: dict[int, _Node] = {}
        self._resources: dict[str, object] = {"": root}
        self._anchors: dict[str, list[dict[str, Any]]] = {}
        self._patterns = 0
        self._register(root)
        self._costs: dict[int, tuple[int, int]] = {}

    def cost(self) -> Cost:
        applied = nested = unevaluated = 0
        for node in self._nodes:
            own, depth = self._measure(node)
            applied, nested = max(applied, own), max(nested, depth)
            if not node.schema.keys().isdisjoint(_UNEVALUATED):
                unevaluated = min(unevaluated + own, _CEILING)
        return Cost(applied, unevaluated, nested, self._patterns)

    def _register(self, root: object) -> None:
        """Find every object of the document, with its base URI and its anchors."""
        pending: list[tuple[object, str]] = [(root, "")]
        while pending:
            value, base = pending.pop()
            pending += [(item, base) for item in as_list(value)]
            if isinstance(value, dict):
                pending += self._register_object(cast("dict[str, Any]", value), base)

    def _register_object(self, schema: dict[str, Any], base: str) -> list[tuple[object, str]]:
        if isinstance(name := schema.get("$id"), str):
            base = urldefrag(_joined(base, name)).url
            self._resources.setdefault(base, schema)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(keyword), str):
                self._anchors.setdefault(anchor, []).append(schema)
        self._patterns += isinstance(schema.get("pattern"), str)
        self._patterns += len(as_object(schema.get("patternProperties")))
        node = _Node(schema, base)
        self._nodes.append(node)
        self._by_identity[id(schema)] = node
        return [(item, base) for item in schema.values()]

    def _measure(self, start: _Node) -> tuple[int, int]:
        """Return how many subschemas apply where this one does, and how deep.

        Works without recursion, because chains may be long.
        """
        stack = [(start, self._applied_by(start), [0, 0])]
        open_nodes = {id(start.schema)}
        while True:
            node, children, total = stack[-1]
            key = id(node.schema)
            child = None if key in self._costs else next(children, None)
            if child is None:
                again = 1 if node.schema.keys().isdisjoint(_UNEVALUATED) else _AGAIN
                done = self._costs.setdefault(key, (min(1 + again * total[0], _CEILING), 1 + total[1]))
                stack.pop()
                open_nodes.discard(key)
                if not stack:
                    return done
                _add(stack[-1][2], done)
            elif isinstance(child, int):
                _add(total, (child, 1))
            elif id(child.schema) not in open_nodes:
                open_nodes.add(id(child.schema))
                stack.append((child, self._applied_by(child), [0, 0]))

    def _applied_by(self, node: _Node) -> Iterator[_Node | int]:
        """Yield the subschemas that apply to the same place; a number is the cost of another document."""
        schema = node.schema
        for keyword in _LISTS:
            yield from self._known(as_list(schema.get(keyword)))
        yield from self._known([schema.get(keyword) for keyword in (*_SINGLE, *_UNEVALUATED)])
        yield from self._known(list(as_object(schema.get("dependentSchemas")).values()))
        for keyword in _REFERENCES:
            if isinstance(reference := schema.get(keyword), str):
                yield from self._targets(reference, node.base)

    def _known(self, schemas: list[object]) -> Iterator[_Node]:
        for schema in schemas:
            if isinstance(schema, dict):
                yield self._by_identity[id(cast("object", schema))]

    def _targets(self, reference: str, base: str) -> Iterator[_Node | int]:
        url, fragment = urldefrag(_joined(base, reference))
        if url not in self._resources:
            yield _OUTSIDE
        elif fragment and not fragment.startswith("/"):
            yield from self._known(list(self._anchors.get(unquote(fragment), [])))
        else:
            yield from self._known([_at(self._resources[url], fragment)])


def _joined(base: str, reference: str) -> str:
    try:
        # 'urljoin' knows few schemes, and a URN has no path to join
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError:
        return reference


def _at(value: object, fragment: str) -> object:
    for raw in unquote(fragment).split("/")[1:]:
        part = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get(part)
        elif isinstance(value, list) and part.isdecimal() and len(part) < len("1000000"):
            value = next(iter(cast("list[object]", value)[int(part) : int(part) + 1]), None)
        else:
            return None
    return value


def _add(total: list[int], child: tuple[int, int]) -> None:
    total[0] = min(total[0] + child[0], _CEILING)
    total[1] = max(total[1], child[1])
