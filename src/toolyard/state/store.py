"""The store: what everything that must last is kept in, and the one that keeps it in memory.

A store holds bytes under keys. It knows nothing of what they mean.
"""

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "MemoryStore", "Store"]

Clock = Callable[[], float]
"""Seconds that only ever grow."""


class Store(Protocol):
    """Keeps bytes under keys, for a time or for good."""

    async def get(self, key: str) -> bytes | None:
        """Return what is kept under the key, or nothing."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        """Keep the value under the key, for `ttl` seconds if given."""
        ...

    async def delete(self, key: str) -> None:
        """Forget the key; one that is not there is no fault."""
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that start so, oldest first."""
        ...

    async def count(self, key: str, *, ttl: float | None = None) -> int:
        """Add one to the counter of that name and return it; the first is 1, also once it was not used for `ttl` seconds."""
        ...


class MemoryStore:
    """Keeps everything in this process, and so no longer than it lives.

    Beyond `max_bytes` the oldest of what is kept for a time is forgotten early.
    """

    def __init__(self, *, max_bytes: int = 256 * 1024 * 1024, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: dict[str, tuple[bytes, float | None]] = {}
        self._counters: dict[str, tuple[int, float | None]] = {}

    async def get(self, key: str) -> bytes | None:
        """Return what is kept under the key, or nothing."""
        kept = self._kept.get(key)
        if kept is None or self._expired(kept):
            return None
        return kept[0]

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        """Keep the value under the key, for `ttl` seconds if given."""
        self._forget_expired()
        self._forget(key)
        self._kept[key] = (value, self._end(ttl))
        self._bytes += len(value)
        for old in [old for old, kept in self._kept.items() if kept[1] is not None and old != key]:
            if self._bytes <= self._max_bytes:
                break
            self._forget(old)

    async def delete(self, key: str) -> None:
        """Forget the key; one that is not there is no fault."""
        self._forget(key)

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that start so, oldest first."""
        self._forget_expired()
        return [key for key in self._kept if key.startswith(prefix)]

    async def count(self, key: str, *, ttl: float | None = None) -> int:
        """Add one to the counter of that name and return it; the first is 1, also once it was not used for `ttl` seconds."""
        self._forget_expired()
        number, _ = self._counters.get(key, (0, None))
        self._counters[key] = (number + 1, self._end(ttl))
        return number + 1

    def _end(self, ttl: float | None) -> float | None:
        return None if ttl is None else self._clock() + ttl

    def _expired(self, kept: tuple[object, float | None]) -> bool:
        return kept[1] is not None and kept[1] <= self._clock()

    def _forget_expired(self) -> None:
        for key in [key for key, kept in self._counters.items() if self._expired(kept)]:
            del self._counters[key]
        for key in [key for key, kept in self._kept.items() if self._expired(kept)]:
            self._forget(key)

    def _forget(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= len(kept[0])
