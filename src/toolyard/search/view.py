"""Views: the postings as they are for one question, as if what its rule hides were not there.

Whether a word is known and how rare it is are counted in what is visible: nothing that is found, and no order, tells of the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from toolyard.search.postings import Postings
from toolyard.search.tables import Table
from toolyard.search.visible import Admits, Rule
from toolyard.spec import ToolSpec

__all__ = ["Part", "View"]

Part = tuple[float, int, Callable[[], Iterable[int]]]
"""About how much a term counts in some tools, how many these are, and a function that returns them."""


class View:
    """The postings without the tools that a rule hides, and what of them a question may be answered with."""

    def __init__(self, postings: Postings, rule: Rule[int], admits: Admits) -> None:
        self.postings = postings
        self.admits = admits
        self._hidden, self._counts = rule.hidden, rule.counts
        self._size = len(postings.entries) - len(rule.hidden)
        self.holders: Mapping[int, int] = Table(self._count) if rule.hidden else postings.holders
        self.rarities: Mapping[int, float] = Table(self._rarity) if rule.hidden else postings.rarities

    def tools(self, term: int) -> Iterator[Part]:
        """Return the tools that hold the term, first those in which it counts most."""
        if not self._hidden:
            return ((weight, len(tools), partial(iter, tools)) for weight, tools in self.postings.tools(term))
        parts = zip(self.postings.tools(term), self._counted(term), strict=True)
        return ((weight, many, partial(self._seen, tools, many)) for (weight, tools), many in parts if many)

    def rarest(self) -> float:
        """Return what a word that no tool holds would say."""
        return self.postings.rarity(0, among=self._size)

    def answers(self, number: int) -> bool:
        """Return whether a tool may be part of the answer."""
        return number not in self._hidden and self.admits(self.postings.entries[number].spec)

    def specs(self) -> Iterator[ToolSpec]:
        """Return every tool that could be part of the answer, whatever the words."""
        for number, entry in self.postings.entries.items():
            if number not in self._hidden and self.admits.is_asked_for(entry.spec):
                yield entry.spec

    def _seen(self, tools: Sequence[int], many: int) -> Iterable[int]:
        """Return those of some tools that are not hidden, of which there are so many."""
        hidden = self._hidden
        return tools if many == len(tools) else [number for number in tools if number not in hidden]

    def _counted(self, term: int) -> tuple[int, ...]:
        """Return how many of each part of a term's tools are not hidden."""
        counts = self._counts.get(term)
        if counts is None:
            is_hidden = self._hidden.__contains__
            counts = self._counts[term] = tuple(len(tools) - sum(map(is_hidden, tools)) for _, tools in self.postings.tools(term))
        return counts

    def _count(self, term: int) -> int:
        return sum(self._counted(term))

    def _rarity(self, term: int) -> float:
        return self.postings.rarity(self.holders[term], among=self._size)
