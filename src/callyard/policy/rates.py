"""Rates: how often calls may come, as token buckets in the memory of this process."""

import time
from typing import Final

from callyard.dispatch.call import Call
from callyard.model.profile import first_match
from callyard.policy.refusals import RefusalReason, refuse
from callyard.policy.settings import RateSettings
from callyard.state.store import Clock

__all__ = ["Rates"]

_MINUTE_S: Final = 60.0
_MAX_BUCKETS: Final = 10_000
"""The number of buckets, and of remembered pairs of caller and tool, from which on full buckets are dropped."""


class _Bucket:
    """A token bucket: it fills at a rate, and each call takes one token."""

    __slots__ = ("at", "burst", "left", "per_second", "reason")

    def __init__(self, per_minute: float, burst: int, *, reason: RefusalReason, now: float) -> None:
        self.per_second = per_minute / _MINUTE_S
        self.burst = self.left = float(burst)
        self.reason: RefusalReason = reason
        self.at = now

    def fill(self, now: float) -> float:
        """Add what came since the last call, and return the number of tokens."""
        left = self.left + (now - self.at) * self.per_second
        self.left = left = min(left, self.burst)
        self.at = now
        return left


class Rates:
    """The rates of one yard."""

    def __init__(self, settings: RateSettings, *, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._buckets: dict[tuple[str, ...], _Bucket] = {}
        self._of: dict[tuple[str, str], tuple[_Bucket, ...]] = {}
        """The buckets of a caller and a tool, because looking up each would double the cost."""

    def take(self, call: Call) -> None:
        """Count a call.

        Raises:
            ToolError: `rate_limited` if it comes too early; it is not counted then.
        """
        key = (call.request.caller.identity, call.spec.name)
        now = self._clock()
        buckets = self._of.get(key)
        if buckets is None:
            buckets = self._find(key, now)
        for bucket in buckets:
            # As `fill` does: calling it would double the cost of a rate.
            left = bucket.left + (now - bucket.at) * bucket.per_second
            bucket.at = now
            bucket.left = left = min(bucket.burst, left) - 1.0
            if left < 0.0:
                for taken in buckets[: buckets.index(bucket) + 1]:
                    taken.left += 1.0
                raise self._refusal(call, buckets, now)

    def _refusal(self, call: Call, buckets: tuple[_Bucket, ...], now: float) -> Exception:
        """Return the failure that names the rate for which the call must wait longest."""
        waits = [((1.0 - bucket.fill(now)) / bucket.per_second, bucket) for bucket in buckets]
        seconds, bucket = max(waits, key=lambda wait: wait[0])
        limit = bucket.per_second * _MINUTE_S
        whose = {"rate_of_caller": "one caller", "rate_of_tool": f"one caller of '{call.spec.name}'"}.get(
            bucket.reason, "all callers together"
        )
        message = f"The rate is used up: {limit:.3g} calls a minute are the limit of {whose}."
        return refuse(call, "rate_limited", bucket.reason, message, retry_after_ms=int(seconds * 1000) + 1, per_minute=limit)

    def _find(self, key: tuple[str, str], now: float) -> tuple[_Bucket, ...]:
        """Return the buckets of a caller and a tool, and remember them."""
        settings, (identity, tool) = self._settings, key
        own = first_match(tool, settings.tools)
        wanted: list[tuple[tuple[str, ...], float, RefusalReason]] = [
            ((), settings.calls, "rate_of_all"),
            ((identity,), settings.per_caller, "rate_of_caller"),
            (key, settings.per_tool if own is None else own, "rate_of_tool"),
        ]
        if max(len(self._buckets), len(self._of)) >= _MAX_BUCKETS:
            self._drop_full(now)
        found = self._of[key] = tuple(self._bucket(name, rate, reason, now) for name, rate, reason in wanted if rate)
        return found

    def _bucket(self, name: tuple[str, ...], rate: float, reason: RefusalReason, now: float) -> _Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = _Bucket(rate, self._settings.burst, reason=reason, now=now)
        return bucket

    def _drop_full(self, now: float) -> None:
        """Drop the buckets that are full again, which a new one would be as well."""
        self._of.clear()
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.fill(now) < bucket.burst}
