"""Metrics in the text formats of Prometheus.

prometheus-client writes the text. It is imported when the first page is written, because most yards never need it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard.dispatch.call import Call
from callyard.monitor.metrics import BOUNDS_MS, CallerStats, CallStats, Label, Metrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Snapshot", "UpstreamState", "render", "snapshot_of"]

_TOOL: Final = ("source", "tool")
_SUMS: Final[tuple[tuple[str, str, Callable[[CallStats], float]], ...]] = (
    ("calls", "Finished calls.", lambda stats: stats.calls),
    (
        "call_wait_seconds",
        "Time that calls waited for policies, limiters and people.",
        lambda one: one.waited_ms / 1000,
    ),
    ("result_bytes", "Size of results as JSON.", lambda stats: stats.bytes),
    ("result_estimated_tokens", "Estimated tokens of answers.", lambda stats: stats.estimated_tokens),
    ("repaired_arguments", "Arguments that were repaired.", lambda stats: stats.coerced),
    ("held_calls", "Calls that a policy answered, such as those that wait for approval.", lambda stats: stats.held),
)
"""The counters: name, help and value."""
_SHOWN: Final = 2
"""Every second bound is shown: a page about a thousand tools is long enough."""
_BOUNDS: Final = (*(f"{bound / 1000:g}" for bound in BOUNDS_MS[::_SHOWN]), "+Inf")


class UpstreamState(msgspec.Struct, frozen=True):
    """The state of one upstream."""

    name: str
    state: str
    is_open: bool


class Snapshot(msgspec.Struct, frozen=True):
    """All metrics at one moment; another thread may read it."""

    tools: Mapping[Label, CallStats]
    callers: Mapping[str, CallerStats]
    running: Mapping[Label, int]
    queued: Mapping[Label, int]
    upstreams: tuple[UpstreamState, ...]
    problems: Mapping[tuple[str, str], int] = {}
    """What the rules see wrong, by rule and severity."""
    notices: Mapping[tuple[str, str], int] = {}
    """Notices by notifier and what became of them."""


def snapshot_of(metrics: Metrics, calls: Iterable[Call] = (), upstreams: Iterable[UpstreamState] = ()) -> Snapshot:
    """Return the metrics as they are now, with the calls in flight and the upstreams."""
    running, queued = metrics.count_running(calls)
    return Snapshot(
        tools={label: stats.copy() for label, stats in metrics.tools.items()},
        callers={name: replace(stats) for name, stats in metrics.callers.items()},
        running=running,
        queued=queued,
        upstreams=tuple(upstreams),
    )


def render(snapshot: Snapshot, accept: str = "") -> tuple[bytes, str]:
    """Return a page for Prometheus and its media type, which the header `Accept` chooses."""
    import prometheus_client.core  # noqa: PLC0415 - see above

    class Source(prometheus_client.registry.Collector):
        def collect(self) -> Iterator["Metric"]:
            yield from _families(snapshot, prometheus_client.core)

    encode, media_type = prometheus_client.exposition.choose_encoder(accept)
    return encode(Source()), media_type


def _families(snapshot: Snapshot, core: Any) -> Iterator["Metric"]:
    counter, gauge = core.CounterMetricFamily, core.GaugeMetricFamily
    tools, callers, upstreams = snapshot.tools.items(), snapshot.callers.items(), snapshot.upstreams
    for name, text, value in _SUMS:
        yield _family(counter, name, text, _TOOL, {label: value(stats) for label, stats in tools})
    yield _durations(snapshot, core.HistogramMetricFamily)
    errors = {(*label, *failure): count for label, stats in tools for failure, count in stats.errors.items()}
    approvals = {(*label, event): count for label, stats in tools for event, count in stats.approvals.items()}
    calls = {(name,): stats.calls for name, stats in callers}
    failed = {(name,): stats.errors for name, stats in callers}
    states = {(upstream.name, upstream.state): 1 for upstream in upstreams}
    breakers = {(upstream.name,): int(upstream.is_open) for upstream in upstreams}
    yield _family(counter, "errors", "Failed calls by code and blame.", (*_TOOL, "code", "blame"), errors)
    yield _family(counter, "approvals", "Approvals by what happened to them.", (*_TOOL, "event"), approvals)
    yield _family(gauge, "calls_in_flight", "Calls that run or wait.", _TOOL, snapshot.running)
    yield _family(gauge, "calls_queued", "Calls that wait for policies and limiters.", _TOOL, snapshot.queued)
    yield _family(counter, "caller_calls", "Calls by caller.", ("caller",), calls)
    yield _family(counter, "caller_errors", "Failed calls by caller.", ("caller",), failed)
    yield _family(gauge, "upstream_state", "1 for the state of each upstream.", ("upstream", "state"), states)
    yield _family(gauge, "upstream_breaker_open", "1 if the circuit breaker is open.", ("upstream",), breakers)
    yield _family(gauge, "problems", "What this server sees wrong.", ("rule", "severity"), snapshot.problems)
    yield _family(counter, "notices", "Notices of incidents.", ("notifier", "result"), snapshot.notices)


def _family(make: Any, name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> "Metric":
    family = make(f"callyard_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _durations(snapshot: Snapshot, make: Any) -> "Metric":
    family = make("callyard_call_seconds", "Duration of calls, without their waits.", labels=_TOOL)
    for label, stats in snapshot.tools.items():
        sums = [*accumulate(stats.buckets)]
        buckets = [*zip(_BOUNDS, (*sums[:-1:_SHOWN], sums[-1]), strict=True)]
        family.add_metric(label, buckets, sum_value=stats.run_ms / 1000)
    return family
