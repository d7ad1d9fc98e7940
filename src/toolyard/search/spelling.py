"""Spelling: which known words an unknown one may be, by a slip of the keyboard or a missing space."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from toolyard.search.postings import View
from toolyard.search.stem import stem
from toolyard.search.text import Thesaurus

__all__ = ["Spelling"]

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_SHORTEST: Final = 4
_LONGEST: Final = 24
_TWO_SLIPS: Final = 8
_SECOND_SLIPS: Final = 24
_MOST: Final = 4


class Spelling:
    """Finds the words that are visible, and those of the thesaurus, that are nearly written like another."""

    def __init__(self, view: View, thesaurus: Thesaurus) -> None:
        self._view = view
        self._postings = view.postings
        self._thesaurus = thesaurus

    def near(self, word: str, *, twice: bool = True) -> list[tuple[str, float]]:
        """Return the stems of what may have been meant, with their likeness from 0 to 1, the likeliest first.

        A long word may have slipped twice, which takes longer to look for.
        """
        if not _SHORTEST <= len(word) <= _LONGEST:
            return []
        found = dict(self._parts(word))
        if not found:
            for likeness, written in _slips(word):
                self._note(written, likeness, found)
        if twice and not found and len(word) >= _TWO_SLIPS:
            for first in islice(_lost(word), _SECOND_SLIPS):
                for likeness, written in _short_slips(first):
                    self._note(written, 0.7 * likeness, found)
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_MOST]

    def _note(self, written: str, likeness: float, found: dict[str, float]) -> None:
        if self._is_held(written):
            root = stem(written)
        elif self._thesaurus.is_common(written):
            root, likeness = stem(written), likeness * 0.9
        else:
            return
        found[root] = max(likeness, found.get(root, 0.0))

    def _is_held(self, written: str) -> bool:
        number = self._postings.words.get(written)
        return number is not None and self._view.holders[self._postings.term_of[number]] > 0

    def _parts(self, word: str) -> Iterator[tuple[str, float]]:
        """Return the visible words that were joined without a space, where there are such."""
        for cut in range(len(word) - 2, 1, -1):
            if self._is_held(word[:cut]) and self._is_held(word[cut:]):
                yield stem(word[:cut]), 1.0
                yield stem(word[cut:]), 1.0
                return
        for part in self._thesaurus.parts(word):
            if self._is_held(part):
                yield stem(part), 1.0


def _lost(word: str) -> Iterator[str]:
    """Return the word with two letters swapped, or with one letter less."""
    for place in range(1, len(word)):
        yield word[: place - 1] + word[place] + word[place - 1] + word[place + 1 :]
        yield word[:place] + word[place + 1 :]


def _short_slips(word: str) -> Iterator[tuple[float, str]]:
    """Return everything that is one slip away, but for letters that are wrong: that would be very many."""
    for lost in _lost(word):
        yield 0.9, lost
    for place in range(1, len(word) + 1):
        head, tail = word[:place], word[place:]
        for letter in _LETTERS:
            yield 1.0, head + letter + tail


def _slips(word: str) -> Iterator[tuple[float, str]]:
    """Return everything that is one slip away, with how likely it is: letters swapped, lost, added or wrong."""
    for place in range(len(word) + 1):
        head, tail = word[:place], word[place:]
        first = 1.0 if place else 0.8
        if len(tail) > 1:
            yield first, head + tail[1] + tail[0] + tail[2:]
        for letter in _LETTERS:
            yield first, head + letter + tail
        if tail:
            yield 0.9 * first, head + tail[1:]
            for letter in _LETTERS:
                yield 0.8 * first, head + letter + tail[1:]
