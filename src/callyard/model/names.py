"""Near names: which of the known names a mistyped one probably meant."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

__all__ = ["LIKE", "Likeness", "closest_name", "did_you_mean", "words_in", "words_of"]

LIKE: Final = 0.6
"""Likeness from which a name may have been meant."""
_CHARACTERS: Final = 128
"""Longest name that is compared: the cost grows with the square of the length."""


class Likeness:
    """Compares names with one name, ignoring case; the same words in another order are nearly equal."""

    def __init__(self, name: str) -> None:
        self._is_comparable = len(name) <= _CHARACTERS
        name = name[:_CHARACTERS]  # because the matchers index all of it
        self._letters = SequenceMatcher(None, "", name.lower(), autojunk=False)
        self._words = SequenceMatcher(None, "", " ".join(sorted(words_of(name))), autojunk=False)

    def to(self, known: str) -> float:
        """Return a number from 0 to 1, or 0 where it is too small to matter."""
        if not self._is_comparable:
            return 0.0
        words = words_of(known)  # empty for other alphabets, and two empty texts would be equal
        return max(
            _ratio(self._letters, known.lower()), _ratio(self._words, " ".join(sorted(words))) * 0.95 if words else 0.0
        )


def closest_name(name: str, known: Iterable[str], *, cutoff: float = LIKE) -> str | None:
    """Return the known name that was probably meant, or None."""
    likeness = Likeness(name)
    score, closest = max(((likeness.to(other), other) for other in known), default=(0.0, ""))
    return closest if score >= cutoff else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean '…'?" with the known name that was probably meant, or an empty text."""
    closest = closest_name(name, known)
    return f" Did you mean '{closest}'?" if closest else ""


def words_of(name: str) -> list[str]:
    """Return the words and numbers in a name, in lower case."""
    return re.findall(r"[a-z]+|[0-9]+", name.lower())


def _ratio(matcher: "SequenceMatcher[str]", text: str) -> float:
    matcher.set_seq1(text)
    return 0.0 if matcher.real_quick_ratio() < LIKE or matcher.quick_ratio() < LIKE else matcher.ratio()


def words_in(text: str) -> frozenset[str]:
    """Return the words of a text, for long tables of names."""
    return frozenset(text.split())
