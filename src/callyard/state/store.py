"""The store: bytes under keys that outlive a call, and with some stores the process.

A store must not know what the bytes mean. Its keys and values are written by the packages above it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from os import PathLike
from typing import Final, Protocol

import msgspec

__all__ = [
    "ANSWER_LOST",
    "RETRY_AFTER_MS",
    "Clock",
    "Lease",
    "Store",
    "StoreUnavailableError",
    "Subscription",
    "check_store",
    "owner_key",
]

Clock = Callable[[], float]
"""Returns seconds: monotonic ones, unless the parameter says otherwise."""
RETRY_AFTER_MS: Final = 1000
"""When to try again after a failure of the store."""
ANSWER_LOST: Final = "answer_lost"
"""The reason of a failure after which nobody knows whether a write happened."""
_MESSAGES: Final = 1000
_LASTING: Final = frozenset(
    (
        *("corrupt", "network_file_system", "newer_version", "not_a_store", "not_writable", "read_only"),
        *("no_permission", "not_installed", "old_version", "wrong_password"),
    )
)
"""Reasons that no retry changes."""


def owner_key(owner: str) -> str:
    """Return the part of a key that stands for an owner.

    It is a hash, because an owner may have any characters and any length.
    """
    return sha256(owner.encode()).hexdigest()[:32]


def check_store(store: object) -> None:
    """Check that a store is an object, because settings name stores by a text.

    Raises:
        TypeError: It is a text or a path.
    """
    if isinstance(store, str | PathLike):
        raise TypeError(
            f"'store' must be a store, not '{store}': pass 'SqliteStore(PATH)' or 'MemoryStore()'. "
            "Only settings name a store by a text."
        )


class StoreUnavailableError(Exception):
    """The store cannot be read or written now; `reason` is one word, such as 'full'.

    `may_have_run` says that a write may have happened nevertheless.
    """

    def __init__(self, message: str, *, reason: str, may_have_run: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.may_have_run = may_have_run

    @property
    def is_lasting(self) -> bool:
        """Return whether the store stays as it is until a person mends it, so that to try again is of no use."""
        return self.reason in _LASTING


class Lease(msgspec.Struct, frozen=True):
    """A right to work on something for a limited time.

    The fencing token of a later lease is always larger. Write it into what the lease protects, and change that with
    `compare_and_set`: then the holder of an older lease cannot overwrite the work of a newer one.
    """

    key: str
    token: int


class Store(Protocol):
    """Stores bytes under keys. Every method may raise `StoreUnavailableError`.

    Values, counters and leases are three separate spaces: the same key in two of them is two things. Every method is
    atomic, also between processes that share the store.
    """

    is_shared: bool = False
    """Whether servers on several machines use it: then they act as one, and rates and locks of tools hold for all."""

    async def get(self, key: str) -> bytes | None:
        """Return the value of the key, or None."""
        ...

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of several keys, in their order; None for each that has none."""
        return [await self.get(key) for key in keys]

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        """Set the value of the key; with `ttl` it expires after that many seconds."""
        ...

    async def put_many(self, values: Mapping[str, bytes], *, ttl: float | None = None) -> None:
        """Set the values of several keys, in their order, so that a failure may leave only the first ones.

        Callyard's own stores set all or none of those whose keys begin with the same word, such as 'job'.
        """
        for key, value in values.items():
            await self.put(key, value, ttl=ttl)

    async def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None, durable: bool = False
    ) -> bool:
        """Set the value of the key if it is `expected` (None: if there is none), and return whether it was.

        With `durable`, a store with copies on other machines returns once as many have it as it is set to wait for.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete the value of the key, if it exists."""
        ...

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return the first keys with this prefix in code point order; the last is the cursor for `after`."""
        ...

    async def count(self, key: str, *, by: int = 1, ttl: float | None = None) -> int:
        """Add to a counter and return it; a `by` of 0 only reads it.

        It starts at 0, and again after `ttl` seconds without an addition.
        """
        ...

    async def take_tokens(self, key: str, wanted: int, *, per_s: float, burst: int) -> tuple[int, float]:
        """Take up to so many tokens from a token bucket; return how many, and in how many seconds there is the next.

        Each key is a bucket, which begins full.
        """
        while True:
            now, saved = time.time(), await self.get(key)
            left, at = (burst, now) if saved is None else msgspec.json.decode(saved, type=tuple[float, float])
            left = min(left + max(now - at, 0.0) * per_s, burst)
            taken = min(wanted, int(left))
            changed = msgspec.json.encode((left - taken, now))
            if await self.compare_and_set(key, saved, changed, ttl=burst / per_s):
                return taken, max(1 - left + taken, 0.0) / per_s

    async def acquire(self, key: str, *, ttl: float) -> Lease | None:
        """Take the lease of the key for `ttl` seconds, or return None while somebody holds it, the caller included."""
        ...

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        """Hold a lease for `ttl` seconds from now; return False if it has ended, even if nobody else took it."""
        ...

    async def release(self, lease: Lease) -> None:
        """End a lease, if it has not ended yet."""
        ...

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to the current subscribers of a topic, in every process."""
        ...

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Receive the messages of a topic that are published while the context is open, in order.

        A subscriber that falls more than 1,000 messages behind, or a store that fails, loses some. Read the values
        again after a message and now and then, instead of trusting that each message arrives.
        """
        ...

    async def close(self) -> None:
        """Close connections and files, if there are any; a later use opens them again."""
        ...


class Subscription:
    """The messages of one subscriber; the oldest are dropped if it falls behind. Not thread-safe."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(_MESSAGES)

    def deliver(self, message: bytes) -> None:
        """Add a message."""
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(message)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await self._queue.get()
