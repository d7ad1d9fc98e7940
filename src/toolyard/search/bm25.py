"""The textbook strategy: BM25 over the words of a tool as they are written, with boosts and caps as settings."""

import math
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import islice

from toolyard.model.spec import ToolSpec
from toolyard.search.hits import Admits, Found, Hidden, Hit, Listing, closest, page
from toolyard.search.settings import SearchSettings
from toolyard.search.text import fields_of, plain, read_words, split_word

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
        self._hidden = Hidden[str]()
        self._left_out: dict[str, ToolSpec] = {}

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name; beyond as many as are taken it waits until another goes."""
        self._listing.add(spec)
        if spec.name in self._specs:
            self._forget(spec.name)
        elif self._settings.bm25_tools and len(self._specs) >= self._settings.bm25_tools:
            self._left_out[spec.name] = spec
            return
        self._take(spec)

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        self._listing.remove(name)
        self._left_out.pop(name, None)
        if name not in self._specs:
            return
        self._forget(name)
        if self._left_out:
            self._take(self._left_out.pop(next(iter(self._left_out))))

    def _take(self, spec: ToolSpec) -> None:
        self._hidden.add(spec.name, spec)
        counts = Counter(self._document(spec))
        self._specs[spec.name] = spec
        self._counts[spec.name] = counts
        self._lengths[spec.name] = counts.total()
        self._length += counts.total()
        for word in counts:
            self._holders.setdefault(word, {})[spec.name] = None

    def _forget(self, name: str) -> None:
        self._hidden.remove(name)
        del self._specs[name]
        self._length -= self._lengths.pop(name)
        for word in self._counts.pop(name):
            holders = self._holders[word]
            del holders[name]
            if not holders:
                del self._holders[word]

    def prepare(self) -> None:
        """Do nothing: tools are read when they come."""

    def rank(self, query: str, admits: Admits, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that are admitted."""
        asked = list(islice(dict.fromkeys(_words(plain(query)[: self._settings.query_characters])), self._settings.query_words))
        hidden = self._hidden.under(admits.allows, self._specs.items).hidden
        if not asked:
            found = page(self._listing.by_name(query, admits), offset=offset, limit=limit)
            return found if found.total != 0 else self._nothing(hidden, admits)
        scores = self._scores(asked, hidden)
        names = sorted((name for name in scores if admits(self._specs[name])), key=lambda name: (-round(scores[name], 5), name))
        if not names:
            return self._nothing(hidden, admits)
        return page((self._hit(name, scores[name], asked) for name in names), offset=offset, limit=limit)

    def _nothing(self, hidden: AbstractSet[str], admits: Admits) -> Found:
        visible = (spec for name, spec in self._specs.items() if name not in hidden and admits.is_asked_for(spec))
        return Found(hits=[], total=0, closest=closest((), visible))

    def _document(self, spec: ToolSpec) -> Iterator[str]:
        settings, fields = self._settings, fields_of(spec)
        most = settings.bm25_characters or None
        rest = [fields.title, fields.description, fields.parameters, fields.parameter_texts, fields.choices, fields.examples]
        for text, times in (
            (fields.name, settings.bm25_name_boost),
            (fields.namespace, settings.bm25_namespace_boost),
            (fields.tags, settings.bm25_tag_boost),
            (" ".join(rest)[:most], 1),
        ):
            words = list(_words(text))
            for _ in range(times):
                yield from words

    def _scores(self, asked: list[str], hidden: AbstractSet[str]) -> dict[str, float]:
        """Return what the tools score that are not hidden, as if no others were there."""
        settings, count = self._settings, len(self._specs) - len(hidden)
        usual = (self._length - sum(self._lengths[name] for name in hidden)) / count if count else 1.0
        scores: dict[str, float] = {}
        for word in asked:
            holders = [name for name in self._holders.get(word, ()) if name not in hidden]
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
