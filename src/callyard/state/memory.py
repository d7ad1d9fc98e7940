"""The store in the memory of this process: the default of the library.

No operation looks at all keys: the next to expire, the largest folder and the sorted keys are kept at hand.
"""

import time
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from heapq import heapify, heappop, heappush
from itertools import count, islice
from math import inf
from typing import Any, Final, Generic, TypeVar

from callyard.state.store import Clock, Lease, Store, Subscription

__all__ = ["MemoryStore"]

V = TypeVar("V")
_SWEPT: Final = 8
"""Expired entries that one operation deletes at most, so that none takes long."""
_CHUNK: Final = 1000
"""Keys that are sorted in one list."""
_SPARE: Final = 64


def _push(heap: list[tuple[float, str]], number: float, key: str, numbers: Mapping[str, float]) -> None:
    """Add the number of a key to a heap, where the former one stays: its users compare with the current `numbers`.

    Once most of the heap is outdated, it is made anew.
    """
    heappush(heap, (number, key))
    if len(heap) > 2 * len(numbers) + _SPARE:
        heap[:] = [(number, key) for key, number in numbers.items()]
        heapify(heap)


class _SortedKeys:
    """Keys in code point order, in lists short enough to insert into."""

    def __init__(self) -> None:
        self._chunks: list[list[str]] = []
        self._lasts: list[str] = []

    def add(self, key: str) -> None:
        """Add a key that is not there."""
        if not self._chunks:
            self._chunks, self._lasts = [[key]], [key]
            return
        index = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[index]
        insort(chunk, key)
        if len(chunk) > _CHUNK:
            self._chunks.insert(index, chunk[: _CHUNK // 2])
            self._lasts.insert(index, chunk[_CHUNK // 2 - 1])
            del chunk[: _CHUNK // 2]
            index += 1
        self._lasts[index] = chunk[-1]

    def remove(self, key: str) -> None:
        """Remove a key that is there."""
        index = bisect_left(self._lasts, key)
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._lasts[index] = chunk[-1]
        else:
            del self._chunks[index], self._lasts[index]

    def starting_with(self, prefix: str, after: str) -> Iterator[str]:
        """Yield the keys with a prefix that come after a key."""
        start = max(prefix, after)
        for index in range(bisect_left(self._lasts, start), len(self._chunks)):
            chunk = self._chunks[index]
            first = bisect_right(chunk, after) if after >= prefix else bisect_left(chunk, prefix)
            for key in islice(chunk, first, None):
                if not key.startswith(prefix):
                    return
                yield key


class _Expiring(Generic[V]):
    """Values by key, some of which expire; an expired one is not there, and is deleted later."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.values: dict[str, V] = {}
        self._expiries: dict[str, float] = {}
        self.heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def get(self, key: str) -> V | None:
        """Return the value of a key."""
        return None if self._expiries.get(key, inf) <= self._clock() else self.values.get(key)

    def set(self, key: str, value: V, ttl: float | None) -> None:
        """Set the value of a key, and when it expires."""
        self.values[key] = value
        self._expiries.pop(key, None)
        if ttl is not None:
            self._expiries[key] = self._clock() + ttl
            _push(self.heap, self._expiries[key], key, self._expiries)

    def pop(self, key: str) -> V | None:
        """Delete the value of a key, and return it even if it has expired."""
        self._expiries.pop(key, None)
        return self.values.pop(key, None)

    def expired(self) -> Iterator[str]:
        """Yield each expired key; it must be deleted."""
        now = self._clock()
        while self.heap and self.heap[0][0] <= now:
            expiry, key = heappop(self.heap)
            if self._expiries.get(key) == expiry:
                yield key


class _Folders:
    """Keys of values that may be deleted early, by folder."""

    def __init__(self) -> None:
        self._folders: dict[str, OrderedDict[str, int]] = {}
        """The bytes of each value, the oldest value first."""
        self._sizes: dict[str, float] = {}
        """The bytes of each folder, below zero."""
        self._heap: list[tuple[float, str]] = []

    def add(self, key: str, size: int) -> None:
        """Add a key, which is not there."""
        name = key.rpartition("/")[0]
        self._folders.setdefault(name, OrderedDict())[key] = size
        self._sizes[name] = self._sizes.get(name, 0) - size
        _push(self._heap, self._sizes[name], name, self._sizes)

    def remove(self, key: str) -> None:
        """Remove a key, if it is there."""
        name = key.rpartition("/")[0]
        if key not in self._folders.get(name, ()):
            return
        self._sizes[name] += self._folders[name].pop(key)
        if self._folders[name]:
            _push(self._heap, self._sizes[name], name, self._sizes)
        else:
            del self._folders[name], self._sizes[name]

    def oldest_of_largest(self) -> str | None:
        """Return the oldest key in the folder with the most bytes."""
        while self._heap:
            size, name = self._heap[0]
            if self._sizes.get(name) == size:
                return next(iter(self._folders[name]))
            heappop(self._heap)
        return None


class MemoryStore(Store):
    """Stores everything in the memory of this process.

    Above `max_bytes`, values that have a `ttl` are deleted early: the oldest of the folder with the most bytes, so that
    one owner does not push out the values of another. The folder of a key ends with its last slash.
    """

    def __init__(self, *, max_bytes: int = 256 * 1024 * 1024, clock: Clock = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._bytes = 0
        self._values = _Expiring[bytes](clock)
        self._counters = _Expiring[int](clock)
        self._leases = _Expiring[int](clock)
        self._keys = _SortedKeys()
        self._folders = _Folders()
        self._tokens = count(1)
        self._subscriptions: dict[str, list[Subscription]] = {}

    async def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        self._put(key, value, ttl)

    async def compare_and_set(
        self,
        key: str,
        expected: bytes | None,
        value: bytes,
        *,
        ttl: float | None = None,
        durable: bool = False,  # noqa: ARG002 - there are no copies
    ) -> bool:
        if self._values.get(key) != expected:
            return False
        self._put(key, value, ttl)
        return True

    async def delete(self, key: str) -> None:
        self._delete(key)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        for key in self._values.expired():
            self._delete(key)
        return list(islice(self._keys.starting_with(prefix, after), max(limit, 0)))

    async def count(self, key: str, *, by: int = 1, ttl: float | None = None) -> int:
        self._sweep()
        number = (self._counters.get(key) or 0) + by
        if by:
            self._counters.set(key, number, ttl)
        return number

    async def acquire(self, key: str, *, ttl: float) -> Lease | None:
        if self._leases.get(key) is not None:
            return None
        lease = Lease(key, next(self._tokens))
        self._leases.set(key, lease.token, ttl)
        return lease

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        if self._leases.get(lease.key) != lease.token:
            return False
        self._leases.set(lease.key, lease.token, ttl)
        return True

    async def release(self, lease: Lease) -> None:
        if self._leases.get(lease.key) == lease.token:
            self._leases.pop(lease.key)

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
            if not subscriptions:
                del self._subscriptions[topic]

    async def close(self) -> None:
        """Do nothing: there is no connection, and the values stay as long as the object."""

    def _put(self, key: str, value: bytes, ttl: float | None) -> None:
        self._sweep()
        if key in self._values.values:
            self._delete(key)
        if self._bytes + len(value) > self._max_bytes:
            self._make_room(len(value))
        self._values.set(key, value, ttl)
        self._keys.add(key)
        self._bytes += len(value)
        if ttl is not None:
            self._folders.add(key, len(value))

    def _sweep(self) -> None:
        now = self._clock()
        tables: list[tuple[_Expiring[Any], Callable[[str], object]]] = [
            (self._values, self._delete),
            (self._counters, self._counters.pop),
            (self._leases, self._leases.pop),
        ]
        for table, delete in tables:
            if table.heap and table.heap[0][0] <= now:
                for key in islice(table.expired(), _SWEPT):
                    delete(key)

    def _make_room(self, size: int) -> None:
        """Delete expired values, then the oldest of the folder with the most bytes, until so many bytes fit."""
        expired = self._values.expired()
        while self._bytes + size > self._max_bytes:
            old = next(expired, None) or self._folders.oldest_of_largest()
            if old is None:
                return
            self._delete(old)

    def _delete(self, key: str) -> None:
        value = self._values.pop(key)
        if value is None:
            return
        self._keys.remove(key)
        self._bytes -= len(value)
        self._folders.remove(key)
