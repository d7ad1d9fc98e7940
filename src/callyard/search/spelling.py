"""Spelling: the known words that an unknown one may be, after a typing error or a missing space."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from callyard.search.postings import View
from callyard.search.stem import stem
from callyard.search.text import Thesaurus

__all__ = ["Spelling"]

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_SHORTEST: Final = 4
_LONGEST: Final = 24
_TWO_ERRORS: Final = 8
"""Letters from which a word may have two errors."""
_FIRST_ERRORS: Final = 24
"""First errors that are tried for a second one: the number of candidates multiplies."""
_SUGGESTIONS: Final = 4


class Spelling:
    """Finds visible words and words of the thesaurus that are spelled nearly like another."""

    def __init__(self, view: View, thesaurus: Thesaurus) -> None:
        self._view = view
        self._postings = view.postings
        self._thesaurus = thesaurus

    def suggestions(self, word: str, *, twice: bool = True) -> list[tuple[str, float]]:
        """Return the stems that may have been meant, with their likelihood from 0 to 1, the likeliest first.

        With `twice`, a long word may have two errors, which takes longer.
        """
        if not _SHORTEST <= len(word) <= _LONGEST:
            return []
        found = dict(self._parts(word))
        if not found:
            for likelihood, written in _edits(word):
                self._note(written, likelihood, found)
        if twice and not found and len(word) >= _TWO_ERRORS:
            for first in islice(_losses(word), _FIRST_ERRORS):
                for likelihood, written in _short_edits(first):
                    self._note(written, 0.7 * likelihood, found)
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_SUGGESTIONS]

    def _note(self, written: str, likelihood: float, found: dict[str, float]) -> None:
        if self._is_visible(written):
            root = stem(written)
        elif self._thesaurus.is_common(written):
            root, likelihood = stem(written), likelihood * 0.9
        else:
            return
        found[root] = max(likelihood, found.get(root, 0.0))

    def _is_visible(self, written: str) -> bool:
        number = self._postings.words.get(written)
        return number is not None and self._view.tool_counts[self._postings.term_of[number]] > 0

    def _parts(self, word: str) -> Iterator[tuple[str, float]]:
        """Yield the visible words that were joined without a space, if there are any."""
        for cut in range(len(word) - 2, 1, -1):
            if self._is_visible(word[:cut]) and self._is_visible(word[cut:]):
                yield stem(word[:cut]), 1.0
                yield stem(word[cut:]), 1.0
                return
        for part in self._thesaurus.split(word):
            if self._is_visible(part):
                yield stem(part), 1.0


def _losses(word: str) -> Iterator[str]:
    """Yield the word with two letters swapped, or with one letter less."""
    for position in range(1, len(word)):
        yield word[: position - 1] + word[position] + word[position - 1] + word[position + 1 :]
        yield word[:position] + word[position + 1 :]


def _short_edits(word: str) -> Iterator[tuple[float, str]]:
    """Yield everything that is one error away, without wrong letters, which would be too many."""
    for lost in _losses(word):
        yield 0.9, lost
    for position in range(1, len(word) + 1):
        head, tail = word[:position], word[position:]
        for letter in _LETTERS:
            yield 1.0, head + letter + tail


def _edits(word: str) -> Iterator[tuple[float, str]]:
    """Yield everything that is one error away with its likelihood: letters swapped, lost, added or wrong."""
    for position in range(len(word) + 1):
        head, tail = word[:position], word[position:]
        first = 1.0 if position else 0.8
        if len(tail) > 1:
            yield first, head + tail[1] + tail[0] + tail[2:]
        for letter in _LETTERS:
            yield first, head + letter + tail
        if tail:
            yield 0.9 * first, head + tail[1:]
            for letter in _LETTERS:
                yield 0.8 * first, head + letter + tail[1:]
