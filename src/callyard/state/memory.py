"""The store in the memory of this process: the default of the library."""

import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from heapq import nsmallest
from itertools import count

from callyard.state.store import Clock, Lease, Subscription

__all__ = ["MemoryStore"]


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
        self._counters: dict[str, tuple[int, float | None]] = {}
        self._leases: dict[str, tuple[int, float]] = {}
        self._tokens = count(1)
        self._subscriptions: dict[str, list[Subscription]] = {}

    async def get(self, key: str) -> bytes | None:
        """Return the value of the key, or None."""
        entry = self._values.get(key)
        return None if entry is None or self._is_expired(entry) else entry[0]

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        """Set the value of the key; with `ttl` it expires after that many seconds."""
        self._put(key, value, ttl)

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None) -> bool:
        """Set the value of the key if it is `expected` (None: if there is none), and return whether it was."""
        entry = self._values.get(key)
        if (None if entry is None or self._is_expired(entry) else entry[0]) != expected:
            return False
        self._put(key, value, ttl)
        return True

    async def delete(self, key: str) -> None:
        """Delete the value of the key, if it exists."""
        self._delete(key)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return the first keys with this prefix in code point order; the last one is the cursor `after` of the next page."""
        self._delete_expired()
        return nsmallest(limit, (key for key in self._values if key > after and key.startswith(prefix)))

    async def count(self, key: str, *, by: int = 1, ttl: float | None = None) -> int:
        """Add to a counter and return it; it starts at 0, and again after `ttl` seconds without an addition. 0 only reads it."""
        self._delete_expired()
        number, _ = self._counters.get(key, (0, None))
        if by:
            self._counters[key] = (number + by, self._expiry(ttl))
        return number + by

    async def acquire(self, key: str, *, ttl: float) -> Lease | None:
        """Take the lease of the key for `ttl` seconds, or return None while somebody holds it, the caller included."""
        held = self._leases.get(key)
        if held is not None and not self._is_expired(held):
            return None
        lease = Lease(key, next(self._tokens))
        self._leases[key] = (lease.token, self._clock() + ttl)
        return lease

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        """Hold a lease for `ttl` seconds from now; return False if it has ended, even if nobody else took it."""
        if not self._is_held(lease):
            return False
        self._leases[lease.key] = (lease.token, self._clock() + ttl)
        return True

    async def release(self, lease: Lease) -> None:
        """End a lease, if it has not ended yet."""
        if self._is_held(lease):
            del self._leases[lease.key]

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to the current subscribers of a topic."""
        for subscription in self._subscriptions.get(topic, ()):
            subscription.deliver(message)

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Receive the messages of a topic that are published while the context is open, in order."""
        subscription = Subscription()
        subscriptions = self._subscriptions.setdefault(topic, [])
        subscriptions.append(subscription)
        try:
            yield subscription
        finally:
            subscriptions.remove(subscription)
            if not subscriptions and self._subscriptions.get(topic) is subscriptions:
                del self._subscriptions[topic]

    async def close(self) -> None:
        """Do nothing: there is no connection, and the values stay as long as the object."""

    def _put(self, key: str, value: bytes, ttl: float | None) -> None:
        self._delete_expired()
        self._delete(key)
        self._values[key] = (value, self._expiry(ttl))
        self._bytes += len(value)
        if self._bytes > self._max_bytes:
            self._make_room(key)

    def _make_room(self, new: str) -> None:
        """Delete the oldest values of the folder with the most bytes, until the store is small enough; never the new one."""
        folders: dict[str, deque[str]] = {}
        sizes = Counter[str]()
        for key, (value, expiry) in self._values.items():
            if expiry is not None and key != new:
                folder = key.rpartition("/")[0]
                folders.setdefault(folder, deque()).append(key)
                sizes[folder] += len(value)
        while self._bytes > self._max_bytes and sizes:
            largest = max(sizes, key=sizes.__getitem__)
            old = folders[largest].popleft()
            sizes[largest] -= len(self._values[old][0])
            self._delete(old)
            if not folders[largest]:
                del sizes[largest]

    def _is_held(self, lease: Lease) -> bool:
        held = self._leases.get(lease.key)
        return held is not None and held[0] == lease.token and not self._is_expired(held)

    def _expiry(self, ttl: float | None) -> float | None:
        return None if ttl is None else self._clock() + ttl

    def _is_expired(self, entry: tuple[object, float | None]) -> bool:
        return entry[1] is not None and entry[1] <= self._clock()

    def _delete_expired(self) -> None:
        for space in (self._counters, self._leases):
            for key in [key for key, entry in space.items() if self._is_expired(entry)]:
                del space[key]
        for key in [key for key, entry in self._values.items() if self._is_expired(entry)]:
            self._delete(key)

    def _delete(self, key: str) -> None:
        entry = self._values.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry[0])
