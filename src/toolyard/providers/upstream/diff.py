"""Differences: what an upstream offers now against what was accepted, in lines that people can read.

Nothing in a line is hidden: characters that nobody would see are written out.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import unified_diff
from typing import Any, Final, Literal, cast

import msgspec

from toolyard._internal.logfmt import is_word
from toolyard.model.envelope import encode_sorted, fingerprint
from toolyard.providers.upstream.pins import (
    Definition,
    Definitions,
    Kept,
    Key,
    Pin,
    PinnedKind,
    accepted_definition,
    changed_fields,
)
from toolyard.providers.upstream.scan import visible

__all__ = ["Difference", "FieldChange", "differences", "seen_of"]

_CONTEXT: Final = 2
_DIGITS: Final = 12


class FieldChange(msgspec.Struct, frozen=True):
    """A field that differs; lines begin with '-' for what was accepted, '+' for what is there now, and a space for what is the same.

    There are no lines if what was accepted is not kept on this machine.
    """

    field: str
    lines: tuple[str, ...] = ()


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not as it was accepted."""

    kind: PinnedKind
    name: str
    what: Literal["changed", "new", "vanished"]
    changes: tuple[FieldChange, ...] = ()

    @property
    def key(self) -> Key:
        """Return what it is about."""
        return Key(self.kind, self.name)


def differences(definitions: Definitions, pins: Mapping[Key, Pin], kept: Kept) -> list[Difference]:
    """Return everything that is not as it was accepted, by kind and name."""
    found: list[Difference] = []
    for key in sorted({*definitions, *pins}):
        now, pin = definitions.get(key), pins.get(key)
        if now is None:
            found.append(Difference(key.kind, key.name, "vanished"))
        elif pin is None:
            changes = tuple(FieldChange(field, tuple(_compared(None, value))) for field, value in now.fields.items())
            found.append(Difference(key.kind, key.name, "new", changes))
        elif pin.hash != now.hash:
            found.append(Difference(key.kind, key.name, "changed", tuple(_changes(now, pin, kept))))
    return found


def seen_of(found: Iterable[Difference], definitions: Definitions) -> str:
    """Return a short hash of what differs, by which it can be accepted as it was seen and not as it may have become since."""
    return fingerprint([(one.key, definitions[one.key].hash if one.key in definitions else None) for one in found])[:_DIGITS]


def _changes(now: Definition, pin: Pin, kept: Kept) -> Iterator[FieldChange]:
    before = accepted_definition(kept, pin.hash)
    for field in changed_fields(now, pin):
        lines = () if before is None else _compared(before.fields.get(field), now.fields.get(field))
        yield FieldChange(field, tuple(lines))


def _compared(before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, str | None) and isinstance(after, str | None):
        return _compared_texts(before, after)
    return _compared_values(before, after)


def _compared_texts(before: str | None, after: str | None) -> Iterator[str]:
    """Return the lines in which texts differ, with a few around them."""
    old, new = ([] if text is None else text.split("\n") for text in (before, after))
    for number, line in enumerate(unified_diff(old, new, n=_CONTEXT, lineterm="")):
        if not line.startswith("@@"):
            if number > 1:  # the first two name files
                yield visible(line)
        elif number > 2:  # noqa: PLR2004 - the first place needs no mark
            yield " …"


def _compared_values(before: Any, after: Any) -> Iterator[str]:
    """Return the places in which values differ, and what is there."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    for place in sorted({*old, *new}):
        if old.get(place) != new.get(place):
            yield from (f"{sign}{place}{text}" for sign, text in (("-", old.get(place)), ("+", new.get(place))) if text is not None)


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Return every value that has no others inside, as JSON, and the place where it stands."""
    shown = visible(encode_sorted(value).decode())
    if isinstance(value, dict) and value:
        for key, inner in cast("dict[str, Any]", value).items():
            name = key if is_word(key) else visible(encode_sorted(key).decode())
            yield from _leaves(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(cast("list[Any]", value)):
            yield from _leaves(inner, f"{place}[{number}]")
    elif value is not None or place:
        yield place, f"{': ' if place else ''}{shown}"
