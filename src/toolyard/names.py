"""Names: which known names are near one that was got wrong, however many there are."""

import re
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from difflib import SequenceMatcher

__all__ = ["Names"]

_WORD: Final = re.compile(r"[a-z]+|[0-9]+")
_LOOKED_AT: Final = 3000
_CANDIDATES: Final = 60
_NEAR: Final = 20
_ALIKE: Final = 0.6
_LONGEST: Final = 128


class Names:
    """Known names, found by the beginnings of their words; taken apart when somebody first gets one wrong."""

    def __init__(self) -> None:
        self._by_beginning: dict[str, dict[str, None]] = {}
        self._whole: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Remember a name."""
        self._whole[name] = None

    def remove(self, name: str) -> None:
        """Forget a name."""
        if name in self._whole:
            del self._whole[name]
            return
        for beginning in _beginnings(name):
            names = self._by_beginning[beginning]
            names.pop(name, None)
            if not names:
                del self._by_beginning[beginning]

    def near(self, name: str, allows: Callable[[str], bool] = bool) -> list[str]:
        """Return the known names that are allowed and may have been meant, nearest first, ties by name."""
        if len(name) > _LONGEST:
            return []
        likeness = _Likeness(name)
        scored = [(-likeness.to(known), known) for known in islice(filter(allows, self._candidates(name)), _CANDIDATES)]
        return [known for score, known in sorted(scored) if -score >= _ALIKE][:_NEAR]

    def _candidates(self, name: str) -> list[str]:
        self._take_apart()
        found: dict[str, int] = {}
        for beginning in _beginnings(name):
            for known in islice(self._by_beginning.get(beginning, ()), _LOOKED_AT):
                found[known] = found.get(known, 0) + 1
        return sorted(found, key=lambda known: (-found[known], known))

    def _take_apart(self) -> None:
        for name in self._whole:
            for beginning in _beginnings(name):
                self._by_beginning.setdefault(beginning, {})[name] = None
        self._whole.clear()


class _Likeness:
    """How alike names are to one name; words in another order count as nearly the same."""

    def __init__(self, name: str) -> None:
        from difflib import SequenceMatcher  # noqa: PLC0415 - only for what somebody got wrong

        self._straight = SequenceMatcher(None, "", name.lower(), autojunk=False)
        self._sorted = SequenceMatcher(None, "", " ".join(sorted(_words(name))), autojunk=False)

    def to(self, known: str) -> float:
        """Return a number from 0 to 1, or 0 where it would be too little to count."""
        return max(_ratio(self._straight, known.lower()), _ratio(self._sorted, " ".join(sorted(_words(known)))) * 0.95)


def _ratio(matcher: "SequenceMatcher[str]", text: str) -> float:
    """Return the ratio, having asked first what costs less."""
    matcher.set_seq1(text)
    if matcher.real_quick_ratio() < _ALIKE or matcher.quick_ratio() < _ALIKE:
        return 0.0
    return matcher.ratio()


def _words(name: str) -> list[str]:
    return _WORD.findall(name.lower())


def _beginnings(name: str) -> set[str]:
    """Return the first letter pairs of the words, and of the words without their first letter, for one that is mistyped."""
    words = _words(name)
    return {word[:2] for word in words} | {"~" + word[1:3] for word in words if len(word) > 2}  # noqa: PLR2004 - a pair after the first
