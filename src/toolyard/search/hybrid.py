"""The hybrid strategy: words and likeness of meaning together, each scaled to its best."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from toolyard.search.closely import Close, closely
from toolyard.search.lexical import Lexical, in_order
from toolyard.search.listing import Found, closest, page
from toolyard.search.query import Asked, split_clauses
from toolyard.search.vectors import Near, Vectors, load_encoder
from toolyard.search.view import View
from toolyard.search.visible import Admits
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

    def rank(self, query: str, admits: Admits, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that are admitted."""
        settings, lexical = self._settings, self._lexical
        view = lexical.view(admits)
        asked = lexical.read(query, view)
        if not asked:
            return lexical.by_name(query, view, offset=offset, limit=limit)
        near = self._vectors.near(query, split_clauses(query), share=settings.semantic_clause_share)
        first, fits = self._fused(asked, near, view=view)
        exact = lexical.listing.named(query, admits)
        if exact is None and not fits:
            return Found(hits=[], total=0, closest=closest(((close.spec, close.score) for close in first), view.specs()))
        found = page(in_order(exact, first, self._rest(asked, first, near, view=view)), offset=offset, limit=limit)
        return lexical.explained(found, asked)

    def _admitted(self, near: Near, view: View) -> Iterator[int]:
        return filter(view.answers, map(self._lexical.postings.number, near))

    def _fused(self, asked: list[Asked], near: Near, *, view: View) -> tuple[list[Close], bool]:
        """Return the best of both kinds, best first, and whether anything fits."""
        settings = self._settings
        by_words = islice(self._lexical.admitted(asked, view), settings.candidates)
        by_meaning = islice(self._admitted(near, view), settings.candidates)
        numbers = dict.fromkeys(chain(by_words, by_meaning))
        closes = closely(asked, list(numbers), view=view, settings=settings)
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

    def _rest(self, asked: list[Asked], first: list[Close], near: Near, *, view: View) -> Iterator[list[Close]]:
        """Return what comes after the best: the other tools that hold the words, then those that are only like in meaning."""
        seen = {close.spec.name for close in first}
        least = first[-1].score if first else 0.0
        for block in self._lexical.blocks(asked, view):
            fresh = [Close(close.spec, least, close.fit) for close in block if close.spec.name not in seen]
            seen.update(close.spec.name for close in fresh)
            yield fresh
        yield [
            Close(spec, least, 0.0)
            for spec in (view.postings.entries[number].spec for number in self._admitted(near, view))
            if spec.name not in seen and near[spec.name] >= self._settings.semantic_fit
        ]
