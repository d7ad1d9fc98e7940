"""Postings: which tools hold which words, and how much; it can grow and shrink by one tool at a time.

It weighs words and ranks nothing.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

from toolyard.search.fields import Fields, fields_of
from toolyard.search.stem import stem
from toolyard.search.thesaurus import Thesaurus
from toolyard.search.words import STOP_WORDS, read_words, split_word
from toolyard.search_settings import SearchSettings
from toolyard.spec import ToolSpec

__all__ = ["Entry", "Postings"]

_CACHED: Final = 20_000
_SEQUENCE: Final = 80
_JOINED: Final = 8
_UNSEEN: Final = 50
"""Tools that are thought of beside those that are there, so that a word of one tool in three is not taken for common."""
_USUAL_NAME: Final = 3.0
_USUAL_TEXT: Final = 15.0
_USUAL_PARAMETERS: Final = 12.0


class Entry:
    """One tool as the index holds it: its terms with their weights, and the words of its name and description in order."""

    __slots__ = ("name_words", "sequence", "spec", "terms", "weights")

    def __init__(self, spec: ToolSpec, *, terms: list[int], weights: list[float], sequence: list[int], name_words: int) -> None:
        self.spec = spec
        self.terms = array("I", terms)
        self.weights = array("f", weights)
        self.sequence = array("I", sequence)
        self.name_words = name_words


class _Place(NamedTuple):
    """A field: what a word counts there, how that shrinks with the number of words, and whether they are identifiers."""

    weight: float
    even: float
    uneven: float
    identifiers: bool


class _Table(dict[str, int]):
    """What written words are, each as one number; it forgets everything when it has become too large."""

    __slots__ = ("_intern",)

    def __init__(self, intern: Callable[[str], int]) -> None:
        super().__init__()
        self._intern = intern

    def __missing__(self, written: str) -> int:
        if len(self) >= _CACHED:
            self.clear()
        found = self[written] = self._intern(written)
        return found


class Postings:
    """The words of all tools.

    Words have numbers from 1 on. A written word is the number of the one word it holds, 0 if it says nothing, or, if it holds
    several, a number below 0 under which these are kept: most hold one, so that reading a text is a look at a table for each.
    """

    def __init__(self, settings: SearchSettings, thesaurus: Thesaurus) -> None:
        self._thesaurus = thesaurus
        self._saturation = settings.saturation
        self.words: dict[str, int] = {}
        self.terms: dict[str, int] = {}
        self.term_of: list[int] = [-1]
        self.spelled: list[str] = [""]
        self.tools: list[array[int]] = []
        self.weights: list[array[float]] = []
        self.entries: dict[int, Entry] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._several: dict[tuple[int, ...], int] = {}
        self._several_of: dict[int, tuple[int, ...]] = {}
        self._written = _Table(self._intern)
        self._identifiers = _Table(self._intern_parts)
        self._places = _places(settings)

    def number(self, name: str) -> int:
        """Return the number of a tool that is there."""
        return self._numbers[name]

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name."""
        self.remove(spec.name)
        number = self._next
        self._next += 1
        self._numbers[spec.name] = number
        fields = fields_of(spec)
        name = self.read(fields.name, identifiers=True)
        description = self.read(fields.description)
        weighed = self._weigh(fields, name=name, description=description)
        saturation = self._saturation
        terms, weights = list(weighed), [weight / (weight + saturation) for weight in weighed.values()]
        sequence = name + description[:_SEQUENCE]
        self.entries[number] = Entry(spec, terms=terms, weights=weights, sequence=sequence, name_words=len(name))
        holders, held = self.tools, self.weights
        for term, weight in zip(terms, weights, strict=True):
            holders[term].append(number)
            held[term].append(weight)

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        number = self._numbers.pop(name, None)
        if number is None:
            return
        for term in self.entries.pop(number).terms:
            tools = self.tools[term]
            place = bisect_left(tools, number)
            del tools[place]
            del self.weights[term][place]

    def rarity(self, term: int) -> float:
        """Return how much it says that a tool holds the term."""
        holders = len(self.tools[term])
        return math.log(1 + (len(self.entries) + _UNSEEN - holders + 0.5) / (holders + 0.5))

    def rarest(self) -> float:
        """Return what a word that no tool holds would say."""
        return math.log(1 + (len(self.entries) + _UNSEEN + 0.5) / 0.5)

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
                term = self.terms[root] = len(self.tools)
                self.tools.append(array("I"))
                self.weights.append(array("f"))
            number = self.words[word] = len(self.term_of)
            self.term_of.append(term)
            self.spelled.append(word)
        return number

    def read(self, text: str, *, identifiers: bool = False) -> list[int]:
        """Return the numbers of the words of a text."""
        table = self._identifiers if identifiers else self._written
        found: list[int] = list(filter(None, map(table.__getitem__, read_words(text))))
        if not found or min(found) > 0:
            return found
        return [word for number in found for word in (self._several_of[number] if number < 0 else (number,))]

    def _weigh(self, fields: Fields, *, name: list[int], description: list[int]) -> dict[int, float]:
        """Return what every term of a tool counts, in all its fields together."""
        weighed: dict[int, float] = {}
        term_of = self.term_of.__getitem__
        for field, text, place in zip(Fields._fields, fields, self._places, strict=True):
            if not text:
                continue
            if field == "name":
                words = name
            elif field == "description":
                words = description
            else:
                words = self.read(text, identifiers=place.identifiers)
            weight = place.weight / (place.even + place.uneven * len(words))
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
