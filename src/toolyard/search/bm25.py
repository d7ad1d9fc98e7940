"""The textbook strategy: BM25 over the words of a tool as they are written, with boosts and caps as settings."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from toolyard.search.fields import fields_of
from toolyard.search.listing import Allows, Found, Hit, Listing, page
from toolyard.search.words import plain, read_words, split_word
from toolyard.search_settings import SearchSettings
from toolyard.spec import ToolSpec

__all__ = ["Bm25"]


class Bm25:
    """An index of words that knows neither forms nor meanings."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._listing = Listing()
        self._counts: dict[str, Counter[str]] = {}
        self._lengths: dict[str, int] = {}
        self._specs: dict[str, ToolSpec] = {}
        self._holders: dict[str, dict[str, None]] = {}
        self._length = 0

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name, unless there are already as many as are taken."""
        self.remove(spec.name)
        self._listing.add(spec)
        if self._settings.bm25_tools and len(self._specs) >= self._settings.bm25_tools:
            return
        counts = Counter(self._document(spec))
        self._specs[spec.name] = spec
        self._counts[spec.name] = counts
        self._lengths[spec.name] = counts.total()
        self._length += counts.total()
        for word in counts:
            self._holders.setdefault(word, {})[spec.name] = None

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        self._listing.remove(name)
        if self._specs.pop(name, None) is None:
            return
        self._length -= self._lengths.pop(name)
        for word in self._counts.pop(name):
            holders = self._holders[word]
            del holders[name]
            if not holders:
                del self._holders[word]

    def prepare(self) -> None:
        """Do nothing: tools are read when they come."""

    def rank(self, query: str, admits: Allows, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that are admitted."""
        asked = list(islice(dict.fromkeys(_words(plain(query)[: self._settings.query_characters])), self._settings.query_words))
        if not asked:
            return page(self._listing.by_name(query, admits), offset=offset, limit=limit)
        scores = self._scores(asked)
        names = sorted((name for name in scores if admits(self._specs[name])), key=lambda name: (-round(scores[name], 5), name))
        if not names:
            return Found(hits=[], total=0, closest=self._listing.closest((), admits))
        return page((self._hit(name, scores[name], asked) for name in names), offset=offset, limit=limit)

    def _document(self, spec: ToolSpec) -> Iterator[str]:
        settings, fields = self._settings, fields_of(spec)
        most = settings.bm25_characters or None
        rest = [fields.title, fields.description, fields.parameters, fields.parameter_texts, fields.examples]
        for text, times in (
            (fields.name, settings.bm25_name_boost),
            (fields.namespace, settings.bm25_namespace_boost),
            (fields.tags, settings.bm25_tag_boost),
            (" ".join(rest)[:most], 1),
        ):
            words = list(_words(text))
            for _ in range(times):
                yield from words

    def _scores(self, asked: list[str]) -> dict[str, float]:
        settings, count = self._settings, len(self._specs)
        usual = self._length / count if count else 1.0
        scores: dict[str, float] = {}
        for word in asked:
            holders = self._holders.get(word, {})
            rarity = math.log(1 + (count - len(holders) + 0.5) / (len(holders) + 0.5))
            for name in holders:
                often = self._counts[name][word]
                even = 1 - settings.bm25_evenness + settings.bm25_evenness * self._lengths[name] / usual
                saturated = often * (settings.bm25_saturation + 1) / (often + settings.bm25_saturation * even)
                scores[name] = scores.get(name, 0.0) + rarity * saturated
        return scores

    def _hit(self, name: str, score: float, asked: list[str]) -> Hit:
        said = ", ".join(f"'{word}'" for word in asked if word in self._counts[name])
        return Hit(self._specs[name], round(score, 5), f"{said} in its text")


def _words(text: str) -> Iterator[str]:
    for written in read_words(text):
        yield from split_word(written)
