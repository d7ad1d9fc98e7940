"""The inverted index of the lexical strategy: which tools contain a term, and its weight in each.

Tools are added and removed one at a time. It ranks nothing.
"""

import math
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from callyard.model.spec import ToolSpec
from callyard.search.hits import Filter, Rule
from callyard.search.settings import SearchSettings
from callyard.search.stem import stem
from callyard.search.text import STOP_WORDS, Fields, Memo, Thesaurus, fields_of, read_words, split_word

__all__ = ["Entry", "Part", "Postings", "View"]


_Level = defaultdict[int, "array[int]"]
"""For each term the tools in which it has about the same weight."""
_LEVELS: Final = 8
"""Ranges of weight by which the tools of a term are stored, so that a search can stop at the best ones."""
_NOTHING: Final[list[int]] = []
_NAME: Final = Fields._fields.index("name")
_DESCRIPTION: Final = Fields._fields.index("description")
_DESCRIPTION_WORDS: Final = 80
_JOINED_LETTERS: Final = 8
"""Letters from which an unknown word of an identifier is split."""
_UNUSED_TERMS: Final = 1024
"""Terms without tools that are collected before they are removed: finding their words takes a scan."""
_COMPOUNDS: Final = 20_000
_IMAGINED_TOOLS: Final = 50
"""Added to the number of tools, so that in a small yard a word of every third tool is not common."""

# Measured on several sets of labelled tools, as the defaults of the settings.
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


class Entry(NamedTuple):
    """One tool: its terms with their weights, and its name and description as words and as terms."""

    spec: ToolSpec
    terms: tuple[int, ...]
    weights: tuple[float, ...]
    words: tuple[int, ...]
    sequence: tuple[int, ...]
    """The terms of the words."""
    name_words: int


class _FieldWeight(NamedTuple):
    """The weight of a word in a field: `weight / (base + slope * words in the field)`."""

    weight: float
    base: float
    slope: float
    identifiers: bool


class Postings:
    """The words of all tools.

    Words have numbers from 1 on. A written word maps to the number of its word, to 0 if it is a stop word, or, if it is a compound,
    to a negative number under which its words are stored: so that reading a text is one dictionary lookup for most words.
    """

    def __init__(self, settings: SearchSettings, thesaurus: Thesaurus) -> None:
        self._thesaurus = thesaurus
        # Equal weights share one float object, which saves two thirds of their memory.
        self._saturated = Memo[float, float](lambda weight: weight and weight / (weight + _SATURATION))
        self.words: dict[str, int] = {}
        self.terms: dict[str, int] = {}
        self.term_of: list[int] = [-1]
        self.spelled: list[str] = [""]
        self.tool_counts = Counter[int]()
        """The number of tools that contain each term."""
        self.rarities = Memo[int, float](lambda term: self.rarity(self.tool_counts[term], among=len(self.entries)))
        """The inverse document frequency of each term; cleared when a tool is added or removed."""
        self._levels: list[_Level] = [defaultdict(partial(array, "I")) for _ in range(_LEVELS + 1)]
        self._level_of = Memo[float, _Level](lambda weight: self._levels[int(weight * _LEVELS)])
        self.entries: dict[int, Entry] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._unused: set[int] = set()
        self._free_terms: list[int] = []
        self._free_words: list[int] = []
        self._compounds: dict[tuple[int, ...], int] = {}
        self._compound_words: dict[int, tuple[int, ...]] = {}
        self._written = Memo[str, int](self._intern)
        self._identifiers = Memo[str, int](self._intern_parts)
        self._weights = _field_weights(settings)
        self._ignored = {field: "" for field, weight in zip(Fields._fields, self._weights, strict=True) if not weight.weight}
        """Fields of weight 0, which are not searched."""

    def number(self, name: str) -> int:
        """Return the number of a tool of the index."""
        return self._numbers[name]

    def entry(self, name: str) -> Entry:
        """Return the entry of a tool of the index."""
        return self.entries[self._numbers[name]]

    def specs(self) -> Iterator[tuple[int, ToolSpec]]:
        """Return every tool with its number."""
        return ((number, entry.spec) for number, entry in self.entries.items())

    def fields(self, spec: ToolSpec) -> Fields:
        """Return the texts of a tool that are searched."""
        return fields_of(spec)._replace(**self._ignored) if self._ignored else fields_of(spec)

    def add(self, spec: ToolSpec) -> int:
        """Add a tool, or replace the one of the same name, and return its number."""
        self.remove(spec.name)
        self.rarities.clear()
        if len(self._compounds) >= _COMPOUNDS:
            self._clear_words()
        number = self._next
        self._next += 1
        self._numbers[spec.name] = number
        read = self._read_fields(self.fields(spec))
        words = (*read[_NAME], *read[_DESCRIPTION][:_DESCRIPTION_WORDS])
        sequence = tuple(map(self.term_of.__getitem__, words))
        weighed = self._weigh(read)
        terms, weights = tuple(weighed), tuple(map(self._saturated.__getitem__, weighed.values()))
        self.entries[number] = Entry(spec, terms, weights, words, sequence=sequence, name_words=len(read[_NAME]))
        self.tool_counts.update(terms)
        for term, level in zip(terms, map(self._level_of.__getitem__, weights), strict=True):
            level[term].append(number)
        return number

    def remove(self, name: str) -> int | None:
        """Remove a tool, if it is there, and return the number that it had."""
        number = self._numbers.pop(name, None)
        if number is None:
            return None
        self.rarities.clear()
        entry = self.entries.pop(number)
        self.tool_counts.subtract(entry.terms)
        for term, level in zip(entry.terms, map(self._level_of.__getitem__, entry.weights), strict=True):
            tools = level[term]
            del tools[bisect_left(tools, number)]
        self._unused.update(term for term in entry.terms if not self.tool_counts[term])
        if len(self._unused) >= _UNUSED_TERMS:
            self._remove_unused()
        return number

    def _remove_unused(self) -> None:
        """Remove the words that no tool contains any more; their numbers are used again."""
        gone = {term for term in self._unused if not self.tool_counts[term]}
        self._unused.clear()
        self._clear_words()
        for word in [word for word, number in self.words.items() if self.term_of[number] in gone]:
            number = self.words.pop(word)
            self.spelled[number] = ""
            self._free_words.append(number)
        for root in [root for root, term in self.terms.items() if term in gone]:
            self._free_terms.append(self.terms.pop(root))
        for table in (self.tool_counts, *self._levels):
            for term in gone:
                table.pop(term, None)

    def _clear_words(self) -> None:
        """Clear the cached numbers of written words."""
        for table in (self._written, self._identifiers, self._compounds, self._compound_words):
            table.clear()

    def tools(self, term: int) -> Iterator[tuple[float, Sequence[int]]]:
        """Yield the approximate weight of a term and the tools in which it has it, the highest first."""
        for level in range(_LEVELS, -1, -1):
            if tools := self._levels[level].get(term):
                yield (level + 0.5) / _LEVELS, tools

    def rarity(self, tools: int, *, among: int) -> float:
        """Return the inverse document frequency of a term in so many tools."""
        return math.log(1 + (among + _IMAGINED_TOOLS - tools + 0.5) / (tools + 0.5))

    def _intern(self, written: str) -> int:
        return self._number_of_all([self._number(word) for word in split_word(written) if word not in STOP_WORDS])

    def _intern_parts(self, written: str) -> int:
        """Return the number of an identifier's words, with words split that were joined without a separator."""
        found: list[int] = []
        for word in split_word(written):
            if len(word) >= _JOINED_LETTERS and word.isalpha() and stem(word) not in self._thesaurus:
                found += [self._number(part) for part in self._thesaurus.split(word) if part not in STOP_WORDS]
            if word not in STOP_WORDS:
                found.append(self._number(word))
        return self._number_of_all(found)

    def _number_of_all(self, words: list[int]) -> int:
        """Return the number of one word, or the negative one of a compound."""
        if len(words) <= 1:
            return words[0] if words else 0
        key = tuple(words)
        number = self._compounds.setdefault(key, -1 - len(self._compounds))
        self._compound_words[number] = key
        return number

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
        found: list[int] = list(filter(None, map(table.__getitem__, read_words(text))))
        if not found or min(found) > 0:
            return found
        return [word for number in found for word in (self._compound_words[number] if number < 0 else (number,))]

    def _read_fields(self, fields: Fields) -> list[list[int]]:
        """Return the words of every field."""
        pairs = zip(fields, self._weights, strict=True)
        return [self.read(text, identifiers=weight.identifiers) if text else _NOTHING for text, weight in pairs]

    def _weigh(self, read: Iterable[list[int]]) -> dict[int, float]:
        """Return the weight of every term of a tool, summed over its fields."""
        weighed: dict[int, float] = {}
        term_of = self.term_of.__getitem__
        for words, field in zip(read, self._weights, strict=True):
            weight = field.weight / (field.base + field.slope * len(words)) if words else 0.0
            for term in map(term_of, words):
                if term in weighed:
                    weighed[term] += weight
                else:
                    weighed[term] = weight
        return weighed


def _field_weights(settings: SearchSettings) -> tuple[_FieldWeight, ...]:
    """Return the weight of a word in each of the fields, in their order."""
    weights = {
        "name": _field_weight(settings.name_weight, _NAME_LENGTH, identifiers=True),
        "title": _field_weight(_TITLE_WEIGHT, _NAME_LENGTH),
        "namespace": _field_weight(settings.namespace_weight, _NAME_LENGTH, identifiers=True),
        "tags": _field_weight(settings.tag_weight, _NAME_LENGTH, identifiers=True),
        "description": _field_weight(settings.description_weight, _TEXT_LENGTH),
        "parameters": _field_weight(_PARAMETER_WEIGHT, _PARAMETERS_LENGTH, identifiers=True),
        "parameter_texts": _field_weight(_PARAMETER_TEXT_WEIGHT, _PARAMETERS_LENGTH),
        "choices": _field_weight(_CHOICE_WEIGHT, _PARAMETERS_LENGTH),
        "examples": _field_weight(_EXAMPLE_WEIGHT, _TEXT_LENGTH),
    }
    return tuple(weights[field] for field in Fields._fields)


def _field_weight(weight: float, length: tuple[float, float], *, identifiers: bool = False) -> _FieldWeight:
    share, usual = length
    return _FieldWeight(weight, 1 - share, share / usual, identifiers)


Part = tuple[float, int, Callable[[], Iterable[int]]]
"""The approximate weight of a term in some tools, their number, and a function that returns them."""


class View:
    """The postings without the tools that a rule hides, as if these did not exist."""

    def __init__(self, postings: Postings, rule: Rule[int], where: Filter) -> None:
        self.postings = postings
        self.where = where
        self._hidden, self._counts = rule.hidden, rule.counts
        self._size = len(postings.entries) - len(rule.hidden)
        self.tool_counts: Mapping[int, int] = Memo(self._count) if rule.hidden else postings.tool_counts
        self.rarities: Mapping[int, float] = Memo(self._rarity) if rule.hidden else postings.rarities

    def tools(self, term: int) -> Iterator[Part]:
        """Return the visible tools that contain the term, those of the highest weight first."""
        if not self._hidden:
            return ((weight, len(tools), partial(iter, tools)) for weight, tools in self.postings.tools(term))
        parts = zip(self.postings.tools(term), self._counted(term), strict=True)
        return ((weight, count, partial(self._visible, tools, count)) for (weight, tools), count in parts if count)

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

    def _visible(self, tools: Sequence[int], count: int) -> Iterable[int]:
        """Return the tools that are not hidden, whose number is known."""
        hidden = self._hidden
        return tools if count == len(tools) else [number for number in tools if number not in hidden]

    def _counted(self, term: int) -> tuple[int, ...]:
        """Return the number of visible tools in each part of a term's tools."""
        counts = self._counts.get(term)
        if counts is None:
            is_hidden = self._hidden.__contains__
            counts = self._counts[term] = tuple(len(tools) - sum(map(is_hidden, tools)) for _, tools in self.postings.tools(term))
        return counts

    def _count(self, term: int) -> int:
        return sum(self._counted(term))

    def _rarity(self, term: int) -> float:
        return self.postings.rarity(self.tool_counts[term], among=self._size)
