"""Definitions: what an upstream says of each thing it has, as far as that is pinned, and the hash that stands for it.

What models and people read is pinned; what changes by itself, such as the size of a resource, is not.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from toolyard.envelope import encode_sorted
from toolyard.providers.upstream.catalogue import Catalogue, Item

__all__ = ["Definition", "Definitions", "Key", "PinnedKind", "definitions_of", "hash_of"]

PinnedKind = Literal["instructions", "prompt", "resource", "template", "tool"]
"""What can be pinned; the instructions are there once, and have no name."""

_SHORT: Final = 8
_LISTED: Final = ("name", "title", "description", "mimeType", "annotations")
_FIELDS: Final[Mapping[PinnedKind, tuple[str, ...]]] = MappingProxyType(
    {
        "prompt": ("title", "description", "arguments"),
        "resource": _LISTED,
        "template": _LISTED,
        "tool": ("title", "description", "inputSchema", "outputSchema", "annotations"),
    }
)
_NAMED_BY: Final[Mapping[PinnedKind, str]] = MappingProxyType(
    {
        "prompt": "name",
        "resource": "uri",
        "template": "uriTemplate",
        "tool": "name",
    }
)
_VOLATILE: Final = "lastModified"


class Key(NamedTuple):
    """What a definition is of: the name is the upstream's own, or a URI."""

    kind: PinnedKind
    name: str

    def __str__(self) -> str:
        """Return it as sentences have it."""
        return f"{self.kind} '{self.name}'" if self.name else self.kind


class Definition(msgspec.Struct, frozen=True, dict=True):
    """What an upstream says of one thing it has."""

    kind: PinnedKind
    name: str
    fields: dict[str, Any]
    """The fields that are pinned and there, in the words of MCP."""

    @property
    def key(self) -> Key:
        """Return what it is of."""
        return Key(self.kind, self.name)

    @cached_property
    def hash(self) -> str:
        """Return what stands for all of it."""
        return hash_of(self)

    def field_hashes(self) -> dict[str, str]:
        """Return what tells which fields changed; short, because nothing is decided by it."""
        return {name: hash_of(value)[:_SHORT] for name, value in sorted(self.fields.items())}


Definitions = Mapping[Key, Definition]


def hash_of(value: object) -> str:
    """Return the hash of something that can become JSON, whatever the order of its keys."""
    return sha256(encode_sorted(value)).hexdigest()


def definitions_of(catalogue: Catalogue) -> Definitions:
    """Return everything in a catalogue that can be pinned."""
    found = {Key("instructions", ""): Definition("instructions", "", {"text": catalogue.instructions})}
    listed: tuple[tuple[PinnedKind, Iterable[Item]], ...] = (
        ("prompt", catalogue.prompts),
        ("resource", catalogue.resources),
        ("template", catalogue.templates),
        ("tool", catalogue.tools),
    )
    for kind, items in listed:
        for item in items:
            name = item.get(_NAMED_BY[kind])
            if isinstance(name, str) and name:  # anything else cannot be published
                one = Definition(kind, name, _fields(kind, item))
                found[one.key] = _joined(found[one.key], one) if one.key in found else one
    return found


def _fields(kind: PinnedKind, item: Item) -> dict[str, Any]:
    fields = {name: item[name] for name in _FIELDS[kind] if item.get(name) is not None}
    notes = fields.get("annotations")
    if kind in {"resource", "template"} and isinstance(notes, dict) and _VOLATILE in notes:
        fields["annotations"] = {name: note for name, note in notes.items() if name != _VOLATILE}  # pyright: ignore[reportUnknownVariableType] - it is any JSON
    return fields


def _joined(first: Definition, other: Definition) -> Definition:
    """Return two definitions of one name as one, because which of them is published depends on what else is wrong with them."""
    others = [*first.fields.get("duplicates", []), other.fields]
    return Definition(first.kind, first.name, {**first.fields, "duplicates": others})
