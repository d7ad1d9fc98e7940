"""A close look: scores a few tools by everything that is known about where the asked words stand."""

from collections.abc import Sequence
from heapq import nlargest
from itertools import pairwise
from operator import mul
from typing import Final, NamedTuple

from toolyard.search.postings import Entry, Postings
from toolyard.search.query import Asked
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


class _Row(NamedTuple):
    entry: Entry
    score: float
    got: list[float]


def closely(asked: Sequence[Asked], numbers: Sequence[int], *, postings: Postings, settings: SearchSettings) -> list[Close]:
    """Return the tools with their scores, best first, ties by name."""
    looking = _Looking(asked, postings=postings, settings=settings)
    rows = [looking.at(postings.entries[number]) for number in numbers]
    scores = _with_clauses(rows, asked, share=settings.clause_share)
    ordered = sorted(zip(scores, rows, strict=True), key=lambda found: (-round(found[0], 5), found[1].entry.spec.name))
    return [
        Close(row.entry.spec, round(score, 5), looking.fit(row.entry) if place < _TRIED else 0.0)
        for place, (score, row) in enumerate(ordered)
    ]


class _Looking:
    """One question, made ready to be held against many tools."""

    def __init__(self, asked: Sequence[Asked], *, postings: Postings, settings: SearchSettings) -> None:
        self._size = len(asked)
        self._asked_for = sum(nlargest(_TELLING, (one.most for one in asked))) or 1.0
        self._postings = postings
        self._exact = 1 + settings.exact_bonus
        self._name_bonus = settings.name_bonus
        self._rarities: dict[int, float] = {}
        self._wanted: Wanted = {}
        for place, one in enumerate(asked):
            for term, weight in one.variants.items():
                self._wanted.setdefault(term, []).append((place, weight))
        self._words = {one.word: place for place, one in enumerate(asked) if one.word >= 0}
        self._pairs = {
            (one.term, other.term): settings.pair_bonus * (one.weight + other.weight)
            for one, other in pairwise(asked)
            if one.term >= 0 and other.term >= 0
        }

    def at(self, entry: Entry) -> _Row:
        """Return what the tool scores, in all and for every word."""
        wanted, got = self._wanted, [0.0] * self._size
        for term, weight in zip(entry.terms, entry.weights, strict=True):
            if term in wanted:
                for place, factor in wanted[term]:
                    got[place] = max(got[place], weight * factor)
        for word in self._words.keys() & set(entry.sequence):
            got[self._words[word]] *= self._exact
        terms = list(map(self._postings.term_of.__getitem__, entry.sequence))
        score = sum(got) + self._together(terms)
        return _Row(entry, score * (1 + self._name_bonus * self._named(terms[: entry.name_words])), got)

    def fit(self, entry: Entry) -> float:
        """Return the share of what the question is about that the tool speaks of, however briefly."""
        held = [0.0] * self._size
        for term in self._wanted.keys() & set(entry.terms):
            for place, weight in self._wanted[term]:
                held[place] = max(held[place], weight)
        return sum(nlargest(_TELLING, held)) / self._asked_for

    def _together(self, terms: list[int]) -> float:
        """Return what words that stand together in both count; the pairs are only made where there can be one."""
        present = set(terms)
        possible = [pair for pair in self._pairs if pair[0] in present and pair[1] in present]
        if not possible:
            return 0.0
        pairs = set(pairwise(terms))
        return sum(self._pairs[pair] for pair in possible if pair in pairs)

    def _named(self, terms: list[int]) -> float:
        """Return the share of a name that the question says."""
        said = whole = 0.0
        for term in dict.fromkeys(terms):
            rarity = self._rarities.get(term)
            if rarity is None:
                rarity = self._rarities[term] = self._postings.rarity(term)
            whole += rarity
            if term in self._wanted:
                said += min(rarity, max(weight for _, weight in self._wanted[term]))
        return said / whole if whole else 0.0


def _with_clauses(rows: Sequence[_Row], asked: Sequence[Asked], *, share: float) -> list[float]:
    """Return the scores mixed with those of each tool's best clause, every clause of the same worth."""
    clauses = 1 + max(one.clause for one in asked)
    if clauses == 1 or not share or not rows:
        return [row.score for row in rows]
    sums: list[list[float]] = []
    for row in rows:
        parts = [0.0] * clauses
        for one, got in zip(asked, row.got, strict=True):
            parts[one.clause] += got
        sums.append(parts)
    top = max(row.score for row in rows)
    scales = [top / best if best else 0.0 for best in map(max, zip(*sums, strict=True))]
    return [(1 - share) * row.score + share * max(map(mul, parts, scales)) for row, parts in zip(rows, sums, strict=True)]
