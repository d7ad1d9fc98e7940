"""Outlines: JSON as people read it, in lines that fit a width; short facts share a line, and long texts are wrapped."""

import json
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Final, cast

from toolyard.cli.terminal import Painted, Part

__all__ = ["Line", "outline"]

Line = tuple[Part, ...]

_SHORT: Final = 36
_NARROWEST: Final = 12
_GAP: Final = "   "


def outline(value: Any, width: int) -> Iterator[Line]:
    """Return the lines of a value."""
    if isinstance(value, dict) and value:
        yield from _pairs(cast("dict[str, Any]", value), width)
    elif isinstance(value, list) and _is_nested(value):
        for item in cast("list[Any]", value):
            mark: Part = Painted("- ", "faint")
            for line in outline(item, width - 2):
                yield (mark, *line)
                mark = "  "
    else:
        yield from ((text,) for text in _wrapped(_flat(value), width))


def _pairs(pairs: dict[str, Any], width: int) -> Iterator[Line]:
    """Return the lines of an object; facts that are short and stand together share a line."""
    shared: list[Part] = []
    used = 0
    for key, value in pairs.items():
        text = f"{key}: {_flat(value)}"
        if len(text) <= min(_SHORT, width):
            if shared and used + len(_GAP) + len(text) > width:
                yield tuple(shared)
                shared, used = [], 0
            used += len(text) + (len(_GAP) if shared else 0)
            shared += [*([_GAP] if shared else []), Painted(f"{key}: ", "faint"), _flat(value)]
            continue
        if shared:
            yield tuple(shared)
            shared, used = [], 0
        yield from _pair(key, value, width)
    if shared:
        yield tuple(shared)


def _pair(key: str, value: Any, width: int) -> Iterator[Line]:
    """Return the lines of one fact: on one if there is room, wrapped if it is text, or else below its name."""
    name, flat = Painted(f"{key}: ", "faint"), _flat(value)
    if len(key) + 2 + len(flat) > width and _is_nested(value):
        yield (Painted(f"{key}:", "faint"),)
        yield from (("  ", *line) for line in outline(value, width - 2))
        return
    first, *rest = _wrapped(flat, width - len(key) - 2)
    yield (name, first)
    yield from ((" " * (len(key) + 2), text) for text in rest)


def _is_nested(value: Any) -> bool:
    """Return whether a value has parts that have parts, which lines of their own make plain."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in cast("list[Any]", value)))


def _flat(value: Any) -> str:
    return value if value and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(width, _NARROWEST), break_on_hyphens=False)
