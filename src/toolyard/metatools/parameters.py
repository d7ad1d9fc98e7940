"""Parameters: what a schema says that a tool takes, wherever in the schema it says so.

A reference may lead to a place that is none of a schema, so that anything may stand there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from toolyard.metatools.types import list_in
from toolyard.schema import Schema, follow

__all__ = ["Parameters", "read_parameters"]

_PARTS: Final = 64
"""Parts of a schema that are read; one that refers to itself has no end of them."""
_CONDITIONS: Final = ("if", "dependentRequired", "dependentSchemas")


@dataclass(slots=True)
class Parameters:
    """What is known by name, and whether there is more to it than names can say."""

    properties: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """The schemas of each: one, or one for each alternative."""
    required: dict[str, None] = field(default_factory=dict[str, None])
    """Those that every call needs."""
    more: bool = False
    """Whether what is needed depends on something, or leads where it was not read."""

    def join(self, other: "Parameters") -> None:
        """Take what another part demands, too; of two schemas of one that which says something."""
        for name, schemas in other.properties.items():
            if not _says_something(self.properties.get(name, ())):
                self.properties[name] = schemas
        self.required |= other.required
        self.more |= other.more


def read_parameters(schema: Schema) -> Parameters:
    """Return what a schema says that a tool takes, in what it refers to, in all its parts and in every one of its alternatives."""
    return _Reading(schema).read(schema)


class _Reading:
    """One way through a schema, of so many parts."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _PARTS

    def read(self, node: object) -> Parameters:
        """Return what a part of the schema says."""
        self._left -= 1
        if not isinstance(node, dict):
            return Parameters(more=node is None)
        here = cast("dict[str, Any]", node)
        properties, required = here.get("properties"), here.get("required")
        found = Parameters(
            properties={name: [part] for name, part in cast("dict[str, Any]", properties).items()} if isinstance(properties, dict) else {},
            required=dict.fromkeys(name for name in list_in(required) if isinstance(name, str)),
            more=any(key in here for key in _CONDITIONS),
        )
        reference = here.get("$ref")
        if isinstance(reference, str):
            self._join_all(found, [follow(self._root, reference)])
        self._join_all(found, list_in(here.get("allOf")))
        for key in ("anyOf", "oneOf"):
            self._join_either(found, list_in(here.get(key)))
        return found

    def _join_all(self, found: Parameters, parts: Iterable[object]) -> None:
        for part in parts:
            if self._left <= 0:
                found.more = True
                return
            found.join(self.read(part))

    def _join_either(self, found: Parameters, branches: list[object]) -> None:
        """Add what every alternative requires, as each of them has it."""
        if len(branches) <= 1:
            self._join_all(found, branches)
            return
        found.more = True
        if len(branches) > self._left:
            return
        several = [self.read(branch) for branch in branches]
        for name in several[0].required:
            if all(name in one.required for one in several):
                schemas = [schema for one in several for schema in one.properties.get(name, [{}])]
                found.join(Parameters({name: schemas}, {name: None}))


def _says_something(schemas: Iterable[object]) -> bool:
    return any(schema not in (True, {}) for schema in schemas)
