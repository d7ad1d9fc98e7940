"""Subscriptions: which resources somebody wants to hear of, counted over all clients and told to whoever publishes them."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

__all__ = ["Subscribed", "Subscriptions", "Watcher"]

Watcher = Callable[[AbstractSet[str]], "asyncio.Future[None] | None"]
"""Takes the URIs that somebody is subscribed to now; what it returns, if anything, is done once nothing goes untold any more."""


class Subscribed(NamedTuple):
    """What somebody is subscribed to: by URI the source of each resource, and what is done once all of it holds."""

    sources: Mapping[str, str]
    held: "tuple[asyncio.Future[None], ...]"


class Subscriptions:
    """By source the resources that are subscribed to, and who is told when those are others."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._watchers: defaultdict[str, list[Watcher]] = defaultdict(list)

    def add(self, sources: Mapping[str, str]) -> Subscribed:
        """Count one more who wants to hear of these resources, by URI the source of each."""
        others: set[str] = set()
        for uri, source in sources.items():
            counts = self._counts[source]
            counts[uri] += 1
            if counts[uri] == 1:
                others.add(source)
        return Subscribed(sources, self._tell(others))

    def remove(self, sources: Mapping[str, str]) -> None:
        """Count one less for each of them."""
        others: set[str] = set()
        for uri, source in sources.items():
            counts = self._counts[source]
            counts[uri] -= 1
            if not counts[uri]:
                del counts[uri]
                others.add(source)
        self._tell(others)

    def watch(self, source: str, watcher: Watcher) -> Callable[[], None]:
        """Tell the watcher what is subscribed to of that source, now and whenever it changes; return what stops that."""
        watchers = self._watchers[source]
        watchers.append(watcher)
        watcher(frozenset(self._counts[source]))
        return lambda: watchers.remove(watcher) if watcher in watchers else None

    def _tell(self, sources: AbstractSet[str]) -> "tuple[asyncio.Future[None], ...]":
        """Tell each watcher of these sources once, however many resources it is about: each time it takes them all."""
        held = [watcher(frozenset(self._counts[source])) for source in sorted(sources) for watcher in tuple(self._watchers[source])]
        return tuple(one for one in held if one is not None)
