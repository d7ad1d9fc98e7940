"""The BM25 strategy: ranks by the words of a tool as they are written, without stems and synonyms."""

import math
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final

from callyard.model.spec import ToolSpec
from callyard.search.hits import Filter, Found, HiddenTools, Hit, NameList, closest_namespaces, page
from callyard.search.settings import SearchSettings
from callyard.search.text import QUERY_CHARACTERS, fields_of, fold, words_of

__all__ = ["Bm25"]

_K1: Final = 1.5
_B: Final = 0.75


class Bm25:
    """An index of words without their forms and meanings."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._names = NameList()
        self._counts: dict[str, Counter[str]] = {}
        self._lengths: dict[str, int] = {}
        self._specs: dict[str, ToolSpec] = {}
        self._tools: dict[str, dict[str, None]] = {}
        """The names of the tools that have a word."""
        self._length = 0
        self._hidden = HiddenTools[str]()

    def add(self, spec: ToolSpec) -> None:
        """Add a tool, or replace the one of the same name."""
        self.remove(spec.name)
        self._names.add(spec)
        self._hidden.add(spec.name, spec)
        counts = Counter(_document(spec, self._settings))
        self._specs[spec.name] = spec
        self._counts[spec.name] = counts
        self._lengths[spec.name] = counts.total()
        self._length += counts.total()
        for word in counts:
            self._tools.setdefault(word, {})[spec.name] = None

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        if self._specs.pop(name, None) is None:
            return
        self._names.remove(name)
        self._hidden.remove(name)
        self._length -= self._lengths.pop(name)
        for word in self._counts.pop(name):
            tools = self._tools[word]
            del tools[name]
            if not tools:
                del self._tools[word]

    def prepare(self) -> None:
        """Do nothing: tools are read when they are added."""

    def rank(self, query: str, where: Filter, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that pass the filter."""
        words = list(islice(dict.fromkeys(words_of(fold(query)[:QUERY_CHARACTERS])), self._settings.bm25_query_words))
        hidden = self._hidden.for_rule(where.allows, self._specs.items).hidden
        if not words:
            found = page(self._names.search(query, where), offset=offset, limit=limit)
            return found if found.total != 0 else self._nothing(hidden, where)
        scores = self._scores(words, hidden)
        names = sorted((name for name in scores if where(self._specs[name])), key=lambda name: (-round(scores[name], 5), name))
        if not names:
            return self._nothing(hidden, where)
        return page((self._hit(name, scores[name], words) for name in names), offset=offset, limit=limit)

    def _nothing(self, hidden: AbstractSet[str], where: Filter) -> Found:
        visible = (spec for name, spec in self._specs.items() if name not in hidden and where.is_asked_for(spec))
        return Found(hits=[], total=0, closest=closest_namespaces((), visible))

    def _scores(self, words: list[str], hidden: AbstractSet[str]) -> dict[str, float]:
        """Return the scores of the tools that are not hidden, as if the hidden ones did not exist."""
        count = len(self._specs) - len(hidden)
        average = (self._length - sum(self._lengths[name] for name in hidden)) / count if count else 1.0
        scores: dict[str, float] = {}
        for word in words:
            tools = [name for name in self._tools.get(word, ()) if name not in hidden]
            rarity = math.log(1 + (count - len(tools) + 0.5) / (len(tools) + 0.5))
            for name in tools:
                frequency = self._counts[name][word]
                length = 1 - _B + _B * self._lengths[name] / average
                scores[name] = scores.get(name, 0.0) + rarity * frequency * (_K1 + 1) / (frequency + _K1 * length)
        return scores

    def _hit(self, name: str, score: float, words: list[str]) -> Hit:
        matched = ", ".join(f"'{word}'" for word in words if word in self._counts[name])
        return Hit(self._specs[name], round(score, 5), f"{matched} in its text")


def _document(spec: ToolSpec, settings: SearchSettings) -> Iterator[str]:
    fields = fields_of(spec)
    rest = [fields.title, fields.description, fields.parameters, fields.parameter_texts, fields.choices, fields.examples]
    texts = (
        (fields.name, settings.bm25_name_weight),
        (fields.namespace, settings.bm25_namespace_weight),
        (fields.tags, settings.bm25_tag_weight),
        (" ".join(rest)[: settings.bm25_characters or None], settings.bm25_description_weight),
    )
    for text, times in texts:
        words = words_of(text)
        for _ in range(times):
            yield from words
