"""The order of hits as it is learned from calls: counted in the store, in the background, and read by searches.

The store gets stems of queries, names of tools and numbers. A store that fails changes nothing but the order.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final
from zlib import crc32

import msgspec

from callyard.dispatch.call import Call
from callyard.dispatch.outcome import Outcome
from callyard.model.envelope import Envelope
from callyard.search.learned import LearnedOrder, Uses, add_use, query_stems
from callyard.state.store import Store, StoreUnavailableError

__all__ = ["LearnedOrders"]

_PREFIX: Final = "learned_order/"
_KEYS: Final = 1024
"""Keys in the store; each has the counts of the stems with its number as their hash."""
_STEMS: Final = 16
"""Stems that one key remembers: those of the last calls."""
_STORED_SECONDS: Final = 30 * 24 * 3600.0
_FRESH_S: Final = 3.0
_WAIT_S: Final = 0.5
"""How long a search waits for the store."""
_WRITE_S: Final = 10.0
_TRIES: Final = 8
_CALLERS: Final = 1000
_SEARCHES: Final = 4
"""Searches that are remembered of a caller, each until its hits were called or it is too old."""
_SEARCH_S: Final = 600.0
_Search = tuple[float, dict[str, tuple[str, ...]]]
"""When it was, and the stems that each hit stands for."""
_decode: Final = msgspec.msgpack.Decoder(Uses).decode


class LearnedOrders:
    """Learns which of its hits a caller uses after a search."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._searches: dict[str, deque[_Search]] = {}
        self._read: dict[str, tuple[float, Uses]] = {}
        self._pending: list[tuple[str, str]] = []
        self._writing: asyncio.Task[None] | None = None

    async def order(self, queries: Sequence[str]) -> LearnedOrder | None:
        """Return what puts the hits of these queries in order, or None if nothing was learned about their words."""
        keys = dict.fromkeys(_key(word) for query in queries for word in query_stems(query))
        now = time.monotonic()
        old = [key for key in keys if key not in self._read or now - self._read[key][0] > _FRESH_S]
        values: list[bytes | None] = []
        with suppress(StoreUnavailableError, TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                values = await self._store.get_many(old) if old else []
        known = [_uses(value) for value in values] or [self._read.get(key, (0.0, Uses()))[1] for key in old]
        self._read.update((key, (now, uses)) for key, uses in zip(old, known, strict=True))
        uses = {word: tools for key in keys for word, tools in self._read[key][1].items()}
        return LearnedOrder(uses) if uses else None

    def searched(self, owner: str, hits: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Remember the hits of a caller's search, each with its queries."""
        searches = self._searches.pop(owner, None) or deque[_Search](maxlen=_SEARCHES)
        stems: dict[str, tuple[str, ...]] = {}
        words_of: dict[str, tuple[str, ...]] = {}
        for name, queries in hits:
            for query in queries:
                if query not in stems:
                    stems[query] = query_stems(query)
                words_of[name] = tuple(dict.fromkeys((*words_of.get(name, ()), *stems[query])))
        searches.appendleft((time.monotonic(), words_of))
        self._searches[owner] = searches
        if len(self._searches) > _CALLERS:
            del self._searches[next(iter(self._searches))]

    def finished(self, call: Call, envelope: Envelope, result: Outcome) -> None:  # noqa: ARG002 - the shape of an observer
        """Count the first good call of a hit after a search of the same caller."""
        searches = self._searches.get(call.caller.owner)
        if searches is None or result.error is not None or call.request.kind != "tool":
            return
        oldest = time.monotonic() - _SEARCH_S
        for at, words_of in searches:
            words = words_of.pop(call.spec.name, ())
            if words and at >= oldest:
                self._pending += ((word, call.spec.name) for word in words)
                if self._writing is None or self._writing.done():
                    self._writing = asyncio.create_task(self._write())
                return

    async def close(self) -> None:
        """Wait until everything that was counted is stored."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._pending:
            counted, self._pending = self._pending, []
            by_key: dict[str, list[tuple[str, str]]] = {}
            for word, tool in counted:
                by_key.setdefault(_key(word), []).append((word, tool))
            with suppress(StoreUnavailableError, TimeoutError):  # logged by the store; what was counted is lost
                async with asyncio.timeout(_WRITE_S):
                    for key, added in by_key.items():
                        await self._add(key, added)

    async def _add(self, key: str, added: Sequence[tuple[str, str]]) -> None:
        """Add to the counts of a key; other servers add to the same ones."""
        for _ in range(_TRIES):
            saved = await self._store.get(key)
            uses = _uses(saved)
            for word, tool in added:
                add_use(uses, word, tool)
            for word in list(uses)[:-_STEMS]:
                del uses[word]
            if await self._store.compare_and_set(key, saved, msgspec.msgpack.encode(uses), ttl=_STORED_SECONDS):
                self._read[key] = time.monotonic(), uses
                return


def _key(word: str) -> str:
    return f"{_PREFIX}{crc32(word.encode()) % _KEYS:03x}"


def _uses(value: bytes | None) -> Uses:
    """Return what a value of the store says; nothing if it is of another version of Callyard."""
    with suppress(msgspec.DecodeError):
        return _decode(value) if value else {}
    return {}
