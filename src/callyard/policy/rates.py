"""Rates: how often calls may come, as token buckets in the memory of this process.

Queue and budgets refuse calls with the same failure and the same line in the log.
"""

import logging
import time
from typing import Any, Final

import msgspec

from callyard.dispatch.call import Call
from callyard.model.elicitation import RefusalReason
from callyard.model.errors import CodeName, ToolError
from callyard.model.profile import first_match
from callyard.policy.settings import RateSettings
from callyard.state.store import Clock

__all__ = ["Rates", "log_refusal", "refuse"]

_MINUTE_S: Final = 60.0
_MAX_BUCKETS: Final = 10_000
"""The number of buckets, and of remembered pairs of caller and tool, from which on full buckets are dropped."""
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
    burst: float
    reason: RefusalReason
    at: float
    left: float

    def fill(self, now: float) -> None:
        """Add what came since the last time."""
        self.left = min(self.left + (now - self.at) * self.per_minute / _MINUTE_S, self.burst)
        self.at = now


class Rates:
    """The rates of one yard."""

    def __init__(self, settings: RateSettings, *, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._buckets: dict[tuple[str, ...], _Bucket] = {}
        self._of: dict[tuple[str, str], list[_Bucket]] = {}

    def take(self, call: Call) -> None:
        """Count a call.

        Raises:
            ToolError: `rate_limited` if it comes too early; it is not counted then.
        """
        key = (call.request.caller.identity, call.spec.name)
        now = self._clock()
        buckets = self._of.get(key) or self._find(*key, now)
        for bucket in buckets:
            bucket.fill(now)
        if any(bucket.left < 1 for bucket in buckets):
            raise self._refusal(call, buckets)
        for bucket in buckets:
            bucket.left -= 1

    def _refusal(self, call: Call, buckets: list[_Bucket]) -> ToolError:
        """Return the failure that names the rate for which the call must wait longest."""
        waits = [((1.0 - bucket.left) / bucket.per_minute * _MINUTE_S, bucket) for bucket in buckets]
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
            self._buckets.setdefault(name, _Bucket(rate, settings.burst, reason, now, settings.burst))
            for name, rate, reason in wanted
            if rate
        ]
        return found

    def _drop_full(self, now: float) -> None:
        """Drop the buckets that are full again, which a new one would be as well."""
        self._of.clear()
        for bucket in self._buckets.values():
            bucket.fill(now)
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.left < bucket.burst}
