"""Differences between an upstream's current definitions and the accepted ones, as lines for people.

Invisible characters are escaped, so that a line hides nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

from callyard._internal.logfmt import is_identifier
from callyard.model.envelope import encode_sorted, fingerprint
from callyard.model.errors import ToolError
from callyard.providers.upstream.catalogue import Catalogue
from callyard.providers.upstream.pins import (
    Definition,
    Definitions,
    Key,
    Keyed,
    LockError,
    Pin,
    Pins,
    PinSettings,
    StoredDefinitions,
    accept,
    accepted_definition,
    changed_fields,
    read_accepted,
)
from callyard.providers.upstream.scan import Finding, scan, visible

__all__ = [
    "Comparison",
    "Difference",
    "FieldChange",
    "accept_reviewed",
    "compare",
    "compare_catalogue",
    "diff_hash",
    "differences",
]

_CONTEXT_LINES: Final = 2
_HASH_CHARACTERS: Final = 12


class FieldChange(msgspec.Struct, frozen=True):
    """A changed field; lines begin with '-' for the accepted text, '+' for the current one, and a space for both.

    There are no lines if the accepted definition is not stored on this machine.
    """

    field: str
    lines: tuple[str, ...] = ()


class Difference(Keyed, frozen=True):
    """One item whose definition is not the accepted one."""

    what: Literal["changed", "new", "vanished"]
    changes: tuple[FieldChange, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What the scan finds in the current definition."""


class Comparison(msgspec.Struct, frozen=True):
    """The differences of an upstream; with `seen`, a digest of them, a person accepts exactly what they reviewed."""

    upstream: str
    seen: str
    differences: list[Difference]


def compare(name: str, definitions: Definitions, pins: Mapping[Key, Pin], *, folder: Path) -> Comparison:
    """Compare the definitions of an upstream with the accepted ones, and scan those that differ.

    `folder` is where the upstream keeps its state.
    """
    found = differences(definitions, pins, read_accepted(folder))
    findings: dict[Key, list[Finding]] = {}
    for finding in scan(name, (definitions[one.key] for one in found if one.key in definitions)):
        findings.setdefault(Key(finding.kind, finding.name), []).append(finding)
    shown = [msgspec.structs.replace(one, findings=tuple(findings.get(one.key, ()))) for one in found]
    return Comparison(name, diff_hash(found, definitions), shown)


def compare_catalogue(
    name: str, catalogue: Catalogue | None, pins: Pins | None, settings: PinSettings, *, folder: Path
) -> Comparison | None:
    """Compare what an upstream or an API offers with what was accepted; None if nothing is known or compared.

    Raises:
        LockError: The lock is invalid.
    """
    if catalogue is None or pins is None or settings.pin == "off":
        return None
    return compare(name, pins.definitions_of(name, catalogue), pins.accepted(name), folder=folder)


def accept_reviewed(
    name: str,
    catalogue: Catalogue | None,
    pins: Pins | None,
    settings: PinSettings,
    *,
    keys: Sequence[Key],
    seen: str,
    folder: Path,
) -> list[Key]:
    """Put differences that a person reviewed into the lock, and return them; without keys, all of them.

    Raises:
        ToolError: `state_error` if something else differs now than when it was reviewed, or the lock cannot be written.
    """
    try:
        compared = compare_catalogue(name, catalogue, pins, settings, folder=folder)
        if compared is None or catalogue is None or pins is None or compared.seen != seen:
            message = f"'{name}' has changed since you looked. Look at it again."
            raise ToolError("state_error", message, reason="changed_since", may_have_run=False)
        chosen = [difference.key for difference in compared.differences if not keys or difference.key in keys]
        accept(pins.path, name, definitions=pins.definitions_of(name, catalogue), keys=chosen, folder=folder)
    except (LockError, OSError) as error:
        message = f"The lock cannot be written: {error}"
        raise ToolError("state_error", message, reason="not_written", may_have_run=False) from error
    return chosen


def differences(definitions: Definitions, pins: Mapping[Key, Pin], stored: StoredDefinitions) -> list[Difference]:
    """Return all differences, sorted by kind and name."""
    found: list[Difference] = []
    for key in sorted({*definitions, *pins}):
        current, pin = definitions.get(key), pins.get(key)
        if current is None:
            found.append(Difference(key.kind, key.name, "vanished"))
        elif pin is None:
            changes = tuple(FieldChange(field, tuple(_compare(None, value))) for field, value in current.fields.items())
            found.append(Difference(key.kind, key.name, "new", changes))
        elif pin.hash != current.hash:
            found.append(Difference(key.kind, key.name, "changed", tuple(_changes(current, pin, stored))))
    return found


def diff_hash(found: Iterable[Difference], definitions: Definitions) -> str:
    """Return a short hash of differences, so that somebody can accept exactly what they reviewed."""
    current = [
        (difference.key, definitions[difference.key].hash if difference.key in definitions else None)
        for difference in found
    ]
    return fingerprint(current)[:_HASH_CHARACTERS]


def _changes(current: Definition, pin: Pin, stored: StoredDefinitions) -> Iterator[FieldChange]:
    accepted = accepted_definition(stored, pin.hash)
    for field in changed_fields(current, pin):
        lines = () if accepted is None else _compare(accepted.fields.get(field), current.fields.get(field))
        yield FieldChange(field, tuple(lines))


def _compare(before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, str | None) and isinstance(after, str | None):
        return _compare_texts(before, after)
    return _compare_values(before, after)


def _compare_texts(before: str | None, after: str | None) -> Iterator[str]:
    old, new = ([] if text is None else text.split("\n") for text in (before, after))
    for number, line in enumerate(unified_diff(old, new, n=_CONTEXT_LINES, lineterm="")):
        if not line.startswith("@@"):
            if number > 1:  # the first two name files
                yield visible(line)
        elif number > 2:  # noqa: PLR2004 - the first hunk needs no mark
            yield " …"


def _compare_values(before: Any, after: Any) -> Iterator[str]:
    """Return the paths at which JSON values differ, with the values there."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path):
            yield from (
                f"{sign}{path}{text}" for sign, text in (("-", old.get(path)), ("+", new.get(path))) if text is not None
            )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Return every leaf of a JSON value: its path, and its text."""
    text = visible(encode_sorted(value).decode())
    if isinstance(value, dict) and value:
        for key, inner in cast("dict[str, Any]", value).items():
            name = key if is_identifier(key) else visible(encode_sorted(key).decode())
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(cast("list[Any]", value)):
            yield from _leaves(inner, f"{path}[{number}]")
    elif value is not None or path:
        yield path, f"{': ' if path else ''}{text}"
