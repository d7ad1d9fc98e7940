"""Listings: the tools of an index by name, for questions that words cannot answer.

Every strategy has one; it ranks nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from toolyard.search.words import plain, read_words, split_word
from toolyard.spec import ToolSpec

__all__ = ["Allows", "Found", "Hit", "Listing", "closest", "page"]

_CLOSEST: Final = 5

Allows = Callable[[ToolSpec], bool]
"""Whether a tool exists for whoever asks; it must always say the same of a tool, because what it said is remembered."""


class Hit(msgspec.Struct, frozen=True):
    """One tool that was found, how well it fits, and briefly why."""

    spec: ToolSpec
    score: float
    why: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One page of hits; the closest namespaces are named when nothing fits."""

    hits: list[Hit]
    total: int | None = None
    """How many fit in all, where that is known."""
    more: bool = False
    """Whether another page follows."""
    closest: list[str] = []


def page(ordered: Iterable[Hit], *, offset: int, limit: int) -> Found:
    """Return one page of hits that come in their order; the total is known if they end with it."""
    offset, limit = max(offset, 0), max(limit, 0)
    seen = list(islice(ordered, offset + limit + 1))
    more = len(seen) > offset + limit
    return Found(hits=seen[offset : offset + limit], total=None if more else len(seen), more=more)


class Listing:
    """The tools of an index, by name."""

    def __init__(self) -> None:
        self._specs: dict[str, ToolSpec] = {}
        self._lower: dict[str, tuple[str, ...]] = {}
        """The names that differ in their capitals alone, under what they share."""
        self._names: list[str] | None = None

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name."""
        self.remove(spec.name)
        self._specs[spec.name] = spec
        lower = spec.name.lower()
        self._lower[lower] = tuple(sorted((*self._lower.get(lower, ()), spec.name)))
        self._names = None

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        if self._specs.pop(name, None) is None:
            return
        lower = name.lower()
        others = tuple(other for other in self._lower.pop(lower) if other != name)
        if others:
            self._lower[lower] = others
        self._names = None

    def named(self, query: str, admits: Allows) -> ToolSpec | None:
        """Return the tool that has the query for its name, whatever its capitals; one that is written alike before others."""
        wanted = query.strip()
        names = sorted(self._lower.get(wanted.lower(), ()), key=lambda name: name != wanted)
        return next((spec for spec in map(self._specs.__getitem__, names) if admits(spec)), None)

    def by_name(self, query: str, admits: Allows) -> Iterator[Hit]:
        """Return the tools whose names hold every word of the query, one that is named by it first; all if it is empty."""
        if self._names is None:
            self._names = sorted(self._specs)
        wanted = query.strip()
        words = dict.fromkeys(_words_of(wanted))
        said = ", ".join(f"'{word}'" for word in words or (wanted,))
        why = f"{said} in name" if wanted else "all tools by name"
        exact = self.named(wanted, admits)
        if exact is not None:
            yield Hit(exact, 0.0, why)
        for name in filter(_holding(words), self._names) if words or not wanted else ():
            spec = self._specs[name]
            if spec is not exact and admits(spec):
                yield Hit(spec, 0.0, why)


def _words_of(text: str) -> list[str]:
    return [word for written in read_words(plain(text)) for word in split_word(written)]


def _holding(words: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that says whether a name holds all words; it takes apart only names that may hold them behind capitals."""
    # Where a word stands is looked for before what stands around it, because that is quick.
    alone = [(word, re.compile(rf"{re.escape(word)}(?![^\W\d_])(?<![^\W\d_]{re.escape(word)})").search) for word in words]

    def holds(name: str) -> bool:
        lower = name.lower()
        for word, search in alone:
            if word not in lower:
                return False
            if not search(lower):
                return lower != name and set(words).issubset(_words_of(name))
        return True

    return holds


def closest(scored: Iterable[tuple[ToolSpec, float]], visible: Iterable[ToolSpec]) -> list[str]:
    """Return the namespaces that have the most of the tools that nearly fit, or else of all that are visible."""
    sums: dict[str, float] = {}
    for spec, score in scored:
        sums[spec.source] = sums.get(spec.source, 0.0) + score
    sums.pop("", None)
    counts = sums or Counter(spec.source for spec in visible if spec.source)
    return sorted(counts, key=lambda source: (-counts[source], source))[:_CLOSEST]
