"""The BM25 strategy: ranks by the words of a tool as they are written, without stems and synonyms."""

import math
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import islice
from typing import Final

from callyard.model.spec import ToolSpec
from callyard.search.hits import RULES, Allows, Filter, Found, Hit, closest_namespaces, page, search_names
from callyard.search.settings import SearchSettings
from callyard.search.text import QUERY_CHARACTERS, fields_of, fold, words_of

__all__ = ["Bm25"]

_K1: Final = 1.5
_B: Final = 0.75


class Bm25:
    """An index of words without their forms and meanings."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._specs: dict[str, ToolSpec] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._lengths: dict[str, int] = {}
        self._hidden = lru_cache(maxsize=RULES)(self._find_hidden)

    def add(self, spec: ToolSpec) -> None:
        """Add a tool, or replace the one of the same name."""
        counts = Counter(_document(spec, self._settings))
        self._specs[spec.name], self._counts[spec.name], self._lengths[spec.name] = spec, counts, counts.total()
        self._hidden.cache_clear()

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        for table in (self._specs, self._counts, self._lengths):
            table.pop(name, None)
        self._hidden.cache_clear()

    def prepare(self) -> None:
        """Do nothing: tools are read when they are added."""

    def rank(self, query: str, where: Filter, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that pass the filter."""
        words = list(islice(dict.fromkeys(words_of(fold(query)[:QUERY_CHARACTERS])), self._settings.bm25_query_words))
        hidden = self._hidden(where.allows)
        if not words:
            by_name = page(search_names(self._specs, query, where), offset=offset, limit=limit)
            return by_name if by_name.total != 0 else self._nothing(hidden, where)
        scores = self._scores(words, hidden)
        found = (name for name in scores if where(self._specs[name]))
        names = sorted(found, key=lambda name: (-round(scores[name], 5), name))
        if not names:
            return self._nothing(hidden, where)
        return page((self._hit(name, scores[name], words) for name in names), offset=offset, limit=limit)

    def _find_hidden(self, allows: Allows) -> frozenset[str]:
        return frozenset(name for name, spec in self._specs.items() if not allows(spec))

    def _nothing(self, hidden: AbstractSet[str], where: Filter) -> Found:
        visible = (spec for name, spec in self._specs.items() if name not in hidden and where.is_asked_for(spec))
        return Found(hits=[], total=0, closest=closest_namespaces((), visible))

    def _scores(self, words: list[str], hidden: AbstractSet[str]) -> dict[str, float]:
        """Return the scores of the tools that are not hidden, as if the hidden ones did not exist."""
        visible = {name: length for name, length in self._lengths.items() if name not in hidden}
        average = sum(visible.values()) / max(len(visible), 1)
        scores: dict[str, float] = {}
        for word in words:
            tools = [name for name in visible if word in self._counts[name]]
            rarity = math.log(1 + (len(visible) - len(tools) + 0.5) / (len(tools) + 0.5))
            for name in tools:
                frequency = self._counts[name][word]
                length = 1 - _B + _B * visible[name] / average
                scores[name] = scores.get(name, 0.0) + rarity * frequency * (_K1 + 1) / (frequency + _K1 * length)
        return scores

    def _hit(self, name: str, score: float, words: list[str]) -> Hit:
        matched = ", ".join(f"'{word}'" for word in words if word in self._counts[name])
        return Hit(self._specs[name], round(score, 5), f"{matched} in its text")


def _document(spec: ToolSpec, settings: SearchSettings) -> Iterator[str]:
    fields = fields_of(spec)
    rest = [
        fields.title,
        fields.description,
        fields.parameters,
        fields.parameter_texts,
        fields.choices,
        fields.examples,
    ]
    yield from words_of(fields.name) * settings.bm25_name_weight
    yield from words_of(fields.namespace) * settings.bm25_namespace_weight
    yield from words_of(fields.tags) * settings.bm25_tag_weight
    yield from words_of(" ".join(rest)[: settings.bm25_characters or None]) * settings.bm25_description_weight
