"""Postings: which tools hold which words, and how much; it can grow and shrink by one tool at a time.

It weighs words and ranks nothing.
"""

import math
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from toolyard.model.spec import ToolSpec
from toolyard.search.hits import Admits, Rule
from toolyard.search.settings import SearchSettings
from toolyard.search.stem import stem
from toolyard.search.text import STOP_WORDS, Fields, Table, Thesaurus, fields_of, read_words, split_word

__all__ = ["Entry", "Part", "Postings", "View"]


_Level = defaultdict[int, "array[int]"]
"""The tools of each term in which it counts about as much."""
_LEVELS: Final = 8
"""Parts that a word's tools are kept in, by how much it counts in them."""
_NOTHING: Final[list[int]] = []
_NAME: Final = Fields._fields.index("name")
_DESCRIPTION: Final = Fields._fields.index("description")
_SEQUENCE: Final = 80
_JOINED: Final = 8
_UNHELD: Final = 1024
"""Terms that no tool holds any more before they are forgotten: to look for their words takes a while."""
_SEVERAL: Final = 20_000
_UNSEEN: Final = 50
"""Tools that are thought of beside those that are there, so that a word of one tool in three is not taken for common."""
_USUAL_NAME: Final = 3.0
_USUAL_TEXT: Final = 15.0
_USUAL_PARAMETERS: Final = 12.0


class Entry(NamedTuple):
    """One tool as the index holds it: its terms with their weights, and its name and description, as words and as terms."""

    spec: ToolSpec
    terms: tuple[int, ...]
    weights: tuple[float, ...]
    words: tuple[int, ...]
    sequence: tuple[int, ...]
    """The terms of the words."""
    name_words: int


class _Place(NamedTuple):
    """A field: what a word counts there, how that shrinks with the number of words, and whether they are identifiers."""

    weight: float
    even: float
    uneven: float
    identifiers: bool


class Postings:
    """The words of all tools.

    Words have numbers from 1 on. A written word is the number of the one word it holds, 0 if it says nothing, or, if it holds
    several, a number below 0 under which these are kept: most hold one, so that reading a text is a look at a table for each.
    """

    def __init__(self, settings: SearchSettings, thesaurus: Thesaurus) -> None:
        self._thesaurus = thesaurus
        saturation = settings.saturation
        # One number for all words that count alike: each that is kept anew would take three times its place in an entry.
        self._saturated = Table[float, float](lambda weight: weight and weight / (weight + saturation))
        self.words: dict[str, int] = {}
        self.terms: dict[str, int] = {}
        self.term_of: list[int] = [-1]
        self.spelled: list[str] = [""]
        self.holders = Counter[int]()
        self.rarities = Table[int, float](lambda term: self.rarity(self.holders[term], among=len(self.entries)))
        """How much it says that a tool holds a term; true until a tool comes or goes."""
        self._levels: list[_Level] = [defaultdict(partial(array, "I")) for _ in range(_LEVELS + 1)]
        self._level_of = Table[float, _Level](lambda weight: self._levels[int(weight * _LEVELS)])
        self.entries: dict[int, Entry] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._unheld: set[int] = set()
        self._free_terms: list[int] = []
        self._free_words: list[int] = []
        self._several: dict[tuple[int, ...], int] = {}
        self._several_of: dict[int, tuple[int, ...]] = {}
        self._written = Table[str, int](self._intern)
        self._identifiers = Table[str, int](self._intern_parts)
        self._places = _places(settings)
        self._unread = {field: "" for field, place in zip(Fields._fields, self._places, strict=True) if not place.weight}
        """Fields in which a word counts nothing: what they hold would be found without being any answer."""

    def number(self, name: str) -> int:
        """Return the number of a tool that is there."""
        return self._numbers[name]

    def entry(self, name: str) -> Entry:
        """Return a tool that is there."""
        return self.entries[self._numbers[name]]

    def specs(self) -> Iterator[tuple[int, ToolSpec]]:
        """Return every tool and its number."""
        return ((number, entry.spec) for number, entry in self.entries.items())

    def fields(self, spec: ToolSpec) -> Fields:
        """Return the texts of a tool in which words count."""
        return fields_of(spec)._replace(**self._unread) if self._unread else fields_of(spec)

    def add(self, spec: ToolSpec) -> int:
        """Take a tool in, in place of one of the same name, and return its number."""
        self.remove(spec.name)
        self.rarities.clear()
        if len(self._several) >= _SEVERAL:
            self._forget_readings()
        number = self._next
        self._next += 1
        self._numbers[spec.name] = number
        read = self._read_fields(self.fields(spec))
        words = (*read[_NAME], *read[_DESCRIPTION][:_SEQUENCE])
        sequence = tuple(map(self.term_of.__getitem__, words))
        weighed = self._weigh(read)
        terms, weights = tuple(weighed), tuple(map(self._saturated.__getitem__, weighed.values()))
        self.entries[number] = Entry(spec, terms, weights, words, sequence, len(read[_NAME]))
        self.holders.update(terms)
        for term, level in zip(terms, map(self._level_of.__getitem__, weights), strict=True):
            level[term].append(number)
        return number

    def remove(self, name: str) -> int | None:
        """Forget a tool, if it is there, and return the number that it had."""
        number = self._numbers.pop(name, None)
        if number is None:
            return None
        self.rarities.clear()
        entry = self.entries.pop(number)
        self.holders.subtract(entry.terms)
        for term, level in zip(entry.terms, map(self._level_of.__getitem__, entry.weights), strict=True):
            tools = level[term]
            del tools[bisect_left(tools, number)]
        self._unheld.update(term for term in entry.terms if not self.holders[term])
        if len(self._unheld) >= _UNHELD:
            self._forget_unheld()
        return number

    def _forget_unheld(self) -> None:
        """Forget the words that no tool holds any more; others get their numbers."""
        gone = {term for term in self._unheld if not self.holders[term]}
        self._unheld.clear()
        self._forget_readings()
        for word in [word for word, number in self.words.items() if self.term_of[number] in gone]:
            number = self.words.pop(word)
            self.spelled[number] = ""
            self._free_words.append(number)
        for root in [root for root, term in self.terms.items() if term in gone]:
            self._free_terms.append(self.terms.pop(root))
        for table in (self.holders, *self._levels):
            for term in gone:
                table.pop(term, None)

    def _forget_readings(self) -> None:
        """Forget how written words are read; each is worked out anew when it is next met."""
        for table in (self._written, self._identifiers, self._several, self._several_of):
            table.clear()

    def tools(self, term: int) -> Iterator[tuple[float, Sequence[int]]]:
        """Return the tools that hold the term, first those in which it counts most, and about how much that is."""
        for level in range(_LEVELS, -1, -1):
            if tools := self._levels[level].get(term):
                yield (level + 0.5) / _LEVELS, tools

    def rarity(self, holders: int, *, among: int) -> float:
        """Return how much it says that a tool holds what so many of these hold."""
        return math.log(1 + (among + _UNSEEN - holders + 0.5) / (holders + 0.5))

    def _intern(self, written: str) -> int:
        return self._as_one([self._number(word) for word in split_word(written) if word not in STOP_WORDS])

    def _intern_parts(self, written: str) -> int:
        """Return what an identifier is made of, words that were joined without a mark taken apart too."""
        found: list[int] = []
        for word in split_word(written):
            if len(word) >= _JOINED and word.isalpha() and stem(word) not in self._thesaurus:
                found += [self._number(part) for part in self._thesaurus.parts(word) if part not in STOP_WORDS]
            if word not in STOP_WORDS:
                found.append(self._number(word))
        return self._as_one(found)

    def _as_one(self, words: list[int]) -> int:
        """Return the number that stands for these words."""
        if len(words) <= 1:
            return words[0] if words else 0
        key = tuple(words)
        number = self._several.setdefault(key, -1 - len(self._several))
        self._several_of[number] = key
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
        return [word for number in found for word in (self._several_of[number] if number < 0 else (number,))]

    def _read_fields(self, fields: Fields) -> list[list[int]]:
        """Return the words of every field."""
        return [
            self.read(text, identifiers=place.identifiers) if text else _NOTHING for text, place in zip(fields, self._places, strict=True)
        ]

    def _weigh(self, read: Iterable[list[int]]) -> dict[int, float]:
        """Return what every term of a tool counts, in all its fields together."""
        weighed: dict[int, float] = {}
        term_of = self.term_of.__getitem__
        for words, place in zip(read, self._places, strict=True):
            weight = place.weight / (place.even + place.uneven * len(words)) if words else 0.0
            for term in map(term_of, words):
                if term in weighed:
                    weighed[term] += weight
                else:
                    weighed[term] = weight
        return weighed


def _places(settings: SearchSettings) -> tuple[_Place, ...]:
    """Return what a word counts in each of the fields, in their order."""
    names, texts, parameters = settings.name_evenness, settings.text_evenness, settings.parameter_evenness
    places = {
        "name": _place(settings.name_weight, names, usual=_USUAL_NAME, identifiers=True),
        "title": _place(settings.title_weight, names, usual=_USUAL_NAME),
        "namespace": _place(settings.namespace_weight, names, usual=_USUAL_NAME, identifiers=True),
        "tags": _place(settings.tag_weight, names, usual=_USUAL_NAME, identifiers=True),
        "description": _place(settings.description_weight, texts, usual=_USUAL_TEXT),
        "parameters": _place(settings.parameter_weight, parameters, usual=_USUAL_PARAMETERS, identifiers=True),
        "parameter_texts": _place(settings.parameter_text_weight, parameters, usual=_USUAL_PARAMETERS),
        "choices": _place(settings.choice_weight, parameters, usual=_USUAL_PARAMETERS),
        "examples": _place(settings.example_weight, texts, usual=_USUAL_TEXT),
    }
    return tuple(places[field] for field in Fields._fields)


def _place(weight: float, evenness: float, *, usual: float, identifiers: bool = False) -> _Place:
    return _Place(weight, 1 - evenness, evenness / usual, identifiers)


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
