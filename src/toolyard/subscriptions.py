"""Subscriptions: which resources somebody wants to hear of, counted over all clients and told to whoever publishes them."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

__all__ = ["Subscribed", "Subscriptions", "Watcher"]

Watcher = Callable[[AbstractSet[str]], "asyncio.Future[None] | None"]
"""Takes the URIs that somebody is subscribed to now; what it returns, if anything, is done once nothing goes untold any more."""


class Subscribed(NamedTuple):
    """One subscription: what ends it, and what is done once it holds."""

    end: Callable[[], None]
    held: "tuple[asyncio.Future[None], ...]" = ()


class Subscriptions:
    """By source the resources that are subscribed to, and who is told when those are others."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._watchers: defaultdict[str, list[Watcher]] = defaultdict(list)

    def add(self, source: str, uri: str) -> Subscribed:
        """Count one more who wants to hear of a resource of that source."""
        counts = self._counts[source]
        counts[uri] += 1
        held = self._tell(source) if counts[uri] == 1 else ()
        left = [uri]
        return Subscribed(lambda: self._remove(source, left.pop()) if left else None, held)

    def watch(self, source: str, watcher: Watcher) -> Callable[[], None]:
        """Tell the watcher what is subscribed to of that source, now and whenever it changes; return what stops that."""
        watchers = self._watchers[source]
        watchers.append(watcher)
        watcher(frozenset(self._counts[source]))
        return lambda: watchers.remove(watcher) if watcher in watchers else None

    def _remove(self, source: str, uri: str) -> None:
        counts = self._counts[source]
        counts[uri] -= 1
        if not counts[uri]:
            del counts[uri]
            self._tell(source)

    def _tell(self, source: str) -> "tuple[asyncio.Future[None], ...]":
        held = [watcher(frozenset(self._counts[source])) for watcher in tuple(self._watchers[source])]
        return tuple(one for one in held if one is not None)
