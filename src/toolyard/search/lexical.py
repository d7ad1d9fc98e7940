"""The lexical strategy: ranks by words, their forms, their neighbours in meaning and where they stand.

It reads the rare words of a question first, takes the tools that hold them, and looks at the best of these closely. What is not
allowed is left out before the best are taken, so no page is short and nothing shows through.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from heapq import nlargest
from itertools import chain, islice
from operator import itemgetter
from typing import Final

from toolyard.loading import PausedCollection
from toolyard.search.closely import Close, closely
from toolyard.search.listing import Found, Hit, Listing, closest, page
from toolyard.search.postings import Postings
from toolyard.search.query import Asked, read_query
from toolyard.search.reasons import explain
from toolyard.search.thesaurus import load_thesaurus
from toolyard.search.view import View
from toolyard.search.visible import Admits, Hidden
from toolyard.search_settings import SearchSettings
from toolyard.spec import ToolSpec

__all__ = ["Lexical", "in_order"]

_MANY: Final = 16
"""Tools that are read in one go; fewer are no reason to keep the collector waiting."""
_WIDER: Final = 16
_FINE: Final = 1000
"""Parts of one that scores are counted in here: sums of whole numbers are the same in whatever order they are made."""
_NOTHING: Final[list[Close]] = []

Scores = dict[int, int]


class Lexical:
    """An index of words."""

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings
        self.listing = Listing()
        self._waiting: dict[str, ToolSpec] = {}
        self._hidden = Hidden[int]()
        self._prepared = False

    @cached_property
    def postings(self) -> Postings:
        """The words of the tools, made when first needed: the thesaurus behind them takes a moment to read."""
        return Postings(self.settings, load_thesaurus())

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name; its words are read before the next search."""
        self.listing.add(spec)
        self._waiting[spec.name] = spec

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        self.listing.remove(name)
        self._waiting.pop(name, None)
        if self._prepared:
            self._forget(name)

    def prepare(self) -> None:
        """Read the words of the tools that came since the last search."""
        if len(self._waiting) < _MANY:
            self._read_waiting()
        else:
            with PausedCollection():
                self._read_waiting()
        self._prepared = True

    def _read_waiting(self) -> None:
        for spec in self._waiting.values():
            self._forget(spec.name)
            self._hidden.add(self.postings.add(spec), spec)
        self._waiting.clear()

    def _forget(self, name: str) -> None:
        number = self.postings.remove(name)
        if number is not None:
            self._hidden.remove(number)

    def rank(self, query: str, admits: Admits, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that are admitted."""
        view = self.view(admits)
        asked = self.read(query, view)
        if not asked:
            return self.by_name(query, view, offset=offset, limit=limit)
        blocks = self.blocks(asked, view)
        first = next(blocks, _NOTHING)
        exact = self.listing.named(query, admits)
        if exact is None and max((close.fit for close in first), default=0.0) <= self.settings.fit:
            return Found(hits=[], total=0, closest=closest(((close.spec, close.score) for close in first), view.specs()))
        found = page(in_order(exact, first, blocks), offset=offset, limit=limit)
        return self.explained(found, asked)

    def view(self, admits: Admits) -> View:
        """Return the postings as they are for a question."""
        return View(self.postings, self._hidden.under(admits.allows, self.postings.specs), admits)

    def by_name(self, query: str, view: View, *, offset: int, limit: int) -> Found:
        """Return one page of the tools whose names hold the words of the query, or the largest namespaces if there are none."""
        found = page(self.listing.by_name(query, view.admits), offset=offset, limit=limit)
        return found if found.total != 0 else Found(hits=[], total=0, closest=closest((), view.specs()))

    def explained(self, found: Found, asked: list[Asked]) -> Found:
        """Return the page with the reason of every hit."""
        postings = self.postings
        hits = [Hit(hit.spec, hit.score, explain(postings.entry(hit.spec.name), asked, postings)) for hit in found.hits]
        return Found(hits=hits, total=found.total, more=found.more)

    def read(self, query: str, view: View) -> list[Asked]:
        """Return what a query asks for."""
        return read_query(query, view, settings=self.settings, thesaurus=load_thesaurus())

    def blocks(self, asked: list[Asked], view: View) -> Iterator[list[Close]]:
        """Return the tools that fit, as many at a time as are looked at closely, the best first."""
        order = self.admitted(asked, view)
        while numbers := list(islice(order, self.settings.candidates)):
            yield closely(asked, numbers, view=view, settings=self.settings)

    def admitted(self, asked: list[Asked], view: View) -> Iterator[int]:
        """Return the tools that fit, about the best first, before a close look at them."""
        scores, left = self.gather(asked, view, budget=self.settings.postings)
        yield from filter(view.answers, self._descending(scores))
        if left:
            further, _ = self.gather(left, view, budget=None)
            rest = {number: score for number, score in further.items() if number not in scores}
            yield from filter(view.answers, self._descending(rest))

    def gather(self, asked: list[Asked], view: View, *, budget: int | None) -> tuple[Scores, list[Asked]]:
        """Return the tools that hold what is asked, by the weightiest terms that the budget allows, and whose terms it did not.

        A tool that holds two readings of a word gets both here; the close look counts the better one. With a budget, words that
        come when many tools are known only put these in order: what holds none of the weightier words is not among the best.
        """
        scores: Scores = {}
        left: dict[str, Asked] = {}
        terms = [(factor, term, one) for one in asked for term, factor in one.variants.items()]
        for factor, term, one in sorted(terms, key=itemgetter(0), reverse=True):
            for weight, many, tools in view.tools(term):
                score = int(_FINE * factor * weight)
                if budget is None or not scores:
                    _count(tools(), scores, score=score)
                    continue
                if many <= budget:
                    budget -= many
                    if len(scores) < self.settings.candidates * _WIDER:
                        _count(tools(), scores, score=score)
                        continue
                    _count_known(tools(), scores, score=score)
                left[one.text] = one
        return scores, list(left.values())

    def _descending(self, scores: Scores) -> Iterator[int]:
        """Return the tools by score, ties by name, and sort no more of them than are asked for."""
        entries = self.postings.entries
        above = float("inf")
        for size in (self.settings.candidates, self.settings.candidates * _WIDER, len(scores)):
            line = nlargest(size, scores.values())[-1] if size < len(scores) else 0
            part = [number for number, score in scores.items() if line <= score < above]
            part.sort(key=lambda number: (-scores[number], entries[number].spec.name))
            yield from part
            above = line


def _count(tools: Iterable[int], scores: Scores, *, score: int) -> None:
    """Add to what these tools score."""
    for number in tools:
        if number in scores:
            scores[number] += score
        else:
            scores[number] = score


def _count_known(tools: Iterable[int], scores: Scores, *, score: int) -> None:
    """Add to what these tools score, where they score already."""
    for number in tools:
        if number in scores:
            scores[number] += score


def in_order(exact: ToolSpec | None, first: list[Close], blocks: Iterator[list[Close]]) -> Iterator[Hit]:
    """Return all hits in order: a tool that is named comes first, and no score is above the one before it."""
    score = first[0].score if first else 0
    if exact is not None:
        yield Hit(exact, score, "")
    for close in chain(first, chain.from_iterable(blocks)):
        score = min(score, close.score)
        if exact is None or close.spec.name != exact.name:
            yield Hit(close.spec, score, "")
