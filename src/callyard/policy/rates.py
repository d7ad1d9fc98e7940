"""Rates: how often calls may come, as token buckets in the memory of this process, or in a store of several machines.

A process takes tokens of a shared bucket ahead, a tenth of a burst at a time, so that few calls wait for the store.
Queue and budgets refuse calls with the same failure and the same line in the log.
"""

import asyncio
import logging
import time
from typing import Any, Final

import msgspec

from callyard.dispatch.call import Call
from callyard.dispatch.outcome import store_unavailable
from callyard.model.elicitation import STORE_UNAVAILABLE, RefusalReason
from callyard.model.envelope import encode
from callyard.model.errors import CodeName, ToolError
from callyard.model.profile import first_match
from callyard.policy.settings import RateSettings
from callyard.state.store import Clock, Store, StoreUnavailableError, owner_key

__all__ = ["Rates", "log_refusal", "refuse"]

_MINUTE_S: Final = 60.0
_MAX_BUCKETS: Final = 10_000
"""The number of buckets, and of remembered pairs of caller and tool, from which on full buckets are dropped."""
_BLOCKS: Final = 10
"""How many blocks a burst has: with larger ones, servers that share a rate refuse calls too early."""
_KEPT_BURSTS: Final = 10
"""How long tokens are kept that were taken ahead, as a multiple of the time in which a bucket fills."""
_log = logging.getLogger("callyard.policy")


def refuse(call: Call, code: CodeName, reason: RefusalReason, message: str, **details: Any) -> ToolError:
    """Log a refusal, and return the failure of a call that did not run."""
    log_refusal(call, code, reason)
    return ToolError(code, message, reason=reason, may_have_run=False, **details)


def log_refusal(call: Call, code: CodeName, reason: RefusalReason) -> None:
    """Write the line of a refusal."""
    _log.warning("refused tool=%s code=%s reason=%s depth=%d id=%s", call.tool, code, reason, call.depth, call.id)


class _Bucket(msgspec.Struct):
    """A token bucket: it fills at a rate, and each call takes one token."""

    per_minute: float
    burst: int
    reason: RefusalReason
    at: float
    left: float

    @property
    def is_new(self) -> bool:
        """Return whether a new bucket would be the same."""
        return self.left >= self.burst

    def wait(self, now: float) -> float:  # noqa: ARG002 - that of a shared one depends on it
        """Return in how many seconds there is a token."""
        return max(1 - self.left, 0.0) / self.per_minute * _MINUTE_S

    def fill(self, now: float) -> None:
        """Add what came since the last time."""
        self.left = min(self.left + (now - self.at) * self.per_minute / _MINUTE_S, self.burst)
        self.at = now


class _SharedBucket(_Bucket, kw_only=True):
    """The tokens of a bucket in the store that this process has taken ahead."""

    key: str
    next_at: float = 0.0
    """When the bucket in the store has the next token, if it had too few."""
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    @property
    def is_new(self) -> bool:
        """Return whether there is nothing to forget."""
        return self.left < 1 and not self.lock.locked()

    def fill(self, now: float) -> None:
        """Drop tokens that were taken long ago: the bucket in the store is full again."""
        if now - self.at > _KEPT_BURSTS * self.burst / self.per_minute * _MINUTE_S:
            self.left = 0

    def wait(self, now: float) -> float:
        """Return in how many seconds there is a token."""
        return 0.0 if self.left >= 1 else max(self.next_at - now, 0.0)

    async def take_ahead(self, store: Store, clock: Clock) -> None:
        """Take a block of tokens, unless somebody else just did."""
        async with self.lock:
            if self.left >= 1 or self.wait(clock()):
                return
            block, per_s = max(self.burst // _BLOCKS, 1), self.per_minute / _MINUTE_S
            self.left, seconds = await store.take_tokens(self.key, block, per_s=per_s, burst=self.burst)
            self.at = clock()
            self.next_at = self.at + (seconds if self.left < block else 0.0)


class Rates:
    """The rates of one yard; those in a shared store hold for all servers that use it."""

    def __init__(self, settings: RateSettings, store: Store, *, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._store = store if store.is_shared else None
        self._clock = clock
        self._buckets: dict[tuple[str, ...], _Bucket] = {}
        self._of: dict[tuple[str, str], list[_Bucket]] = {}

    async def take(self, call: Call) -> None:
        """Count a call.

        Raises:
            ToolError: `rate_limited` if it comes too early, `overloaded` while the store cannot be used; it is not
                counted then.
        """
        key = (call.request.caller.identity, call.spec.name)
        now = self._clock()
        buckets = self._of.get(key) or self._find(*key, now)
        for bucket in buckets:
            bucket.fill(now)
        while lacking := [bucket for bucket in buckets if bucket.left < 1]:
            shared = [bucket for bucket in lacking if isinstance(bucket, _SharedBucket)]
            if self._store is None or any(bucket.wait(self._clock()) for bucket in shared):
                raise self._refusal(call, buckets)
            await self._take_ahead(call, shared, self._store)
        for bucket in buckets:
            bucket.left -= 1

    async def _take_ahead(self, call: Call, buckets: list[_SharedBucket], store: Store) -> None:
        """Take tokens for each of several buckets, in one round trip where the store can."""
        works = [bucket.take_ahead(store, self._clock) for bucket in buckets]
        try:
            if len(works) == 1:  # a task for it would take 15 µs
                await works[0]
            else:
                await asyncio.gather(*works)
        except StoreUnavailableError as error:
            failure = store_unavailable(error, may_have_run=False)
            log_refusal(call, failure.code, STORE_UNAVAILABLE)
            raise failure from None

    def _refusal(self, call: Call, buckets: list[_Bucket]) -> ToolError:
        """Return the failure that names the rate for which the call must wait longest."""
        now = self._clock()
        waits = [(bucket.wait(now), bucket) for bucket in buckets]
        seconds, bucket = max(waits, key=lambda wait: wait[0])
        limit = bucket.per_minute
        names = {"rate_of_caller": "one caller", "rate_of_tool": f"one caller of '{call.spec.name}'"}
        whose = names.get(bucket.reason, "all callers together")
        message = f"The rate is used up: {limit:.3g} calls a minute are the limit of {whose}."
        after = int(seconds * 1000) + 1
        return refuse(call, "rate_limited", bucket.reason, message, retry_after_ms=after, per_minute=limit)

    def _find(self, identity: str, tool: str, now: float) -> list[_Bucket]:
        """Return the buckets of a caller and a tool, and remember them."""
        settings = self._settings
        own = first_match(tool, settings.tools)
        wanted: list[tuple[tuple[str, ...], float, RefusalReason]] = [
            ((), settings.calls, "rate_of_all"),
            ((identity,), settings.per_caller, "rate_of_caller"),
            ((identity, tool), settings.per_tool if own is None else own, "rate_of_tool"),
        ]
        if max(len(self._buckets), len(self._of)) >= _MAX_BUCKETS:
            self._drop_full(now)
        found = self._of[identity, tool] = [
            self._buckets.setdefault(name, self._new_bucket(name, rate, reason, now))
            for name, rate, reason in wanted
            if rate
        ]
        return found

    def _new_bucket(self, name: tuple[str, ...], rate: float, reason: RefusalReason, now: float) -> _Bucket:
        burst = self._settings.burst
        if self._store is None:
            return _Bucket(rate, burst, reason, now, burst)
        return _SharedBucket(rate, burst, reason, now, 0, key=f"rate/{owner_key(encode(name).decode())}")

    def _drop_full(self, now: float) -> None:
        """Drop the buckets that a new one would be equal to, such as those that are full again."""
        self._of.clear()
        for bucket in self._buckets.values():
            bucket.fill(now)
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_new}
