"""Sinks without a file: counters of calls by tool, source and caller with their rates, a ring, and lines of the log.

Memory is bounded: names beyond a maximum are counted as 'other'. The counters are our own; nothing here knows how they
are shown.
"""

import logging
import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import add
from typing import Final, Literal, NamedTuple

from callyard.dispatch.call import Call
from callyard.dispatch.outcome import Record
from callyard.model.errors import Blame, CodeName
from callyard.model.spec import Kind

__all__ = [
    "BOUNDS_MS",
    "OTHER",
    "OWN_FAULTS",
    "UNKNOWN",
    "ApprovalEvent",
    "CallStats",
    "CallerStats",
    "Durations",
    "Label",
    "Metrics",
    "Part",
    "Rates",
    "Ring",
    "Second",
    "Share",
    "Step",
    "Trend",
    "log_sink",
]

_STEPS_MS: Final = (0.1, 0.15, 0.2, 0.35, 0.5, 0.7)
BOUNDS_MS: Final = (
    *(round(step * scale, 2) for scale in (1, 10, 100, 1000, 10_000) for step in _STEPS_MS),
    *(1e4, 1.5e4, 3e4, 4.5e4, 6e4, 9e4, 1.2e5, 2e5, 3e5),
)
"""The upper bounds of the histograms of durations, in milliseconds; one more bucket has what takes longer.

Those of OpenTelemetry's conventions are among them.
"""
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
_RATE_SECONDS: Final = 900
_TREND_STEP_S: Final = 15
_TREND_STEPS: Final = _RATE_SECONDS // _TREND_STEP_S
OWN_FAULTS: Final = frozenset({"tool", "upstream", "yard"})
"""Who is to blame for a failure that a tool or its operator can mend."""
_log = logging.getLogger("callyard.calls")
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
    """The calls of one tool in the last 15 minutes, by 15 seconds.

    It takes 1 KB, because a yard may have a thousand.
    """

    __slots__ = ("_calls", "_failed", "_numbers", "latest")

    def __init__(self) -> None:
        self._numbers = array("q", bytes(8 * _TREND_STEPS))
        self._calls = array("I", bytes(4 * _TREND_STEPS))
        self._failed = array("I", bytes(4 * _TREND_STEPS))
        self.latest = 0
        """The second in which the last call ended."""

    def add(self, second: int, blame: Blame | None) -> None:
        """Count a call that ended in this second."""
        self.latest = second
        number = second // _TREND_STEP_S
        slot = number % _TREND_STEPS
        if self._numbers[slot] != number:
            self._numbers[slot] = number
            self._calls[slot] = self._failed[slot] = 0
        self._calls[slot] += 1
        if blame in OWN_FAULTS:
            self._failed[slot] += 1

    def last(self, *, now: float | None = None) -> list[Step]:
        """Return the last 15 minutes up to now, the oldest first."""
        last = int(time.time() if now is None else now) // _TREND_STEP_S
        return [self._step(number) for number in range(last - _TREND_STEPS + 1, last + 1)]

    def total(self, seconds: float, *, now: float) -> tuple[int, int]:
        """Return how many calls ended in the last seconds, and how many of them failed."""
        last = int(now) // _TREND_STEP_S
        slots = (number % _TREND_STEPS for number in range(last - int(seconds) // _TREND_STEP_S + 1, last + 1))
        current = [slot for slot in slots if last - self._numbers[slot] < _TREND_STEPS]
        return sum(self._calls[slot] for slot in current), sum(self._failed[slot] for slot in current)

    def _step(self, number: int) -> Step:
        slot = number % _TREND_STEPS
        is_current = self._numbers[slot] == number
        return Step(number * _TREND_STEP_S, *((self._calls[slot], self._failed[slot]) if is_current else (0, 0)))


@dataclass(slots=True, kw_only=True)  # no structs, here and below: setting a field of one takes ten times as long
class Durations:
    """How many calls there were, and how long they took without their waits."""

    calls: int = 0
    longest_ms: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    """Calls by duration, as `BOUNDS_MS` says: a tool is not slow because a person decides slowly."""

    def quantile_ms(self, share: float) -> float:
        """Return the duration that this share of the calls did not exceed, such as 0.95 for p95; 0 without calls.

        It is interpolated within its bucket, and not longer than the longest call.
        """
        sums = list(accumulate(self.buckets))
        rank = share * sums[-1]
        if not rank:
            return 0.0
        index = bisect_left(sums, rank)
        low = BOUNDS_MS[index - 1] if index else 0.0
        high = self.longest_ms if index == len(BOUNDS_MS) else min(BOUNDS_MS[index], self.longest_ms)
        return low + (high - low) * (rank - (sums[index] - self.buckets[index])) / self.buckets[index]

    def count(self, duration: float) -> None:
        """Count a call."""
        self.calls += 1
        self.longest_ms = max(self.longest_ms, duration)
        self.buckets[bisect_left(BOUNDS_MS, duration)] += 1

    def merge(self, other: "Durations") -> None:
        """Count the calls of another one, too."""
        self.calls += other.calls
        self.longest_ms = max(self.longest_ms, other.longest_ms)
        self.buckets = [*map(add, self.buckets, other.buckets)]


class Part(NamedTuple):
    """Some of the calls of a tool."""

    is_inner: bool
    failed: bool


@dataclass(slots=True, kw_only=True)
class Share(Durations):
    """The durations of some of the calls of a tool."""

    run_ms: float = 0.0
    """Their sum."""


@dataclass(slots=True, kw_only=True)
class CallStats(Durations):
    """The counters of one tool, resource or prompt."""

    run_ms: float = 0.0
    """The sum of the durations, without the waits."""
    waited_ms: float = 0.0
    """The sum of the waits for policies, limiters and people."""
    bytes: int = 0
    """The sum of the sizes of the results."""
    estimated_tokens: int = 0
    coerced: int = 0
    held: int = 0
    """Calls that a policy answered in place of the tool, such as those that wait for approval."""
    errors: Counter[tuple[CodeName, Blame]] = field(default_factory=Counter[tuple[CodeName, Blame]])
    approvals: Counter[ApprovalEvent] = field(default_factory=Counter[ApprovalEvent])
    """Approvals that were asked for, and how they ended."""
    kind: Kind = "tool"
    parts: dict[Part, Share] = field(default_factory=dict[Part, Share])
    """The calls that are nested in others or failed; the rest came from outside and succeeded."""
    trend: Trend = field(default_factory=Trend)

    def add(self, record: Record, duration: float, second: int) -> None:
        """Count a call that took a time without its waits, and ended in a second."""
        self.count(duration)
        self.run_ms += duration
        self.waited_ms += record.waited_ms
        self.bytes += record.bytes
        self.estimated_tokens += record.estimated_tokens
        self.coerced += record.coerced
        self.held += record.decision == "ask"  # `record.held` is also true of the calls around it
        if record.code is not None:
            self.errors[record.code, record.blame or "yard"] += 1
        if record.depth or record.code is not None:
            self._count_part(Part(record.depth > 0, record.code is not None), duration)
        self.trend.add(second, record.blame)

    def _count_part(self, part: Part, duration: float) -> None:
        share = self.parts.get(part)
        if share is None:
            share = self.parts[part] = Share()
        share.count(duration)
        share.run_ms += duration

    def copy(self) -> "CallStats":
        """Return the counters as they are now."""
        parts = {part: replace(share, buckets=share.buckets.copy()) for part, share in self.parts.items()}
        counters = {"errors": self.errors.copy(), "approvals": self.approvals.copy()}
        return replace(self, buckets=self.buckets.copy(), parts=parts, **counters)

    def merge_tool(self, other: "CallStats") -> None:
        """Count the calls of another tool, too, but not in the trend."""
        self.merge(other)
        for name in ("run_ms", "waited_ms", "bytes", "estimated_tokens", "coerced", "held"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.errors += other.errors
        self.approvals += other.approvals


@dataclass(slots=True)
class CallerStats:
    """The counters of one caller."""

    calls: int = 0
    errors: int = 0


class Metrics:
    """A sink that counts calls, for one yard; it is called in the event loop."""

    def __init__(self) -> None:
        self.tools: dict[Label, CallStats] = {}
        self.callers: dict[str, CallerStats] = {}
        self.rates = Rates()
        self.open_approvals: dict[str, Label] = {}
        """Approvals that were asked for, and whose end was not counted yet: another process may decide."""
        self._sources: set[str] = set()

    def __call__(self, record: Record) -> None:
        """Count a call."""
        second = int(record.started + record.elapsed_ms / 1000)
        duration = max(record.elapsed_ms - record.waited_ms, 0.0)
        self._stats_of(self.label_of(record.source, record.tool), record.kind).add(record, duration, second)
        is_known = record.identity in self.callers or len(self.callers) < _MAX_CALLERS
        caller = self.callers.setdefault(record.identity if is_known else OTHER, CallerStats())
        caller.calls += 1
        caller.errors += record.code is not None
        if not record.depth:
            self.rates.add(second, duration, record.code)

    def label_of(self, source: str, tool: str) -> Label:
        """Return the label that a tool is counted under."""
        if not source:
            return Label("", UNKNOWN)
        label = Label(source, tool)
        if label in self.tools or len(self.tools) < _MAX_TOOLS:
            return label
        is_known = source in self._sources or len(self._sources) < _MAX_SOURCES
        return Label(source if is_known else OTHER, OTHER)

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
        found: dict[str, CallStats] = {}
        for label, stats in self.tools.items():
            found.setdefault(label.source, CallStats()).merge_tool(stats)
        return found

    def count_approval(self, event: ApprovalEvent, approval_id: str, *, source: str = "", tool: str = "") -> None:
        """Count that an approval was asked for, or how it ended, which is counted once for each decision."""
        label = self.open_approvals.pop(approval_id, None) or self.label_of(source, tool)
        self._stats_of(label).approvals[event] += 1
        if event == "asked":
            while len(self.open_approvals) >= _MAX_OPEN:
                del self.open_approvals[next(iter(self.open_approvals))]
            self.open_approvals[approval_id] = label

    def _stats_of(self, label: Label, kind: Kind = "tool") -> CallStats:
        if label not in self.tools:
            self._sources.add(label.source)
            self.tools[label] = CallStats(kind=kind)
        return self.tools[label]


class Ring:
    """A sink that keeps the latest records in memory."""

    def __init__(self, size: int = 1000) -> None:
        self.records: deque[Record] = deque(maxlen=size)

    def __call__(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)


def log_sink(record: Record) -> None:
    """Log one line for a call."""
    if not _log.isEnabledFor(logging.INFO):
        return
    code, milliseconds = record.code or "ok", f"{record.elapsed_ms:.0f}"
    text = f"tool={record.tool} code={code} ms={milliseconds} depth={record.depth} id={record.call_id}"
    text += f" session={record.session_id}" if record.session_id else ""
    text += f" parent={record.parent_id}" if record.parent_id else ""
    text += f" trace={record.trace_id} span={record.span_id}" if record.span_id else ""
    _log.info("call %s", text)


@dataclass(slots=True, kw_only=True)
class Second(Durations):
    """The calls from outside that ended in one second, or in a span that begins with it."""

    second: int
    """Seconds since the epoch."""
    errors: Counter[CodeName] = field(default_factory=Counter[CodeName])


class Rates:
    """Calls from outside by the second in which they ended, for the last 15 minutes."""

    def __init__(self) -> None:
        self._seconds: dict[int, Second] = {}
        """By the remainder of their number, so that each takes the place of the one before the 15 minutes."""

    def add(self, number: int, duration: float, code: CodeName | None) -> None:
        """Count a call that ended in a second."""
        second = self._seconds.get(number % _RATE_SECONDS)
        if second is None or second.second != number:
            second = self._seconds[number % _RATE_SECONDS] = Second(second=number)
        second.count(duration)
        if code is not None:
            second.errors[code] += 1

    def last(self, seconds: int, *, now: float, step: int = 1) -> list[Second]:
        """Return the last seconds, or spans of several seconds, oldest first; one without calls is empty."""
        last = int(now) // step * step + step - 1  # spans keep their borders while time passes
        return [self.total(number, step) for number in range(last - min(seconds, _RATE_SECONDS) + 1, last + 1, step)]

    def total(self, first: int, seconds: int) -> Second:
        """Return the calls of several seconds, from the first on, together."""
        span = Second(second=first)
        for number in range(first, first + seconds):
            second = self._seconds.get(number % _RATE_SECONDS)
            if second is not None and second.second == number:
                span.merge(second)
                span.errors += second.errors
        return span
