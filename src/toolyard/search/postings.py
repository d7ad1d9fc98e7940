"""Postings: which tools hold which words, and how much; it can grow and shrink by one tool at a time.

It weighs words and ranks nothing.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

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

    def __init__(self, spec: ToolSpec, *, weighed: dict[int, float], sequence: list[int], name_words: int) -> None:
        self.spec = spec
        self.terms = array("I", weighed)
        self.weights = array("f", weighed.values())
        self.sequence = array("I", sequence)
        self.name_words = name_words


class _Table(dict[str, tuple[int, ...]]):
    """What written words are made of, as numbers; it forgets everything when it has become too large."""

    __slots__ = ("_intern",)

    def __init__(self, intern: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._intern = intern

    def __missing__(self, written: str) -> tuple[int, ...]:
        if len(self) >= _CACHED:
            self.clear()
        found = self[written] = self._intern(written)
        return found


class Postings:
    """The words of all tools."""

    def __init__(self, settings: SearchSettings, thesaurus: Thesaurus) -> None:
        self._settings = settings
        self._thesaurus = thesaurus
        self.words: dict[str, int] = {}
        self.terms: dict[str, int] = {}
        self.term_of: list[int] = []
        self.spelled: list[str] = []
        self.tools: list[array[int]] = []
        self.weights: list[array[float]] = []
        self.entries: dict[int, Entry] = {}
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._written = _Table(self._intern)
        self._identifiers = _Table(self._intern_parts)

    def number(self, name: str) -> int:
        """Return the number of a tool that is there."""
        return self._numbers[name]

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name."""
        self.remove(spec.name)
        number = self._next
        self._next += 1
        entry = self._weigh(spec)
        self._numbers[spec.name] = number
        self.entries[number] = entry
        tools, weights = self.tools, self.weights
        for term, weight in zip(entry.terms, entry.weights, strict=True):
            tools[term].append(number)
            weights[term].append(weight)

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

    def _intern(self, written: str) -> tuple[int, ...]:
        return tuple(self._number(word) for word in split_word(written) if word not in STOP_WORDS)

    def _intern_parts(self, written: str) -> tuple[int, ...]:
        """Return what an identifier is made of, words that were joined without a mark taken apart too."""
        found: list[int] = []
        for word in split_word(written):
            if len(word) >= _JOINED and word.isalpha() and stem(word) not in self._thesaurus:
                found += [self._number(part) for part in self._thesaurus.parts(word) if part not in STOP_WORDS]
            if word not in STOP_WORDS:
                found.append(self._number(word))
        return tuple(found)

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
        return list(chain.from_iterable(map(table.__getitem__, read_words(text))))

    def _weigh(self, spec: ToolSpec) -> Entry:
        fields = fields_of(spec)
        settings = self._settings
        name = self.read(fields.name, identifiers=True)
        description = self.read(fields.description)
        weighed: dict[int, float] = {}
        get, term_of = weighed.get, self.term_of
        for words, weight in self._weights(fields, name=name, description=description):
            for word in words:
                term = term_of[word]
                weighed[term] = get(term, 0.0) + weight
        saturation = settings.saturation
        for term, weight in weighed.items():
            weighed[term] = weight / (weight + saturation)
        return Entry(spec, weighed=weighed, sequence=name + description[:_SEQUENCE], name_words=len(name))

    def _weights(self, fields: Fields, *, name: list[int], description: list[int]) -> Iterator[tuple[list[int], float]]:
        """Return the words of every field with what one of them counts there."""
        settings = self._settings
        names, texts, parameters = settings.name_evenness, settings.text_evenness, settings.parameter_evenness
        yield name, _even(settings.name_weight, len(name), usual=_USUAL_NAME, evenness=names)
        yield description, _even(settings.description_weight, len(description), usual=_USUAL_TEXT, evenness=texts)
        for text, identifiers, weight, usual, evenness in (
            (fields.namespace, True, settings.namespace_weight, _USUAL_NAME, names),
            (fields.parameters, True, settings.parameter_weight, _USUAL_PARAMETERS, parameters),
            (fields.parameter_texts, False, settings.parameter_text_weight, _USUAL_PARAMETERS, parameters),
            (fields.title, False, settings.title_weight, _USUAL_NAME, names),
            (fields.tags, True, settings.tag_weight, _USUAL_NAME, names),
            (fields.choices, False, settings.choice_weight, _USUAL_PARAMETERS, parameters),
            (fields.examples, False, settings.example_weight, _USUAL_TEXT, texts),
        ):
            if text:
                words = self.read(text, identifiers=identifiers)
                yield words, _even(weight, len(words), usual=usual, evenness=evenness)


def _even(weight: float, length: int, *, usual: float, evenness: float) -> float:
    """Return what one word counts in a text of this length."""
    return weight / (1 - evenness + evenness * length / usual)
