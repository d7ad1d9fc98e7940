"""The lexical strategy: ranks by words, their forms, their neighbours in meaning and where they stand.

It reads the rare words of a question first, takes the tools that hold them, and looks at the best of these closely. What is not
allowed is left out before the best are taken, so no page is short and nothing shows through.
"""

from collections.abc import Iterator
from heapq import nlargest
from itertools import islice, repeat
from operator import mul
from typing import Final

from toolyard.search.closely import Close, closely
from toolyard.search.listing import Allows, Found, Hit, Listing, narrowed, page
from toolyard.search.postings import Postings
from toolyard.search.query import Asked, read_query
from toolyard.search.reasons import explain
from toolyard.search.settings import SearchSettings
from toolyard.search.spelling import Spelling
from toolyard.search.thesaurus import load_thesaurus
from toolyard.spec import Operation, ToolSpec

__all__ = ["Lexical"]

_WIDER: Final = 16

Scores = dict[int, float]


class Lexical:
    """An index of words."""

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings
        self.listing = Listing()
        self.postings = Postings(settings, thesaurus := load_thesaurus())
        self._thesaurus = thesaurus
        self._spelling = Spelling(self.postings, thesaurus)
        self._waiting: dict[str, ToolSpec] = {}

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name; its words are read before the next search."""
        self.listing.add(spec)
        self._waiting[spec.name] = spec

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        self.listing.remove(name)
        self._waiting.pop(name, None)
        self.postings.remove(name)

    def prepare(self) -> None:
        """Read the words of the tools that came since the last search."""
        for spec in self._waiting.values():
            self.postings.add(spec)
        self._waiting.clear()

    def search(
        self, query: str, *, allows: Allows, namespace: str | None = None, operation: Operation | None = None, offset: int = 0, limit: int = 5
    ) -> Found:
        """Return the tools that fit best, of those that are allowed."""
        self.prepare()
        admits = narrowed(allows, namespace=namespace, operation=operation)
        asked = self.read(query)
        if not asked:
            return page(self.listing.by_name(query[: self.settings.query_characters], admits), offset=offset, limit=limit)
        blocks = self._blocks(asked, admits)
        first = next(blocks, [])
        exact = self.listing.named(query)
        if exact is not None and not admits(exact):
            exact = None
        if exact is None and (not first or first[0].fit < self.settings.fit):
            return Found(hits=[], total=0, closest=self.listing.closest(((close.spec, close.score) for close in first), admits))
        found = page(self._hits(exact, first, blocks), offset=offset, limit=limit)
        explained = [Hit(hit.spec, hit.score, explain(hit.spec, asked, self.postings)) for hit in found.hits]
        return Found(hits=explained, total=found.total, more=found.more)

    def read(self, query: str) -> list[Asked]:
        """Return what a query asks for."""
        return read_query(query, postings=self.postings, settings=self.settings, thesaurus=self._thesaurus, spelling=self._spelling)

    def _hits(self, exact: ToolSpec | None, first: list[Close], blocks: Iterator[list[Close]]) -> Iterator[Hit]:
        """Return all hits in order: a tool that is named first, and no score above the one before it."""
        score = first[0].score if first else 0.0
        if exact is not None:
            yield Hit(exact, score, "")
        block: list[Close] | None = first
        while block is not None:
            for close in block:
                score = min(score, close.score)
                if exact is None or close.spec.name != exact.name:
                    yield Hit(close.spec, score, "")
            block = next(blocks, None)

    def _blocks(self, asked: list[Asked], admits: Allows) -> Iterator[list[Close]]:
        """Return the tools that fit, as many at a time as are looked at closely, the best first."""
        order = self._admitted(asked, admits)
        while numbers := list(islice(order, self.settings.candidates)):
            yield closely(asked, numbers, postings=self.postings, settings=self.settings)

    def _admitted(self, asked: list[Asked], admits: Allows) -> Iterator[int]:
        scores, left = self.gather(asked, self.settings.postings)
        entries = self.postings.entries
        for number in self._descending(scores):
            if admits(entries[number].spec):
                yield number
        if left:
            further, _ = self.gather(left, None)
            for number in self._descending({number: score for number, score in further.items() if number not in scores}):
                if admits(entries[number].spec):
                    yield number

    def gather(self, asked: list[Asked], budget: int | None) -> tuple[Scores, list[Asked]]:
        """Return the tools that hold what is asked, by the rarest words that the budget allows, and the words that it did not."""
        scores: Scores = {}
        left: list[Asked] = []
        for one in sorted((one for one in asked if one.variants), key=lambda one: -one.weight):
            cost = sum(len(self.postings.tools[term]) for term in one.variants)
            if budget is not None and scores:
                if cost > budget:
                    left.append(one)
                    continue
                budget -= cost
            best = self._best(one)
            if not scores:
                scores = best
                continue
            get = scores.get
            for number, weight in best.items():
                scores[number] = get(number, 0.0) + weight
        return scores, left

    def _best(self, asked: Asked) -> Scores:
        """Return what the likeliest reading of one word counts, for every tool that holds one."""
        tools, weights = self.postings.tools, self.postings.weights
        best: Scores = {}
        for term, factor in sorted(asked.variants.items(), key=lambda item: (-len(tools[item[0]]), item[0])):
            weighed = map(mul, weights[term], repeat(factor))
            if not best:
                best = dict(zip(tools[term], weighed, strict=False))
                continue
            get = best.get
            for number, weight in zip(tools[term], weighed, strict=False):
                if weight > get(number, 0.0):
                    best[number] = weight
        return best

    def _descending(self, scores: Scores) -> Iterator[int]:
        """Return the tools by score, ties by name, and sort no more of them than are asked for."""
        entries = self.postings.entries
        above = float("inf")
        for size in (self.settings.candidates, self.settings.candidates * _WIDER, len(scores)):
            line = nlargest(size, scores.values())[-1] if size < len(scores) else 0.0
            part = [number for number, score in scores.items() if line <= score < above]
            part.sort(key=lambda number: (-scores[number], entries[number].spec.name))
            yield from part
            above = line
