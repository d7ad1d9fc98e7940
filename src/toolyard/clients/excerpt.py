"""Excerpts: the lines of a file that a change makes differ, as they may be shown."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from toolyard.clients.secrets import hidden_text

__all__ = ["excerpt"]

_LOOK_BACK: Final = 20
"""Lines before an excerpt that are read, too, because one may tell that the next is secret."""


def excerpt(before: str, after: str) -> tuple[int, list[str]]:
    """Return the number of the first line that differs, and the lines from there to the last, with one around them and signs in front."""
    old, new = _lines(before), _lines(after)
    same = _alike(old, new)
    end = min(_alike(old[::-1], new[::-1]), len(old) - same, len(new) - same)
    start = max(same - _LOOK_BACK, 0)
    above = _hidden(old[start:same])[-1:]
    gone, come = (_hidden(lines[start : len(lines) - end])[same - start :] for lines in (old, new))
    below = _hidden(new[start : len(new) - end + 1])[len(new) - end - start :] if end else []
    return same + 1, [*_signed(" ", above), *_signed("-", gone), *_signed("+", come), *_signed(" ", below)]


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _hidden(lines: Sequence[str]) -> list[str]:
    return hidden_text("\n".join(lines)).split("\n") if lines else []


def _signed(sign: str, lines: Sequence[str]) -> list[str]:
    return [f"{sign}{line}".rstrip() for line in lines]
