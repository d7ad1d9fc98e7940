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

    Above `max_bytes`, values that have a `ttl` are deleted early: the oldest of the folder with the most bytes, so that one owner
    does not push out the values of another. The folder of a key ends with its last slash.
    """

    def __init__(self, *, max_bytes: int = 256 * 1024 * 1024, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: dict[str, tuple[bytes, float | None]] = {}
        self._folders: dict[str, dict[str, int]] = {}
        """By folder, the sizes of its values that have a `ttl`, the oldest first."""
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
        if ttl is not None:
            folder = self._folders.setdefault(_folder_of(key), {})
            folder[key] = len(value)
        while self._bytes > self._max_bytes and self._delete_oldest(but=key):
            pass

    def _delete_oldest(self, *, but: str) -> bool:
        """Delete the oldest value of the largest folder; return whether there was one."""
        sizes = {folder: sum(sizes.values()) - sizes.get(but, 0) for folder, sizes in self._folders.items()}
        largest = max(sizes, key=sizes.__getitem__, default=None)
        old = None if largest is None else next((key for key in self._folders[largest] if key != but), None)
        if old is None:
            return False
        self._delete(old)
        return True

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
            folder = self._folders.get(_folder_of(key), {})
            folder.pop(key, None)
            if not folder:
                self._folders.pop(_folder_of(key), None)


def _folder_of(key: str) -> str:
    return key.rpartition("/")[0]
