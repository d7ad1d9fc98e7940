"""The store: bytes under keys, with an optional time to live, and the store in memory.

It must not know what the bytes mean.
"""

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "MemoryStore", "Store"]

Clock = Callable[[], float]
"""Returns monotonic seconds."""


class Store(Protocol):
    """Stores bytes under keys."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of the key, or None."""
        ...

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        """Set the value of the key; with `ttl` it expires after that many seconds."""
        ...

    async def delete(self, key: str) -> None:
        """Delete the key, if it exists."""
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys with this prefix, oldest first."""
        ...

    async def count(self, key: str, *, ttl: float | None = None) -> int:
        """Increment a counter and return it; it starts at 1, and again after `ttl` seconds without use."""
        ...


class MemoryStore:
    """Stores everything in the memory of this process.

    Above `max_bytes`, the oldest values that have a `ttl` are deleted early.
    """

    def __init__(self, *, max_bytes: int = 256 * 1024 * 1024, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: dict[str, tuple[bytes, float | None]] = {}
        self._counters: dict[str, tuple[int, float | None]] = {}

    async def get(self, key: str) -> bytes | None:
        """Return the value of the key, or None."""
        entry = self._values.get(key)
        return None if entry is None or self._is_expired(entry) else entry[0]

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        """Set the value of the key; with `ttl` it expires after that many seconds."""
        self._delete_expired()
        self._delete(key)
        self._values[key] = (value, self._expiry(ttl))
        self._bytes += len(value)
        for old in [old for old, entry in self._values.items() if entry[1] is not None and old != key]:
            if self._bytes <= self._max_bytes:
                break
            self._delete(old)

    async def delete(self, key: str) -> None:
        """Delete the key, if it exists."""
        self._delete(key)

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys with this prefix, oldest first."""
        self._delete_expired()
        return [key for key in self._values if key.startswith(prefix)]

    async def count(self, key: str, *, ttl: float | None = None) -> int:
        """Increment a counter and return it; it starts at 1, and again after `ttl` seconds without use."""
        self._delete_expired()
        number, _ = self._counters.get(key, (0, None))
        self._counters[key] = (number + 1, self._expiry(ttl))
        return number + 1

    def _expiry(self, ttl: float | None) -> float | None:
        return None if ttl is None else self._clock() + ttl

    def _is_expired(self, entry: tuple[object, float | None]) -> bool:
        return entry[1] is not None and entry[1] <= self._clock()

    def _delete_expired(self) -> None:
        for key in [key for key, entry in self._counters.items() if self._is_expired(entry)]:
            del self._counters[key]
        for key in [key for key, entry in self._values.items() if self._is_expired(entry)]:
            self._delete(key)

    def _delete(self, key: str) -> None:
        entry = self._values.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry[0])
