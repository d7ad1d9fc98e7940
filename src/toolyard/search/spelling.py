"""Spelling: which known words an unknown one may be, by a slip of the keyboard or a missing space."""

from collections.abc import Iterator
from typing import Final

from toolyard.search.postings import Postings
from toolyard.search.stem import stem
from toolyard.search.thesaurus import Thesaurus

__all__ = ["Spelling"]

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_SHORTEST: Final = 4
_LONGEST: Final = 24
_TWO_SLIPS: Final = 8
_MOST: Final = 4
_LOOKED_AT: Final = 400


class Spelling:
    """Finds the words of an index, and of the thesaurus, that are nearly written like another."""

    def __init__(self, postings: Postings, thesaurus: Thesaurus) -> None:
        self._postings = postings
        self._thesaurus = thesaurus

    def near(self, word: str) -> list[tuple[str, float]]:
        """Return the stems of what may have been meant, with their likeness from 0 to 1, the likeliest first."""
        if not _SHORTEST <= len(word) <= _LONGEST:
            return []
        parts = self._parts(word)
        if parts:
            return parts
        found: dict[str, float] = {}
        for likeness, written in _slips(word):
            root = self._known(written)
            if root is not None and likeness > found.get(root, 0.0):
                found[root] = likeness
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_MOST]

    def _known(self, written: str) -> str | None:
        number = self._postings.words.get(written)
        if number is not None and self._postings.tools[self._postings.term_of[number]]:
            return stem(written)
        return None

    def _parts(self, word: str) -> list[tuple[str, float]]:
        return []


def _slips(word: str) -> Iterator[tuple[float, str]]:
    """Return everything that is one slip away: letters swapped, lost, added or wrong."""
    for place in range(len(word) + 1):
        head, tail = word[:place], word[place:]
        first = 0.8 if place == 0 else 1.0
        if len(tail) > 1:
            yield first, head + tail[1] + tail[0] + tail[2:]
        for letter in _LETTERS:
            yield first, head + letter + tail
        if tail:
            yield 0.9 * first, head + tail[1:]
            for letter in _LETTERS:
                yield 0.8 * first, head + letter + tail[1:]
