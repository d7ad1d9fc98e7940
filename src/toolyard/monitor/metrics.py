"""Metrics: counters of calls by tool, source and caller, and rates of the last ten minutes.

Memory is bounded: names beyond a maximum are counted as 'other'. The counters are our own; nothing here knows how they are shown.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from toolyard.dispatch.call import Call
from toolyard.dispatch.outcome import Record
from toolyard.model.errors import Blame, CodeName

__all__ = ["BOUNDS_MS", "OTHER", "UNKNOWN", "CallStats", "CallerStats", "Label", "Metrics", "Rates", "Second", "quantile"]


BOUNDS_MS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 3e4, 6e4, 1.2e5)
"""The upper bounds of the histograms of durations, in milliseconds; one more bucket has what takes longer."""
_BUCKETS: Final = len(BOUNDS_MS) + 1
OTHER: Final = "other"
"""The name that names beyond the maximum are counted under."""
UNKNOWN: Final = "?"
"""The name that calls of tools that do not exist are counted under, because callers choose those names."""
_MAX_TOOLS: Final = 1000
_MAX_SOURCES: Final = 200
_MAX_CALLERS: Final = 1000
_RATE_SECONDS: Final = 600


class Label(NamedTuple):
    """What a counter is for."""

    source: str
    tool: str


class CallStats(msgspec.Struct, kw_only=True):
    """The counters of one tool, resource or prompt."""

    calls: int = 0
    elapsed_ms: float = 0.0
    """The sum of the durations."""
    waited_ms: float = 0.0
    """The sum of the waits for policies, limiters and people."""
    bytes: int = 0
    """The sum of the sizes of the results."""
    estimated_tokens: int = 0
    coerced: int = 0
    """Repaired arguments."""
    held: int = 0
    """Calls that a policy answered in place of the tool, such as those that wait for approval."""
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * _BUCKETS)
    """Calls by duration, as `BOUNDS_MS` says."""
    errors: dict[tuple[CodeName, Blame], int] = {}
    """Failed calls by code and blame."""

    def quantile_ms(self, share: float) -> float:
        """Return the duration that this share of the calls did not exceed, such as 0.95 for p95; 0 without calls."""
        return quantile(self.buckets, share)

    def add(self, record: Record, bucket: int) -> None:
        """Count a call, whose duration belongs to this bucket."""
        self.calls += 1
        self.elapsed_ms += record.elapsed_ms
        self.bytes += record.bytes
        self.estimated_tokens += record.estimated_tokens
        self.buckets[bucket] += 1
        if record.waited_ms:
            self.waited_ms += record.waited_ms
        if record.coerced:
            self.coerced += record.coerced
        if record.decision == "ask":  # `held` is also true of the calls around it
            self.held += 1
        if record.code is not None:
            key = (record.code, record.blame or "yard")
            self.errors[key] = self.errors.get(key, 0) + 1

    def copy(self) -> "CallStats":
        """Return the counters as they are now."""
        return msgspec.structs.replace(self, buckets=self.buckets.copy(), errors=self.errors.copy())


class CallerStats(msgspec.Struct):
    """The counters of one caller."""

    calls: int = 0
    errors: int = 0


class Metrics:
    """A sink that counts calls, for one yard; it is called in the event loop."""

    def __init__(self) -> None:
        self.tools: dict[Label, CallStats] = {}
        self.callers: dict[str, CallerStats] = {}
        self.rates = Rates()
        self._sources: set[str] = set()

    def __call__(self, record: Record) -> None:
        """Count a call."""
        # a plain tuple finds a label and costs a third of one
        stats = self.tools.get((record.source, record.tool)) or self._stats_of(record)  # pyright: ignore[reportArgumentType, reportCallIssue] - a label is a tuple
        bucket = bisect_left(BOUNDS_MS, record.elapsed_ms)
        stats.add(record, bucket)
        caller = self.callers.get(record.identity) or self._caller_of(record.identity)
        caller.calls += 1
        if record.code is not None:
            caller.errors += 1
        if not record.depth:
            self.rates.add(record, bucket)

    def label_of(self, source: str, tool: str) -> Label:
        """Return the label that a tool is counted under."""
        if not source:
            return Label("", UNKNOWN)
        label = Label(source, tool)
        if label in self.tools or len(self.tools) < _MAX_TOOLS:
            return label
        return Label(source, OTHER) if source in self._sources or len(self._sources) < _MAX_SOURCES else Label(OTHER, OTHER)

    def count_running(self, calls: Iterable[Call]) -> tuple[Mapping[Label, int], Mapping[Label, int]]:
        """Return how many of these calls are in flight, and how many of those still wait for policies and limiters."""
        running: Counter[Label] = Counter()
        queued: Counter[Label] = Counter()
        for call in calls:
            label = self.label_of(call.spec.source, call.spec.name)
            running[label] += 1
            queued[label] += not call.may_have_run
        return running, queued

    def _stats_of(self, record: Record) -> CallStats:
        label = self.label_of(record.source, record.tool)
        self._sources.add(label.source)
        return self.tools.setdefault(label, CallStats())

    def _caller_of(self, identity: str) -> CallerStats:
        known = len(self.callers) < _MAX_CALLERS
        return self.callers.setdefault(identity if known else OTHER, CallerStats())


class Second(msgspec.Struct):
    """The calls from outside that ended in one second."""

    second: int
    """Seconds since the epoch."""
    calls: int = 0
    errors: dict[CodeName, int] = {}
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * _BUCKETS)

    @property
    def p95_ms(self) -> float:
        """Return the duration that 95 of 100 calls did not exceed."""
        return quantile(self.buckets, 0.95)


class Rates:
    """Calls from outside by the second in which they ended, for the last ten minutes."""

    def __init__(self) -> None:
        self._seconds: list[Second | None] = [None] * _RATE_SECONDS

    def add(self, record: Record, bucket: int) -> None:
        """Count a call, whose duration belongs to this bucket."""
        now = int(record.started + record.elapsed_ms / 1000)
        second = self._seconds[now % _RATE_SECONDS]
        if second is None or second.second != now:
            second = self._seconds[now % _RATE_SECONDS] = Second(now)
        second.calls += 1
        second.buckets[bucket] += 1
        if record.code is not None:
            second.errors[record.code] = second.errors.get(record.code, 0) + 1

    def last(self, seconds: int, *, now: float) -> list[Second]:
        """Return the last seconds up to now, the oldest first; a second without calls is empty."""
        wanted = range(int(now) - min(seconds, _RATE_SECONDS) + 1, int(now) + 1)
        found = ((number, self._seconds[number % _RATE_SECONDS]) for number in wanted)
        return [second if second is not None and second.second == number else Second(number) for number, second in found]


def quantile(buckets: list[int], share: float) -> float:
    """Return a quantile of a histogram in milliseconds, interpolated within its bucket; 0 if the histogram is empty."""
    sums = list(accumulate(buckets))
    rank = share * sums[-1]
    if not rank:
        return 0.0
    index = bisect_left(sums, rank)
    if index == len(BOUNDS_MS):
        return BOUNDS_MS[-1]
    low = BOUNDS_MS[index - 1] if index else 0.0
    return low + (BOUNDS_MS[index] - low) * (rank - (sums[index] - buckets[index])) / buckets[index]
