"""A close look: scores a few tools by everything that is known about where the asked words stand."""

from collections.abc import Sequence
from heapq import nlargest
from itertools import accumulate, groupby, pairwise
from operator import mul
from typing import Final, NamedTuple

from toolyard.search.postings import Entry
from toolyard.search.query import Asked
from toolyard.search.view import View
from toolyard.search_settings import SearchSettings
from toolyard.spec import ToolSpec

__all__ = ["Close", "closely"]

_TELLING: Final = 3
"""Words of a question that tell what it is about; the more are asked, the less each can be missed."""

_TRIED: Final = 5
"""The best tools, of which one must fit."""

Wanted = dict[int, list[tuple[int, float]]]


class Close(NamedTuple):
    """A tool, its score, and, for the first few, the share of the question that it answers."""

    spec: ToolSpec
    score: float
    fit: float


_Row = tuple[Entry, float, list[float]]
"""A tool, what it scores in all, and for every word."""


def closely(asked: Sequence[Asked], numbers: Sequence[int], *, view: View, settings: SearchSettings) -> list[Close]:
    """Return the tools with their scores, best first, ties by name."""
    looking = _Looking(asked, view=view, settings=settings)
    rows = [looking.at(view.postings.entries[number]) for number in numbers]
    scores = _with_clauses(rows, asked, share=settings.clause_share)
    ordered = sorted((-round(score, 5), row[0].spec.name, row[0]) for score, row in zip(scores, rows, strict=True))
    return [Close(entry.spec, -negated, looking.fit(entry) if place < _TRIED else 0.0) for place, (negated, _, entry) in enumerate(ordered)]


class _Looking:
    """One question, made ready to be held against many tools."""

    def __init__(self, asked: Sequence[Asked], *, view: View, settings: SearchSettings) -> None:
        self._size = len(asked)
        self._asked_for = sum(nlargest(_TELLING, (one.most for one in asked))) or 1.0
        self._rarities = view.rarities
        self._exact = 1 + settings.exact_bonus
        self._name_bonus = settings.name_bonus
        self._wanted: Wanted = {}
        for place, one in enumerate(asked):
            for term, weight in one.variants.items():
                self._wanted.setdefault(term, []).append((place, weight))
        self._terms = frozenset(self._wanted)
        self._said = {term: max(weight for _, weight in places) for term, places in self._wanted.items()}
        self._places = {one.word: place for place, one in enumerate(asked) if one.word >= 0}
        self._words = frozenset(self._places)
        self._pairs = [
            (one.term, other.term, settings.pair_bonus * (one.weight + other.weight))
            for one, other in pairwise(asked)
            if one.term in self._terms and other.term in self._terms
        ]

    def at(self, entry: Entry) -> _Row:
        """Return what the tool scores, in all and for every word."""
        terms, weights, got = entry.terms, entry.weights, [0.0] * self._size
        held = self._terms.intersection(terms)
        for term in held:
            weight = weights[terms.index(term)]
            for place, factor in self._wanted[term]:
                counted = weight * factor
                if counted > got[place]:  # noqa: PLR1730 - called so often that a call of `max` shows
                    got[place] = counted
        for word in self._words.intersection(entry.words):
            got[self._places[word]] *= self._exact
        score = sum(got) + self._together(entry, held)
        return entry, score * (1 + self._name_bonus * self._named(entry, held)), got

    def fit(self, entry: Entry) -> float:
        """Return the share of what the question is about that the tool speaks of, however briefly."""
        held = [0.0] * self._size
        for term in self._terms.intersection(entry.terms):
            for place, weight in self._wanted[term]:
                held[place] = max(held[place], weight)
        return sum(nlargest(_TELLING, held)) / self._asked_for

    def _together(self, entry: Entry, held: frozenset[int]) -> float:
        """Return what words that stand together in both count; the pairs are only made where there can be one."""
        pairs: set[tuple[int, int]] | None = None
        bonus = 0.0
        for first, second, counted in self._pairs:
            if first in held and second in held:
                if pairs is None:
                    pairs = set(pairwise(entry.sequence))
                if (first, second) in pairs:
                    bonus += counted
        return bonus

    def _named(self, entry: Entry, held: frozenset[int]) -> float:
        """Return the share of a name that the question says."""
        name = entry.sequence[: entry.name_words]
        if held.isdisjoint(name):
            return 0.0
        said = whole = 0.0
        for term in dict.fromkeys(name):
            rarity = self._rarities[term]
            whole += rarity
            if term in held:
                said += min(rarity, self._said[term])
        return said / whole


def _with_clauses(rows: Sequence[_Row], asked: Sequence[Asked], *, share: float) -> list[float]:
    """Return the scores mixed with those of each tool's best clause, every clause of the same worth."""
    clauses = [len(list(words)) for _, words in groupby(asked, key=lambda one: one.clause)]
    if len(clauses) == 1 or not share or not rows:
        return [score for _, score, _ in rows]
    ends = list(accumulate(clauses))
    spans = [slice(end - size, end) for end, size in zip(ends, clauses, strict=True)]
    sums = [[sum(got[span]) for span in spans] for _, _, got in rows]
    top = max(score for _, score, _ in rows)
    scales = [top / best if best else 0.0 for best in map(max, zip(*sums, strict=True))]
    return [(1 - share) * score + share * max(map(mul, parts, scales)) for (_, score, _), parts in zip(rows, sums, strict=True)]
