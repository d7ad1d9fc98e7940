"""Rules that judge the real calls of a yard: what is hung, slow, failing, missing or waiting for too long.

They take what the metrics count anyway, and judge now and then; of a call that succeeds they look at its code alone.
What incidents become of their problems is not theirs.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import inf
from operator import sub
from typing import Any, Final, Protocol

import msgspec

from callyard._internal.logfmt import is_tool_name
from callyard.dispatch.execution import RunningHandler
from callyard.dispatch.outcome import Record
from callyard.dispatch.run import Run
from callyard.dispatch.stacks import frames_of, line_of
from callyard.monitor.blocked_loop import Block
from callyard.monitor.incidents import EVIDENCE, Problem
from callyard.monitor.metrics import OWN_FAULTS, CallStats, Durations, Label, Metrics
from callyard.monitor.prometheus import UpstreamState
from callyard.state.replicas import ReplicaRecord
from callyard.state.store import Clock

__all__ = ["RULES", "Rules", "Thresholds", "Waiting", "Yard"]

RULES: Final = (
    *("hung", "blocked", "rejects", "missing", "errors", "slow", "flapping", "upstream", "waits", "replicas"),
)
_USED_SHARE: Final = 0.8
"""The share of its deadline after which a handler hangs."""
_TIMES_P95: Final = 10
_LONG_S: Final = 10.0
_KNOWN_CALLS: Final = 100
"""After so many calls the usual duration of a tool is known."""
_LEAST_S: Final = 0.5
_RECENT_S: Final = 60.0
_MAX_EXPIRED: Final = 20
_MARK_S: Final = 60.0
_WINDOW_S: Final = 300.0
_LONG_WINDOW_S: Final = 900.0
_REJECTED: Final = 10
_FAILED: Final = 5
_COUNTED: Final = 20
_TIMES_SLOWER: Final = 3.0
_SLOW_MS: Final = 1000.0
_MAX_NAMES: Final = 200
_SEVERAL: Final = 2
_STARTS: Final = 3
_FLAP_S: Final = 600.0
_UPDATE_S: Final = 600.0
"""For so long replicas may differ, because they are updated one after the other."""
_FAILING: Final = frozenset({"degraded", "backing_off", "auth_needed"})


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """From when on something is wrong."""

    error_share: float = 0.2
    slow_ms: float | None = None
    wait_s: float = 900.0


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A job or an approval that has not got on since a time."""

    kind: str
    tool: str
    since: float
    call_id: str = ""


class Yard(Protocol):
    """What the rules see of a yard beside its counters."""

    def handlers(self, least_s: float) -> Sequence[RunningHandler]:
        """Return the handlers that have run for so long."""
        ...

    def upstreams(self) -> Iterable[UpstreamState]:
        """Return the states of the upstreams."""
        ...

    def has(self, name: str) -> bool:
        """Return whether a tool of that name is there, for anybody."""
        ...

    def had(self, name: str) -> bool:
        """Return whether a tool of that name was there."""
        ...

    def differing(self) -> Sequence[ReplicaRecord]:
        """Return the replicas of another version or configuration."""
        ...


class _Expired(msgspec.Struct, frozen=True):
    at: float
    tool: str
    line: str
    call_id: str
    session_id: str


class _Mark(msgspec.Struct, frozen=True):
    """The counters of a tool at one time."""

    at: float
    calls: int
    rejected: int
    buckets: list[int]


_START: Final = _Mark(-inf, 0, 0, Durations().buckets)


class _Asked:
    """A name that no tool has, and who asked for it."""

    def __init__(self) -> None:
        self.callers: dict[str, float] = {}
        self.calls: deque[str] = deque(maxlen=EVIDENCE)


class _Upstream:
    """What an upstream went through."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.starts: deque[float] = deque(maxlen=_STARTS)
        self.failing_since: float | None = None


class Rules:
    """Judges one yard; as a sink it takes evidence of failures."""

    def __init__(
        self,
        metrics: Metrics,
        yard: Yard,
        *,
        thresholds: Thresholds,
        blocks: Iterable[Block] = (),
        off: Iterable[str] = (),
        clock: Clock = time.time,
    ) -> None:
        self.waiting: Sequence[Waiting] = ()
        """Jobs and approvals, as they were last read."""
        self._metrics = metrics
        self._yard = yard
        self._thresholds = thresholds
        self._blocks = blocks
        self._off = frozenset(off)
        self._clock = clock
        self._failed: dict[Label, deque[Record]] = {}
        self._expired: deque[_Expired] = deque(maxlen=_MAX_EXPIRED)
        self._marks: dict[Label, deque[_Mark]] = {}
        self._marked = -inf
        self._asked: dict[str, _Asked] = {}
        self._upstreams: dict[str, _Upstream] = {}
        self._differ_since: float | None = None

    def __call__(self, record: Record) -> None:
        """Take a record; only failures are of interest."""
        if record.code is None:
            return
        if not record.source:
            if record.kind == "tool" and record.code == "tool_not_found" and is_tool_name(record.tool):
                self._note_asked(record)
            return
        if record.blame in OWN_FAULTS or record.code == "invalid_input":
            label = self._metrics.label_of(record.source, record.tool)
            self._failed.setdefault(label, deque(maxlen=EVIDENCE)).append(record)

    def note_expired(self, run: Run) -> None:
        """Take a call whose deadline has just passed."""
        now = self._clock()
        if len(self._expired) == _MAX_EXPIRED and now - self._expired[0].at < 1.0:
            return  # a yard that is overloaded has no time to look at all of them
        if run.call.may_have_run:
            session = "" if run.call.session is None else run.call.session.id
            self._expired.append(_Expired(now, run.call.spec.name, _line(run), run.id, session))

    def judge(self) -> list[Problem]:
        """Return what is wrong now."""
        now = self._clock()
        if now - self._marked >= _MARK_S:
            self._mark(now)
        judged = {
            "hung": self._hung,
            "blocked": self._blocked,
            "rejects": self._rejects,
            "missing": self._missing,
            "errors": self._errors,
            "slow": self._slow,
            "flapping": self._flapping,
            "upstream": self._failing_upstreams,
            "waits": self._waits,
            "replicas": self._replicas,
        }
        self._note_upstreams(now)
        return [problem for rule, judge in judged.items() if rule not in self._off for problem in judge(now)]

    def _hung(self, now: float) -> Iterator[Problem]:
        found: dict[str, list[tuple[str, str, str, str]]] = {}
        for running in self._yard.handlers(_LEAST_S):
            why = self._why_hung(running)
            call = running.run.call
            if why:
                session = "" if call.session is None else call.session.id
                found.setdefault(call.spec.name, []).append((why, _line(running.run), call.id, session))
        for one in self._expired:
            if now - one.at < _RECENT_S:
                found.setdefault(one.tool, []).append(("its deadline passed", one.line, one.call_id, one.session_id))
        for tool, calls in found.items():
            why, line, _, _ = calls[0]
            yield Problem(
                rule="hung",
                subject=tool,
                text=f"'{tool}' hangs: {why}. It waits at {line}.",
                details={"line": line, "lines": sorted({at for _, at, _, _ in calls})[:EVIDENCE]},
                **_evidence((call_id, session) for _, _, call_id, session in calls),
            )

    def _why_hung(self, running: RunningHandler) -> str:
        run, ran, left = running
        if run.tool is not None and run.tool.wraps:  # what it calls is judged
            return ""
        if left is not None and ran >= _USED_SHARE * (ran + left):
            return f"a call has used {ran:.0f} of its {ran + left:.0f} seconds"
        stats = self._metrics.tools.get(self._metrics.label_of(run.call.spec.source, run.call.spec.name))
        if ran < _LONG_S or stats is None or stats.calls < _KNOWN_CALLS:
            return ""
        usual = stats.quantile_ms(0.95) / 1000
        return f"a call has run for {ran:.0f} s, and 95 % end within {usual:.1f} s" if ran >= _TIMES_P95 * usual else ""

    def _blocked(self, now: float) -> Iterator[Problem]:
        recent = sorted((one for one in tuple(self._blocks) if now - one.at < _RECENT_S), key=lambda one: one.line)
        for line, group in groupby(recent, lambda one: one.line):
            blocks = [*group]
            yield Problem(
                rule="blocked",
                subject=line,
                severity="critical",
                text=f"The event loop was blocked for a second or longer at {line}, and every caller waited.",
                details={"stack": blocks[0].stack},
                **_evidence((one.call_id, one.session_id) for one in blocks),
            )

    def _rejects(self, now: float) -> Iterator[Problem]:
        for label, stats, past in self._recent(now, _LONG_WINDOW_S):
            calls = stats.calls - past.calls
            if calls >= _REJECTED and _rejected(stats) - past.rejected == calls:
                yield Problem(
                    rule="rejects",
                    subject=label.tool,
                    text=f"'{label.tool}' refused the arguments of all its last {calls} calls: is its schema right?",
                    details={"source": label.source, "calls": calls},
                    **self._failures_of(label, _is_rejection),
                )

    def _missing(self, now: float) -> Iterator[Problem]:
        for name, asked in [*self._asked.items()]:
            asked.callers = {one: at for one, at in asked.callers.items() if now - at < _LONG_WINDOW_S}
            if not asked.callers or self._yard.has(name):
                del self._asked[name]
                continue
            was_there = self._yard.had(name)
            if len(asked.callers) >= _SEVERAL or was_there:
                so_far = "was there before" if was_there else "was never there"
                yield Problem(
                    rule="missing",
                    subject=name,
                    text=f"{len(asked.callers)} callers asked for the tool '{name}', which {so_far}.",
                    details={"callers": len(asked.callers), "was_there": was_there},
                    calls=tuple(asked.calls),
                )

    def _errors(self, now: float) -> Iterator[Problem]:
        away = {name for name, upstream in self._upstreams.items() if upstream.failing_since is not None}
        for label, stats in self._metrics.tools.items():
            if now - stats.trend.latest > _WINDOW_S or label.source in away:
                continue
            calls, failed = stats.trend.total(_WINDOW_S, now=now)
            if failed >= _FAILED and failed >= self._thresholds.error_share * calls:
                yield Problem(
                    rule="errors",
                    subject=label.tool,
                    text=f"'{label.tool}' failed in {failed} of {calls} calls in five minutes, not by its callers.",
                    details={"source": label.source, "calls": calls, "failed": failed},
                    **self._failures_of(label, _is_own_fault),
                )

    def _slow(self, now: float) -> Iterator[Problem]:
        for label, stats, past in self._recent(now, _WINDOW_S):
            calls = stats.calls - past.calls
            if calls < _COUNTED:
                continue
            latest = Durations(longest_ms=stats.longest_ms, buckets=[*map(sub, stats.buckets, past.buckets)])
            before = Durations(longest_ms=stats.longest_ms, buckets=past.buckets).quantile_ms(0.95)
            p95 = latest.quantile_ms(0.95)
            is_slower = past.calls >= _KNOWN_CALLS and p95 >= max(_TIMES_SLOWER * before, _SLOW_MS)
            limit = self._thresholds.slow_ms
            if is_slower or (limit is not None and p95 >= limit):
                usual = f"; it was {before:.0f} ms" if is_slower else ""
                yield Problem(
                    rule="slow",
                    subject=label.tool,
                    text=f"'{label.tool}' is slow: the p95 of five minutes is {p95:.0f} ms{usual}.",
                    details={"source": label.source, "p95_ms": round(p95), "before_ms": round(before)},
                )

    def _flapping(self, now: float) -> Iterator[Problem]:
        for name, upstream in self._upstreams.items():
            if len(upstream.starts) == _STARTS and now - upstream.starts[0] < _FLAP_S:
                text = f"The upstream '{name}' came and went {_STARTS} times within ten minutes."
                yield Problem(rule="flapping", subject=name, text=text, details={"state": upstream.state})

    def _failing_upstreams(self, now: float) -> Iterator[Problem]:
        for name, upstream in self._upstreams.items():
            if upstream.failing_since is not None and now - upstream.failing_since >= _RECENT_S:
                text = f"The upstream '{name}' cannot be used: its state is '{upstream.state}'."
                details = {"state": upstream.state}
                yield Problem(rule="upstream", subject=name, severity="critical", text=text, details=details)

    def _waits(self, now: float) -> Iterator[Problem]:
        late = [one for one in self.waiting if now - one.since >= self._thresholds.wait_s]
        for (kind, tool), group in groupby(sorted(late, key=_kind_and_tool), _kind_and_tool):
            waiting = sorted(group, key=lambda one: one.since)
            minutes = (now - waiting[0].since) / 60
            yield Problem(
                rule="waits",
                subject=f"{kind}/{tool}",
                text=f"Of '{tool}', {len(waiting)} {kind}s wait, the oldest one for {minutes:.0f} minutes.",
                details={"kind": kind, "waiting": len(waiting)},
                **_evidence((one.call_id, "") for one in waiting),
            )

    def _replicas(self, now: float) -> Iterator[Problem]:
        differing = self._yard.differing()
        self._differ_since = (self._differ_since or now) if differing else None
        if self._differ_since is not None and now - self._differ_since >= _UPDATE_S:
            found = sorted({f"{one.place} has version {one.version}" for one in differing})[:EVIDENCE]
            text = f"{len(differing)} replicas have another version or configuration than this server."
            yield Problem(rule="replicas", subject="all", text=text, details={"differing": found})

    def _note_asked(self, record: Record) -> None:
        asked = self._asked.get(record.tool)
        if asked is None:
            if len(self._asked) >= _MAX_NAMES:
                del self._asked[next(iter(self._asked))]
            asked = self._asked[record.tool] = _Asked()
        if len(asked.callers) < _MAX_NAMES:
            asked.callers[f"{record.identity}\n{record.scope}"] = self._clock()
        asked.calls.append(record.call_id)

    def _note_upstreams(self, now: float) -> None:
        states = {one.name: one for one in self._yard.upstreams()}
        for name in [*self._upstreams.keys() - states.keys()]:
            del self._upstreams[name]
        for name, state in states.items():
            upstream = self._upstreams.setdefault(name, _Upstream(state.state))
            if upstream.state == "ready" and state.state != "ready" and state.state not in {"cold", "stopped"}:
                upstream.starts.append(now)
            upstream.state = state.state
            is_failing = state.state in _FAILING or state.is_open
            upstream.failing_since = (upstream.failing_since or now) if is_failing else None

    def _mark(self, now: float) -> None:
        """Note the counters of the tools that were called since the last time."""
        self._marked = now
        for label, stats in self._metrics.tools.items():
            marks = self._marks.setdefault(label, deque())
            if not marks or marks[-1].calls != stats.calls:
                marks.append(_Mark(now, stats.calls, _rejected(stats), stats.buckets.copy()))
            while len(marks) > 1 and now - marks[1].at >= _LONG_WINDOW_S:
                marks.popleft()

    def _recent(self, now: float, seconds: float) -> Iterator[tuple[Label, CallStats, _Mark]]:
        """Yield the tools that were called in the last seconds, with the counters from before them."""
        for label, stats in self._metrics.tools.items():
            if now - stats.trend.latest <= seconds:
                marks = self._marks.get(label, ())
                yield label, stats, next((one for one in reversed(marks) if now - one.at >= seconds), _START)

    def _failures_of(self, label: Label, is_meant: Callable[[Record], bool]) -> dict[str, Any]:
        records = [record for record in self._failed.get(label, ()) if is_meant(record)]
        return _evidence((record.call_id, record.session_id or "") for record in records)


def _kind_and_tool(one: Waiting) -> tuple[str, str]:
    return one.kind, one.tool


def _is_rejection(record: Record) -> bool:
    return record.code == "invalid_input"


def _is_own_fault(record: Record) -> bool:
    return record.blame in OWN_FAULTS


def _rejected(stats: CallStats) -> int:
    return stats.errors.get(("invalid_input", "caller"), 0)


def _line(run: Run) -> str:
    """Return the line where a call waits; its frames are let go of at once, because they keep variables alive."""
    return str(line_of(frames_of(run)) or "an unknown line")


def _evidence(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    found = [*pairs]
    calls = dict.fromkeys(call for call, _ in found if call)
    sessions = dict.fromkeys(session for _, session in found if session)
    return {"calls": tuple(calls)[:EVIDENCE], "sessions": tuple(sessions)[:EVIDENCE]}
