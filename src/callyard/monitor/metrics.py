"""Metrics: counters of calls by tool, source and caller, and rates of the last 15 minutes.

Memory is bounded: names beyond a maximum are counted as 'other'. The counters are our own; nothing here knows how they are shown.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import add
from typing import Any, Final, Literal, NamedTuple

from callyard.dispatch.call import Call
from callyard.dispatch.outcome import Record
from callyard.model.errors import Blame, CodeName

__all__ = [
    "BOUNDS_MS",
    "OTHER",
    "UNKNOWN",
    "ApprovalEvent",
    "CallStats",
    "CallerStats",
    "Label",
    "Metrics",
    "Rates",
    "Second",
    "Step",
    "Trend",
    "quantile",
]


BOUNDS_MS: Final = (
    *(0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0, 15.0, 25.0, 35.0, 50.0, 70.0),
    *(100.0, 150.0, 250.0, 350.0, 500.0, 700.0, 1e3, 1.5e3, 2.5e3, 3.5e3, 5e3, 7e3, 1e4, 1.5e4, 3e4, 4.5e4, 6e4, 9e4, 1.2e5),
)
"""The upper bounds of the histograms of durations, in milliseconds; one more bucket has what takes longer."""
_BUCKETS: Final = len(BOUNDS_MS) + 1
OTHER: Final = "other"
"""The name that names beyond the maximum are counted under."""
UNKNOWN: Final = "?"
"""The name that calls of tools that do not exist are counted under, because callers choose those names."""
_MAX_TOOLS: Final = 1000
_MAX_SOURCES: Final = 200
_MAX_CALLERS: Final = 1000
_MAX_OPEN: Final = 1000
"""The most approvals whose end is waited for; the store holds no more pending ones."""
_BATCH: Final = 256
_RATE_SECONDS: Final = 900
_TREND_STEP_S: Final = 15
_TREND_STEPS: Final = _RATE_SECONDS // _TREND_STEP_S
_OWN_FAULTS: Final = frozenset({"tool", "upstream", "yard"})
"""Who is to blame for a failure that a tool or its operator can mend."""
ApprovalEvent = Literal["asked", "approved", "denied", "expired"]


class Label(NamedTuple):
    """What a counter is for."""

    source: str
    tool: str


class Step(NamedTuple):
    """The calls of one tool that ended in 15 seconds."""

    second: int
    """Seconds since the epoch."""
    calls: int
    failed: int
    """Those that failed by a fault of the tool, its upstream or the yard, not of the caller."""


class Trend:
    """The calls of one tool in the last 15 minutes, by 15 seconds. It takes 1 KB, because a yard may have a thousand."""

    __slots__ = ("_calls", "_failed", "_numbers")

    def __init__(self) -> None:
        self._numbers = array("q", bytes(8 * _TREND_STEPS))
        self._calls = array("I", bytes(4 * _TREND_STEPS))
        self._failed = array("I", bytes(4 * _TREND_STEPS))

    def add(self, second: int, blame: Blame | None) -> None:
        """Count a call that ended in this second."""
        number = second // _TREND_STEP_S
        slot = number % _TREND_STEPS
        if self._numbers[slot] != number:
            self._numbers[slot] = number
            self._calls[slot] = self._failed[slot] = 0
        self._calls[slot] += 1
        if blame in _OWN_FAULTS:
            self._failed[slot] += 1

    def last(self, *, now: float) -> list[Step]:
        """Return the last 15 minutes up to now, the oldest first."""
        last = int(now) // _TREND_STEP_S
        return [self._step(number) for number in range(last - _TREND_STEPS + 1, last + 1)]

    def _step(self, number: int) -> Step:
        slot = number % _TREND_STEPS
        is_current = self._numbers[slot] == number
        return Step(number * _TREND_STEP_S, *((self._calls[slot], self._failed[slot]) if is_current else (0, 0)))


@dataclass(slots=True, kw_only=True)  # no structs, here and below: setting a field of one takes ten times as long
class CallStats:
    """The counters of one tool, resource or prompt."""

    calls: int = 0
    run_ms: float = 0.0
    """The sum of the durations, without the waits."""
    longest_ms: float = 0.0
    """The longest duration, without the waits."""
    waited_ms: float = 0.0
    """The sum of the waits for policies, limiters and people."""
    bytes: int = 0
    """The sum of the sizes of the results."""
    estimated_tokens: int = 0
    coerced: int = 0
    """Repaired arguments."""
    held: int = 0
    """Calls that a policy answered in place of the tool, such as those that wait for approval."""
    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    """Calls by duration without the waits, as `BOUNDS_MS` says: a tool is not slow because a person decides slowly."""
    errors: dict[tuple[CodeName, Blame], int] = field(default_factory=dict[tuple[CodeName, Blame], int])
    """Failed calls by code and blame."""
    approvals: dict[ApprovalEvent, int] = field(default_factory=dict[ApprovalEvent, int])
    """Approvals that were asked for, and how they ended."""
    trend: Trend = field(default_factory=Trend)
    """The last 15 minutes."""

    def quantile_ms(self, share: float) -> float:
        """Return the duration that this share of the calls did not exceed, such as 0.95 for p95; 0 without calls."""
        return quantile(self.buckets, share, longest=self.longest_ms)

    def add(self, record: Record) -> tuple[int, float, int]:
        """Count a call; return the second in which it ended, its duration without the waits, and its bucket."""
        duration = record.elapsed_ms
        second = int(record.started + duration / 1000.0)
        if record.waited_ms:
            self.waited_ms += record.waited_ms
            duration = max(duration - record.waited_ms, 0.0)
        bucket = bisect_left(BOUNDS_MS, duration)
        self.calls += 1
        self.run_ms += duration
        if duration > self.longest_ms:  # noqa: PLR1730 - `max` takes three times as long
            self.longest_ms = duration
        self.bytes += record.bytes
        self.estimated_tokens += record.estimated_tokens
        self.buckets[bucket] += 1
        if record.coerced:
            self.coerced += record.coerced
        if record.decision == "ask":  # `held` is also true of the calls around it
            self.held += 1
        if record.code is not None:
            key = (record.code, record.blame or "yard")
            self.errors[key] = self.errors.get(key, 0) + 1
        self.trend.add(second, record.blame)
        return second, duration, bucket

    def copy(self) -> "CallStats":
        """Return the counters as they are now."""
        return replace(self, buckets=self.buckets.copy(), errors=self.errors.copy(), approvals=self.approvals.copy())

    @classmethod
    def total(cls, parts: Sequence["CallStats"]) -> "CallStats":
        """Return the counters of several tools together, without their trends."""
        total = cls(
            longest_ms=max(part.longest_ms for part in parts), buckets=[*map(sum, zip(*(part.buckets for part in parts), strict=True))]
        )
        for name in ("calls", "run_ms", "waited_ms", "bytes", "estimated_tokens", "coerced", "held"):
            setattr(total, name, sum(getattr(part, name) for part in parts))
        for part in parts:
            for error, count in part.errors.items():
                total.errors[error] = total.errors.get(error, 0) + count
            for event, count in part.approvals.items():
                total.approvals[event] = total.approvals.get(event, 0) + count
        return total


@dataclass(slots=True)
class CallerStats:
    """The counters of one caller."""

    calls: int = 0
    errors: int = 0


class Metrics:
    """A sink that counts calls, for one yard; it is called in the event loop."""

    def __init__(self) -> None:
        self._tools: dict[Label, CallStats] = {}
        self._callers: dict[str, CallerStats] = {}
        self._rates = Rates()
        self._uncounted: list[Record] = []
        """Records are counted in batches, which takes half the time of counting each alone, and before anything is read."""
        self.open_approvals: dict[str, Label] = {}
        """Approvals that were asked for, and whose end was not counted yet: another process may decide."""
        self._sources: set[str] = set()

    def __call__(self, record: Record) -> None:
        """Count a call, soon."""
        self._uncounted.append(record)
        if len(self._uncounted) >= _BATCH:
            self._count_all()

    @property
    def tools(self) -> dict[Label, CallStats]:
        """Return the counters of each tool, resource and prompt."""
        self._count_all()
        return self._tools

    @property
    def callers(self) -> dict[str, CallerStats]:
        """Return the counters of each caller."""
        self._count_all()
        return self._callers

    @property
    def rates(self) -> "Rates":
        """Return the calls from outside by second."""
        self._count_all()
        return self._rates

    def _count_all(self) -> None:
        records, self._uncounted = self._uncounted, []
        for record in records:
            if record.delegated:  # the job is counted when it ends, so that one call is not two
                continue
            # a plain tuple finds a label and costs a third of one
            key: Any = (record.source, record.tool)
            stats = self._tools.get(key) or self._stats_of(self.label_of(*key))
            second, duration, bucket = stats.add(record)
            caller = self._callers.get(record.identity) or self._caller_of(record.identity)
            caller.calls += 1
            if record.code is not None:
                caller.errors += 1
            if not record.depth:
                self._rates.add(second, duration, bucket, record.code)

    def label_of(self, source: str, tool: str) -> Label:
        """Return the label that a tool is counted under."""
        if not source:
            return Label("", UNKNOWN)
        label = Label(source, tool)
        if label in self._tools or len(self._tools) < _MAX_TOOLS:
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

    def sources(self) -> dict[str, CallStats]:
        """Return the counters of each source: upstream, pack or yard; '' has the calls of tools that do not exist."""
        found: dict[str, list[CallStats]] = {}
        for label, stats in self.tools.items():
            found.setdefault(label.source, []).append(stats)
        return {source: CallStats.total(parts) for source, parts in found.items()}

    def count_approval(self, event: ApprovalEvent, approval_id: str, *, source: str = "", tool: str = "") -> None:
        """Count that an approval was asked for, or how it ended, which is counted once for each decision."""
        label = self.open_approvals.pop(approval_id, None) or self.label_of(source, tool)
        approvals = (self._tools.get(label) or self._stats_of(label)).approvals
        approvals[event] = approvals.get(event, 0) + 1
        if event == "asked":
            while len(self.open_approvals) >= _MAX_OPEN:
                del self.open_approvals[next(iter(self.open_approvals))]
            self.open_approvals[approval_id] = label

    def _stats_of(self, label: Label) -> CallStats:
        self._sources.add(label.source)
        if label not in self._tools:
            self._tools[label] = CallStats()
        return self._tools[label]

    def _caller_of(self, identity: str) -> CallerStats:
        known = len(self._callers) < _MAX_CALLERS
        return self._callers.setdefault(identity if known else OTHER, CallerStats())


@dataclass(slots=True)
class Second:
    """The calls from outside that ended in one second."""

    second: int
    """Seconds since the epoch."""
    calls: int = 0
    errors: dict[CodeName, int] = field(default_factory=dict[CodeName, int])
    longest_ms: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)

    def quantile_ms(self, share: float) -> float:
        """Return the duration that this share of the calls did not exceed; 0 without calls."""
        return quantile(self.buckets, share, longest=self.longest_ms) if self.calls else 0.0  # a chart has many without


class Rates:
    """Calls from outside by the second in which they ended, for the last 15 minutes."""

    def __init__(self) -> None:
        self._seconds: list[Second | None] = [None] * _RATE_SECONDS

    def add(self, number: int, duration: float, bucket: int, code: CodeName | None) -> None:
        """Count a call that ended in a second."""
        second = self._seconds[number % _RATE_SECONDS]
        if second is None or second.second != number:
            second = self._seconds[number % _RATE_SECONDS] = Second(number)
        second.calls += 1
        second.buckets[bucket] += 1
        if duration > second.longest_ms:  # noqa: PLR1730 - the same
            second.longest_ms = duration
        if code is not None:
            second.errors[code] = second.errors.get(code, 0) + 1

    def last(self, seconds: int, *, now: float, step: int = 1) -> list[Second]:
        """Return the last seconds up to now, the oldest first, or spans of several seconds; one without calls is empty."""
        last = int(now) // step * step + step - 1  # spans keep their borders while time passes
        wanted = range(last - min(seconds, _RATE_SECONDS) + 1, last + 1, step)
        if step > 1:
            return [self.total(number, step) for number in wanted]
        found = ((number, self._seconds[number % _RATE_SECONDS]) for number in wanted)
        return [second if second is not None and second.second == number else Second(number) for number, second in found]

    def total(self, first: int, seconds: int) -> Second:
        """Return the calls of several seconds, from the first on, together."""
        found = (self._seconds[one % _RATE_SECONDS] for one in range(first, first + seconds))
        counted = [second for second in found if second is not None and first <= second.second < first + seconds]
        span = Second(first)
        for second in counted:
            span.calls += second.calls
            span.longest_ms = max(span.longest_ms, second.longest_ms)
            span.buckets = [*map(add, span.buckets, second.buckets)]
            for code, count in second.errors.items():
                span.errors[code] = span.errors.get(code, 0) + count
        return span


def quantile(buckets: list[int], share: float, *, longest: float) -> float:
    """Return a quantile of a histogram in milliseconds, interpolated within its bucket; 0 if the histogram is empty.

    No duration is longer than `longest`, so a quantile is not, either.
    """
    sums = list(accumulate(buckets))
    rank = share * sums[-1]
    if not rank:
        return 0.0
    index = bisect_left(sums, rank)
    low = BOUNDS_MS[index - 1] if index else 0.0
    high = longest if index == len(BOUNDS_MS) else min(BOUNDS_MS[index], longest)
    return low + (high - low) * (rank - (sums[index] - buckets[index])) / buckets[index]
