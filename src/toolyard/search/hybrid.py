"""The hybrid strategy: words and likeness of meaning together, each scaled to its best."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

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
_NEARLY: Final = 0.7
"""How like in meaning a tool must be beside the likest, if it is less like than what fits without others.

A loose question is less like everything, also what answers it."""
_LEAST: Final = 2 / 3
"""What it must be of what fits without others even so: where nothing is like the question, the likest tool says nothing."""


class _Fused(NamedTuple):
    """The tools that were looked at, best first; those that hold a word of the question or are like it; and whether any fits."""

    seen: list[Close]
    best: list[Close]
    line: float
    """How like in meaning a tool must be that holds no word of the question."""
    fits: bool


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
        fused = self._fused(asked, near, view=view)
        exact = lexical.listing.named(query, admits)
        if exact is None and not fused.fits:
            return Found(hits=[], total=0, closest=closest(((close.spec, close.score) for close in fused.seen), view.specs()))
        rest = self._rest(asked, fused, near, view=view)
        found = page(in_order(exact, fused.best, rest), offset=offset, limit=limit)
        return lexical.explained(found, asked)

    def _admitted(self, near: Near, view: View) -> Iterator[int]:
        return filter(view.answers, map(self._lexical.postings.number, near))

    def _fused(self, asked: list[Asked], near: Near, *, view: View) -> _Fused:
        """Return the best of both kinds."""
        settings = self._settings
        by_words = islice(self._lexical.admitted(asked, view), settings.candidates)
        by_meaning = islice(self._admitted(near, view), settings.candidates)
        numbers = dict.fromkeys(chain(by_words, by_meaning))
        closes = closely(asked, list(numbers), view=view, settings=settings)
        if not closes:
            return _Fused([], [], line=1.0, fits=False)
        top = max(close.score for close in closes) or 1.0
        nearest = max(near[close.spec.name] for close in closes)
        share = settings.semantic_share
        fused = [
            Close(close.spec, round((1 - share) * close.score / top + share * near[close.spec.name] / max(nearest, 1e-6), 5), close.fit)
            for close in closes
        ]
        seen = sorted(fused, key=lambda close: (-close.score, close.spec.name))
        worded = {close.spec.name for close in closes if close.score}
        line = min(settings.semantic_fit, max(_NEARLY * nearest, _LEAST * settings.semantic_fit))
        best = [close for close in seen if close.spec.name in worded or near[close.spec.name] >= line]
        return _Fused(seen, best, line=line, fits=nearest >= settings.semantic_fit or max(close.fit for close in fused) > settings.fit)

    def _rest(self, asked: list[Asked], fused: _Fused, near: Near, *, view: View) -> Iterator[list[Close]]:
        """Return what comes after the best: the other tools that hold the words, then those that are only like in meaning."""
        seen = {close.spec.name for close in fused.best}
        least = fused.best[-1].score if fused.best else 0.0
        for block in self._lexical.blocks(asked, view):
            fresh = [Close(close.spec, least, close.fit) for close in block if close.spec.name not in seen]
            seen.update(close.spec.name for close in fresh)
            yield fresh
        yield [
            Close(spec, least, 0.0)
            for spec in (view.postings.entries[number].spec for number in self._admitted(near, view))
            if spec.name not in seen and near[spec.name] >= fused.line
        ]
