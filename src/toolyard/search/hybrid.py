"""The hybrid strategy: words and likeness of meaning together, each scaled to its best."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from toolyard.search.closely import Close, closely
from toolyard.search.lexical import Lexical, in_order
from toolyard.search.listing import Allows, Found, page
from toolyard.search.query import Asked, split_clauses
from toolyard.search.vectors import Near, Vectors, load_encoder
from toolyard.search_settings import SearchSettings
from toolyard.spec import ToolSpec

__all__ = ["Hybrid"]

_BATCH: Final = 256


class Hybrid:
    """An index of words and of meanings."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._lexical = Lexical(settings)
        self._vectors = Vectors(load_encoder())
        self._waiting: dict[str, ToolSpec] = {}

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name; it is read before the next search."""
        self._lexical.add(spec)
        self._waiting[spec.name] = spec

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        self._lexical.remove(name)
        self._waiting.pop(name, None)
        self._vectors.remove(name)

    def prepare(self) -> None:
        """Read the tools that came since the last search."""
        self._lexical.prepare()
        waiting = iter(self._waiting.values())
        while batch := list(islice(waiting, _BATCH)):
            self._vectors.add(batch)
        self._waiting.clear()

    def rank(self, query: str, admits: Allows, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that are admitted."""
        settings, lexical = self._settings, self._lexical
        asked = lexical.read(query)
        if not asked:
            return page(lexical.listing.by_name(query, admits), offset=offset, limit=limit)
        near = self._vectors.near(query, split_clauses(query), share=settings.semantic_clause_share)
        first, fits = self._fused(asked, near, admits=admits)
        exact = lexical.listing.named(query, admits)
        if exact is None and not fits:
            return Found(hits=[], total=0, closest=lexical.listing.closest(((close.spec, close.score) for close in first), admits))
        found = page(in_order(exact, first, self._rest(asked, first, near, admits=admits)), offset=offset, limit=limit)
        return lexical.explained(found, asked)

    def _admitted(self, near: Near, admits: Allows) -> Iterator[ToolSpec]:
        postings = self._lexical.postings
        specs = (postings.entry(name).spec for name in near)
        return (spec for spec in specs if admits(spec))

    def _fused(self, asked: list[Asked], near: Near, *, admits: Allows) -> tuple[list[Close], bool]:
        """Return the best of both kinds, best first, and whether anything fits."""
        settings, postings = self._settings, self._lexical.postings
        by_words = islice(self._lexical.admitted(asked, admits), settings.candidates)
        by_meaning = islice(self._admitted(near, admits), settings.candidates)
        numbers = dict.fromkeys(chain(by_words, (postings.number(spec.name) for spec in by_meaning)))
        closes = closely(asked, list(numbers), postings=postings, settings=settings)
        if not closes:
            return [], False
        top = max(close.score for close in closes) or 1.0
        nearest = max(near[close.spec.name] for close in closes)
        share = settings.semantic_share
        fused = [
            Close(close.spec, round((1 - share) * close.score / top + share * near[close.spec.name] / max(nearest, 1e-6), 5), close.fit)
            for close in closes
        ]
        fits = nearest >= settings.semantic_fit or max(close.fit for close in fused) > settings.fit
        return sorted(fused, key=lambda close: (-close.score, close.spec.name)), fits

    def _rest(self, asked: list[Asked], first: list[Close], near: Near, *, admits: Allows) -> Iterator[list[Close]]:
        """Return what comes after the best: the other tools that hold the words, then those that are only like in meaning."""
        seen = {close.spec.name for close in first}
        least = first[-1].score if first else 0.0
        for block in self._lexical.blocks(asked, admits):
            fresh = [Close(close.spec, least, close.fit) for close in block if close.spec.name not in seen]
            seen.update(close.spec.name for close in fresh)
            yield fresh
        yield [
            Close(spec, least, 0.0)
            for spec in self._admitted(near, admits)
            if spec.name not in seen and near[spec.name] >= self._settings.semantic_fit
        ]
