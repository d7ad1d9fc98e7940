"""Values: where a question holds addresses, quoted words and numbers, which are seldom what a tool is called."""

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["find_values"]

_UNSPACED: Final = re.compile(r"\S+")
_QUOTED: Final = re.compile(r"\"[^\"\n]{1,200}\"|(?<!\w)'[^'\n]{1,200}'(?!\w)|`[^`\n]{1,200}`")
_LINK: Final = re.compile(r"(?<!\w)\w++://\S")
_MARK: Final = re.compile(rf"[\"'`]|{_LINK.pattern}")
_TO_LAST_DIGIT: Final = re.compile(r"\S*\d")


def find_values(text: str) -> Iterator[tuple[int, int]]:
    """Return where they begin and end; what one is in lasts to the next space, unless it is quoted.

    Every stretch between spaces is looked over once for what makes the rest of it a value, and then from mark to mark, so that
    the work grows with the text and no faster.
    """
    place = 0
    while stretch := _UNSPACED.search(text, place):
        place, end = stretch.span()
        last_at, last_digit = _last_at(text, place, end), _last_digit(text, place, end)
        while place < end:
            quoted = _QUOTED.match(text, place)
            if place < last_at or _LINK.match(text, place) or (quoted is None and place <= last_digit):
                last = end
            elif quoted is not None:
                last = quoted.end()
            else:
                mark = _MARK.search(text, place + 1, end)
                place = mark.start() if mark else end
                continue
            yield place, last
            place = last


def _last_at(text: str, begin: int, end: int) -> int:
    """Return where the sign of the last mail address stands that there may be, or -1: something and a dot must follow it."""
    dot = text.rfind(".", begin, end - 1)
    return text.rfind("@", begin, max(begin, dot - 1))


def _last_digit(text: str, begin: int, end: int) -> int:
    found = _TO_LAST_DIGIT.match(text, begin, end)
    return found.end() - 1 if found else -1
