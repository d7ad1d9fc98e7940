"""Invention: made-up values that fit a schema, the same for the same question.

What was asked for is said again where the answer has a place for it, so that an answer reads as one to the question.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from zlib import crc32

__all__ = ["invent"]

_BEGINNING: Final = datetime(2026, 2, 2, 8, tzinfo=UTC)
_PEOPLE: Final = ("ada", "mika", "noor", "jonas", "lucia", "tomek", "yuki", "sam")
_TITLES: Final = (
    "Weekly planning",
    "The printer on the second floor",
    "A table by the window",
    "Spring release",
    "Letters from the lake",
    "Orders that wait",
)
_SENTENCES: Final = (
    "It works again since this morning.",
    "We looked into it and found nothing unusual.",
    "Two of three are done; the last one waits for an answer.",
    "Somebody should look at this before Friday.",
)
_PLACES: Final = ("Lyon", "Annecy", "Lisbon", "Ghent", "Bergen")
_CODES: Final = frozenset({"flight", "key", "sha", "sku", "tracking"})
_WORDS: Final = ("blue", "north", "oak", "river", "small")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("artist", "assignee", "author", "lead", "manager", "name", "owner"), _PEOPLE),
    **dict.fromkeys(("goal", "message", "snippet", "text"), _SENTENCES),
    **dict.fromkeys(("subject", "title"), _TITLES),
    **dict.fromkeys(("address", "place", "region", "room"), _PLACES),
    "company": ("Moreau & Daughters", "Bakery Nord", "Lakeside Print"),
    "currency": ("EUR",),
    "version": ("2.14.0", "2.13.2"),
}

Schema = dict[str, Any]


def invent(schema: Schema, arguments: dict[str, Any], *, rows: int, seed: int = 0, name: str = "") -> Any:
    """Return a value that fits; a list has as many items as `rows`, and no more than the arguments ask for."""
    kind = schema["type"]
    if kind == "object":
        inner = cast("dict[str, Schema]", schema.get("properties", {}))
        return {key: _said(key, part, arguments) or invent(part, arguments, rows=1, seed=seed, name=key) for key, part in inner.items()}
    if kind == "array":
        count = min(rows, cast("int", arguments.get("limit", rows)))
        return [invent(schema["items"], arguments, rows=rows, seed=seed + number, name=name) for number in range(count)]
    return _KINDS[kind](schema, name, crc32(f"{name} {seed}".encode()), seed)


def _said(name: str, schema: Schema, arguments: dict[str, Any]) -> Any:
    """Return what was asked for under this name, if it can be said again."""
    given = arguments.get(name)
    return given if schema["type"] == "string" and isinstance(given, str) else None


def _text(schema: Schema, name: str, number: int, place: int) -> str:
    if "enum" in schema:
        return str(_one_of(schema["enum"], number))
    moment = _BEGINNING + timedelta(days=place % 400, minutes=number % 600)
    formats = {
        "date": moment.date().isoformat(),
        "date-time": moment.isoformat().replace("+00:00", "Z"),
        "email": f"{_one_of(_PEOPLE, number)}@example.org",
        "uri": f"https://example.org/{name}/{number % 1000}",
    }
    if "format" in schema:
        return formats[schema["format"]]
    if name in _CHOICES:
        return str(_one_of(_CHOICES[name], number))
    is_code = name.endswith("id") or name in _CODES
    return f"{name[:2]}_{number % 10_000}" if is_code else f"{_one_of(_WORDS, number)} {number % 100}"


def _integer(schema: Schema, name: str, number: int, place: int) -> int:  # noqa: ARG001 - all kinds are made alike
    return 100 * (number % 900 + 1) if name.endswith("_cents") else number % 90 + 1


def _number(schema: Schema, name: str, number: int, place: int) -> float:  # noqa: ARG001 - the same
    return number % 400 / 10


def _boolean(schema: Schema, name: str, number: int, place: int) -> bool:  # noqa: ARG001 - the same
    return number % 2 == 0


def _one_of(several: Any, number: int) -> Any:
    return several[number % len(several)]


_KINDS: Final[dict[str, Callable[[Schema, str, int, int], Any]]] = {
    "string": _text,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
}
