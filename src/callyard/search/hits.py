"""What every search strategy shares: hits and pages, the filter of a search, and tools by name.

It ranks nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from callyard.model.spec import Operation, ToolSpec
from callyard.search.text import fold, words_of

__all__ = [
    "FUSED",
    "QUERIES",
    "RULES",
    "Allows",
    "Filter",
    "Found",
    "FusedHit",
    "Hit",
    "closest_namespaces",
    "exact_match",
    "fuse",
    "page",
    "search_names",
]

_CLOSEST: Final = 5
RULES: Final = 32
"""Rules of which an index remembers what they hide, until its tools change."""
Allows = Callable[[ToolSpec], bool]
"""Whether a tool exists for the caller; the result is cached, so it must always be the same for a tool."""


class Hit(msgspec.Struct, frozen=True):
    """One tool that was found, its score, and briefly why."""

    spec: ToolSpec
    score: float
    why: str


class FusedHit(msgspec.Struct, frozen=True):
    """One tool that was found by several queries, and the numbers of those that it fits, from 1."""

    hit: Hit
    serves: tuple[int, ...]


QUERIES: Final = 8
"""Queries that one search may have."""
FUSED: Final = 100
"""Hits of each query that are fused."""
_TOGETHER: Final = 6.0
"""How much the ranking of all queries together counts, against 1 for that of each: the best of values from 1 to 6."""
_SERVES: Final = 5
"""A tool serves the queries that rank it this high."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One page of hits."""

    hits: list[Hit]
    total: int | None = None
    """How many tools fit in all, where that is known."""
    more: bool = False
    """Whether another page follows."""
    closest: list[str] = []
    """The closest namespaces, if nothing fits."""


def page(ordered: Iterable[Hit], *, offset: int, limit: int) -> Found:
    """Return one page of ordered hits; the total is known if the page is the last one."""
    offset, limit = max(offset, 0), max(limit, 0)
    seen = list(islice(ordered, offset + limit + 1))
    more = len(seen) > offset + limit
    return Found(hits=seen[offset : offset + limit], total=None if more else len(seen), more=more)


def fuse(together: Sequence[Hit], rankings: Sequence[Sequence[Hit]]) -> list[FusedHit]:
    """Return the hits of several queries in one order, by their ranks for all queries together and for each.

    A rank counts as its reciprocal, so that the first tool of each query comes before what fits none of them well.
    """
    weights: dict[str, float] = {}
    best: dict[str, tuple[int, int, Hit]] = {}
    serves: dict[str, list[int]] = {}
    for number, ranking in enumerate((together, *rankings)):
        for rank, hit in enumerate(ranking, 1):
            name = hit.spec.name
            weights[name] = weights.get(name, 0.0) + (1.0 if number else _TOGETHER) / rank
            if number:
                best[name] = min(best.get(name, (rank, number, hit)), (rank, number, hit), key=lambda one: one[:2])
                if rank <= _SERVES:
                    serves.setdefault(name, []).append(number)
            else:
                best[name] = (FUSED + rank, 0, hit)
    ordered = sorted(weights, key=lambda name: (-weights[name], *best[name][:2], name))
    return [
        FusedHit(best[name][2], tuple(serves.get(name, [best[name][1]] if best[name][1] else []))) for name in ordered
    ]


def exact_match(specs: Mapping[str, ToolSpec], query: str, where: Allows) -> ToolSpec | None:
    """Return the tool whose name is the query, ignoring case; one of the same case first."""
    wanted = query.strip()
    lower = wanted.lower()
    names = sorted((name for name in specs if name.lower() == lower), key=lambda name: (name != wanted, name))
    return next((specs[name] for name in names if where(specs[name])), None)


def search_names(specs: Mapping[str, ToolSpec], query: str, where: Allows) -> Iterator[Hit]:
    """Yield the tools whose names hold every word of the query, an exact match first; all if it is empty."""
    query = query.strip()
    words = dict.fromkeys(words_of(fold(query)))
    quoted = ", ".join(f"'{word}'" for word in words or (query,))
    why = f"{quoted} in name" if query else "all tools by name"
    exact = exact_match(specs, query, where)
    if exact is not None:
        yield Hit(exact, 0.0, why)
    for name in filter(_name_matcher(words), sorted(specs)) if words or not query else ():
        spec = specs[name]
        if spec is not exact and where(spec):
            yield Hit(spec, 0.0, why)


def _name_matcher(words: Collection[str]) -> Callable[[str], bool]:
    """Return a function that checks whether a name holds all words."""
    alone = [re.compile(rf"{re.escape(word)}(?![^\W\d_])(?<![^\W\d_]{re.escape(word)})").search for word in words]

    def matches(name: str) -> bool:
        lower = name.lower()
        if not all(map(lower.__contains__, words)):
            return False
        if all(search(lower) for search in alone):
            return True
        return lower != name and set(words).issubset(words_of(fold(name)))

    return matches


def closest_namespaces(scored: Iterable[tuple[ToolSpec, float]], visible: Iterable[ToolSpec]) -> list[str]:
    """Return the namespaces with the best scores, or else those with the most visible tools."""
    sums: dict[str, float] = {}
    for spec, score in scored:
        sums[spec.source] = sums.get(spec.source, 0.0) + score
    sums.pop("", None)
    counts = sums or Counter(spec.source for spec in visible if spec.source)
    return sorted(counts, key=lambda source: (-counts[source], source))[:_CLOSEST]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that a search may return: those of a rule, narrowed by namespace and operation."""

    allows: Allows
    namespace: str | None = None
    operation: Operation | None = None

    def __call__(self, spec: ToolSpec) -> bool:
        """Return whether the tool may be returned; the cheap conditions are checked first."""
        return self.is_asked_for(spec) and self.allows(spec)

    def is_asked_for(self, spec: ToolSpec) -> bool:
        """Return whether the tool is of the namespace and the operation, allowed or not."""
        return (self.namespace is None or spec.source == self.namespace) and (
            self.operation is None or spec.operation == self.operation
        )
