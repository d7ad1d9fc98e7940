"""The inverted index of the lexical strategy: which tools contain a term, and its weight in each.

Tools are added and removed one at a time. It ranks nothing.
"""

import math
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain, count
from typing import Final, NamedTuple

from callyard.model.spec import ToolSpec
from callyard.search.hits import Filter
from callyard.search.stem import stem
from callyard.search.text import STOP_WORDS, Fields, Memo, Thesaurus, fields_of, read_words, split_word

__all__ = ["WEIGHTS", "Entry", "Postings", "View", "Weights"]


_Level = defaultdict[int, "array[int]"]
"""For each term the tools in which it has about the same weight."""
_LEVELS: Final = 8
"""Ranges of weight by which the tools of a term are stored, so that a search can stop at the best ones."""
_NAME: Final = Fields._fields.index("name")
_DESCRIPTION: Final = Fields._fields.index("description")
_DESCRIPTION_WORDS: Final = 80
_JOINED_LETTERS: Final = 8
"""Letters from which an unknown word of an identifier is split."""
_UNUSED_TERMS: Final = 1024
"""Terms without tools that are collected before they are removed: finding their words takes a scan."""
_IMAGINED_TOOLS: Final = 50
"""Added to the number of tools, so that in a small yard a word of every third tool is not common."""

# Measured on several sets of labelled tools, as `WEIGHTS`.
_SATURATION: Final = 1.2
_TITLE_WEIGHT: Final = 1.5
_PARAMETER_WEIGHT: Final = 0.5
_PARAMETER_TEXT_WEIGHT: Final = 0.3
_CHOICE_WEIGHT: Final = 0.2
_EXAMPLE_WEIGHT: Final = 0.4
# How much the weight of a word shrinks in a long field, from 0 to 1, and the usual number of words there.
_NAME_LENGTH: Final = (0.4, 3.0)
_TEXT_LENGTH: Final = (0.5, 15.0)
_PARAMETERS_LENGTH: Final = (0.7, 12.0)


class Weights(NamedTuple):
    """How much each kind of match counts for the strategies 'lexical' and 'hybrid'."""

    name: float = 3.0
    """Weight of a word in a tool's name; 0 does not search names."""
    namespace: float = 2.0
    """Weight of a word in its namespace; 0 does not search namespaces."""
    tags: float = 2.0
    """Weight of a word in one of its tags; 0 does not search tags."""
    description: float = 0.8
    """Weight of a word in its description; 0 does not search descriptions."""
    neighbours: int = 12
    """Words of like meaning that are searched with each word of a question; 0 uses no thesaurus."""
    spelling: float = 0.9
    """Weight of a word that differs by a typing error from an unknown one; 0 corrects no spelling."""
    fit: float = 0.17
    """Share of the question that the best tool must answer; below it nothing fits."""
    semantic_share: float = 0.5
    """Share of likeness of meaning in a score of the hybrid strategy; the rest is the words."""
    semantic_fit: float = 0.3
    """Likeness of meaning from which a tool fits although its words do not."""


WEIGHTS: Final = Weights()


class Entry(NamedTuple):
    """One tool: its terms with their weights, and its name and description as words and as terms."""

    spec: ToolSpec
    terms: tuple[int, ...]
    weights: tuple[float, ...]
    words: tuple[int, ...]
    sequence: tuple[int, ...]
    name_words: int


class _FieldWeight(NamedTuple):
    """The weight of a word in a field: `weight / (base + slope * words in the field)`."""

    weight: float
    base: float
    slope: float
    identifiers: bool


class Postings:
    """The words of all tools, by number. A written word may be several: an identifier is, and a stop word is none."""

    def __init__(self, weights: Weights, thesaurus: Thesaurus) -> None:
        self._thesaurus = thesaurus
        # Equal weights share one float object, which saves two thirds of their memory.
        self._saturated = Memo[float, float](lambda weight: weight and weight / (weight + _SATURATION))
        self.words: dict[str, int] = {}
        self.terms: dict[str, int] = {}
        self.term_of: list[int] = []
        self.spelled: list[str] = []
        self.tool_counts = Counter[int]()
        """The number of tools that contain each term."""
        self.rarities = Memo[int, float](lambda term: self.rarity(self.tool_counts[term], among=len(self.entries)))
        """The inverse document frequency of each term; cleared when a tool is added or removed."""
        self._levels: list[_Level] = [defaultdict(partial(array, "I")) for _ in range(_LEVELS + 1)]
        self._level_of = Memo[float, _Level](lambda weight: self._levels[int(weight * _LEVELS)])
        self.entries: dict[int, Entry] = {}
        self.numbers: dict[str, int] = {}
        self._next = count()
        self._unused: set[int] = set()
        self._free_terms: list[int] = []
        self._free_words: list[int] = []
        self._written = Memo[str, tuple[int, ...]](self._intern)
        self._identifiers = Memo[str, tuple[int, ...]](self._intern_parts)
        self._weights = _field_weights(weights)
        self._ignored = {
            field: "" for field, weight in zip(Fields._fields, self._weights, strict=True) if not weight.weight
        }

    def fields(self, spec: ToolSpec) -> Fields:
        """Return the texts of a tool that are searched."""
        return fields_of(spec)._replace(**self._ignored)

    def add(self, spec: ToolSpec) -> None:
        """Add a tool, or replace the one of the same name."""
        self.remove(spec.name)
        self.rarities.clear()
        number = next(self._next)
        self.numbers[spec.name] = number
        fields = zip(self.fields(spec), self._weights, strict=True)
        read = [self.read(text, identifiers=weight.identifiers) for text, weight in fields]
        words = (*read[_NAME], *read[_DESCRIPTION][:_DESCRIPTION_WORDS])
        sequence = tuple(map(self.term_of.__getitem__, words))
        weighed = self._weigh(read)
        terms, weights = tuple(weighed), tuple(map(self._saturated.__getitem__, weighed.values()))
        self.entries[number] = Entry(spec, terms, weights, words, sequence=sequence, name_words=len(read[_NAME]))
        self.tool_counts.update(terms)
        for term, level in zip(terms, map(self._level_of.__getitem__, weights), strict=True):
            level[term].append(number)

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        number = self.numbers.pop(name, None)
        if number is None:
            return
        self.rarities.clear()
        entry = self.entries.pop(number)
        self.tool_counts.subtract(entry.terms)
        for term, level in zip(entry.terms, map(self._level_of.__getitem__, entry.weights), strict=True):
            tools = level[term]
            del tools[bisect_left(tools, number)]
        self._unused.update(term for term in entry.terms if not self.tool_counts[term])
        if len(self._unused) >= _UNUSED_TERMS:
            self._remove_unused()

    def _remove_unused(self) -> None:
        """Remove the words that no tool contains any more; their numbers are used again."""
        gone = {term for term in self._unused if not self.tool_counts[term]}
        self._unused.clear()
        self._written.clear()
        self._identifiers.clear()
        for word in [word for word, number in self.words.items() if self.term_of[number] in gone]:
            number = self.words.pop(word)
            self.spelled[number] = ""
            self._free_words.append(number)
        for root in [root for root, term in self.terms.items() if term in gone]:
            self._free_terms.append(self.terms.pop(root))
        for table in (self.tool_counts, *self._levels):
            for term in gone:
                table.pop(term, None)

    def tools(self, term: int) -> Iterator[tuple[float, Sequence[int]]]:
        """Yield the approximate weight of a term and the tools in which it has it, the highest first."""
        for level in range(_LEVELS, -1, -1):
            if tools := self._levels[level].get(term):
                yield (level + 0.5) / _LEVELS, tools

    def rarity(self, tools: int, *, among: int) -> float:
        """Return the inverse document frequency of a term in so many tools."""
        return math.log(1 + (among + _IMAGINED_TOOLS - tools + 0.5) / (tools + 0.5))

    def _intern(self, written: str) -> tuple[int, ...]:
        return tuple(self._number(word) for word in split_word(written) if word not in STOP_WORDS)

    def _intern_parts(self, written: str) -> tuple[int, ...]:
        """Return the numbers of an identifier's words, with words split that were joined without a separator."""
        found: list[int] = []
        for word in split_word(written):
            if len(word) >= _JOINED_LETTERS and word.isalpha() and stem(word) not in self._thesaurus:
                found += [self._number(part) for part in self._thesaurus.split(word) if part not in STOP_WORDS]
            if word not in STOP_WORDS:
                found.append(self._number(word))
        return tuple(found)

    def _number(self, word: str) -> int:
        number = self.words.get(word)
        if number is None:
            root = stem(word)
            term = self.terms.get(root)
            if term is None:
                term = self.terms[root] = self._free_terms.pop() if self._free_terms else len(self.terms)
            if not self._free_words:
                self._free_words.append(len(self.term_of))
                self.term_of.append(term)
                self.spelled.append(word)
            number = self.words[word] = self._free_words.pop()
            self.term_of[number], self.spelled[number] = term, word
        return number

    def read(self, text: str, *, identifiers: bool = False) -> list[int]:
        """Return the numbers of the words of a text."""
        table = self._identifiers if identifiers else self._written
        return list(chain.from_iterable(map(table.__getitem__, read_words(text))))

    def _weigh(self, read: Iterable[list[int]]) -> dict[int, float]:
        """Return the weight of every term of a tool, summed over its fields."""
        weighed: dict[int, float] = {}
        term_of = self.term_of.__getitem__
        for words, field in zip(read, self._weights, strict=True):
            weight = field.weight / (field.base + field.slope * len(words)) if words else 0.0
            for term in map(term_of, words):
                weighed[term] = weighed.get(term, 0.0) + weight
        return weighed


def _field_weights(chosen: Weights) -> tuple[_FieldWeight, ...]:
    weights = {
        "name": _field_weight(chosen.name, _NAME_LENGTH, identifiers=True),
        "title": _field_weight(_TITLE_WEIGHT, _NAME_LENGTH),
        "namespace": _field_weight(chosen.namespace, _NAME_LENGTH, identifiers=True),
        "tags": _field_weight(chosen.tags, _NAME_LENGTH, identifiers=True),
        "description": _field_weight(chosen.description, _TEXT_LENGTH),
        "parameters": _field_weight(_PARAMETER_WEIGHT, _PARAMETERS_LENGTH, identifiers=True),
        "parameter_texts": _field_weight(_PARAMETER_TEXT_WEIGHT, _PARAMETERS_LENGTH),
        "choices": _field_weight(_CHOICE_WEIGHT, _PARAMETERS_LENGTH),
        "examples": _field_weight(_EXAMPLE_WEIGHT, _TEXT_LENGTH),
    }
    return tuple(weights[field] for field in Fields._fields)


def _field_weight(weight: float, length: tuple[float, float], *, identifiers: bool = False) -> _FieldWeight:
    share, usual = length
    return _FieldWeight(weight, 1 - share, share / usual, identifiers)


class View:
    """The postings without the tools that a rule hides, as if these did not exist."""

    def __init__(self, postings: Postings, hidden: AbstractSet[int], where: Filter) -> None:
        self.postings = postings
        self.where = where
        self._hidden = hidden
        self._size = len(postings.entries) - len(hidden)
        self.tool_counts: Mapping[int, int] = Memo(self._count) if hidden else postings.tool_counts
        self.rarities: Mapping[int, float] = Memo(self._rarity) if hidden else postings.rarities

    def tools(self, term: int) -> Iterator[tuple[float, Sequence[int]]]:
        """Yield the approximate weight of a term and the visible tools in which it has it, the highest first."""
        for weight, tools in self.postings.tools(term):
            visible = [number for number in tools if number not in self._hidden] if self._hidden else tools
            if visible:
                yield weight, visible

    def rarest(self) -> float:
        """Return the rarity of a word that no tool contains."""
        return self.postings.rarity(0, among=self._size)

    def passes(self, number: int) -> bool:
        """Return whether a tool passes the filter."""
        return number not in self._hidden and self.where(self.postings.entries[number].spec)

    def specs(self) -> Iterator[ToolSpec]:
        """Yield every tool that passes the filter."""
        for number, entry in self.postings.entries.items():
            if number not in self._hidden and self.where.is_asked_for(entry.spec):
                yield entry.spec

    def _count(self, term: int) -> int:
        return sum(len(tools) for _, tools in self.tools(term))

    def _rarity(self, term: int) -> float:
        return self.postings.rarity(self.tool_counts[term], among=self._size)
