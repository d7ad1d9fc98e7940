"""Telemetry: sends the spans of a yard and the counts of its monitor to a collector, by OTLP over HTTP.

It is imported only where OpenTelemetry is switched on. Its threads send; no call waits for them.
"""

import asyncio
import logging
import os
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any, Final, cast

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as points
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from callyard._version import VERSION
from callyard.monitor import conventions as names
from callyard.monitor.metrics import BOUNDS_MS, UNKNOWN, CallStats, Durations, Metrics, Share
from callyard.monitor.tracing import LeanSpan, Samples, Spans, Tracer, lean_spans, spans_of

__all__ = ["SpanQueue", "Telemetry", "metrics_of", "sampling"]

_QUEUED_SPANS: Final = 2048
_INTERVAL_S: Final = 60.0
_GOODBYE_S: Final = 5.0
"""How long closing waits for a collector."""
_MARKS: Final = (-1, *(BOUNDS_MS.index(round(bound * 1000, 2)) for bound in names.BOUNDS_S), len(BOUNDS_MS))
"""Where the bounds of the conventions are among ours."""
_log = logging.getLogger(__name__)
Attributes = dict[str, Any]
Counts = Mapping[tuple[tuple[str, str], ...], Share]
"""Durations by their attributes."""


class _CountingExporter(SpanExporter):
    """Counts the spans that were handed over, and those that did not arrive."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._exporter = exporter
        self._resource = resource
        self._scope = InstrumentationScope("callyard", VERSION)
        self.taken = 0
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        try:
            result = self._exporter.export([self._readable(span) for span in spans])
        except Exception:
            self.lost += len(spans)
            raise
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
        return result

    def _readable(self, span: ReadableSpan | LeanSpan) -> ReadableSpan:
        if isinstance(span, ReadableSpan):
            return span
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(name, attributes, at) for name, attributes, at in span.events],
            links=span.links,
            kind=span.kind,
            status=span.status,
            start_time=span.began_ns,
            end_time=span.ended_ns,
            instrumentation_scope=self._scope,
        )

    def shutdown(self) -> None:
        self._exporter.shutdown()


def sampling() -> Samples | None:
    """Return the decision of the usual samplers, as 'OTEL_TRACES_SAMPLER' names them; None for any other."""
    name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    follows, root = name.startswith("parentbased_"), name.removeprefix("parentbased_")
    share = {"always_on": 1.0, "always_off": 0.0}.get(root)
    if root == "traceidratio":
        with suppress(ValueError):
            share = float(os.environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1")
    if share is None or not 0 <= share <= 1:
        return None
    bound = TraceIdRatioBased.get_bound_for_rate(share)

    def samples(parent: trace.SpanContext | None, trace_id: int) -> bool:
        if follows and parent is not None:
            return bool(parent.trace_flags)
        return trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < bound

    return samples


class SpanQueue(SpanProcessor):
    """Queues spans for a thread that sends them in batches; what finds the queue full is dropped and counted."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._size = _number("OTEL_BSP_MAX_QUEUE_SIZE", _QUEUED_SPANS)
        self._exporter = _CountingExporter(exporter, resource)
        self._batches = BatchSpanProcessor(self._exporter)
        self._offered = 0
        self._refused = 0

    @property
    def dropped(self) -> int:
        """Return how many spans found no room, or did not reach the collector."""
        return self._refused + self._exporter.lost

    def on_end(self, span: ReadableSpan | LeanSpan) -> None:
        """Queue a span."""
        if self._offered - self._exporter.taken >= self._size:
            self._refused += 1  # here, because the queue of the SDK drops the oldest, and logs each
            return
        self._offered += 1
        self._batches.on_end(cast("ReadableSpan", span))

    def shutdown(self) -> None:
        """Send what is queued; it may take as long as the collector does."""
        self._batches.shutdown()
        self._refused += self._offered - self._exporter.taken  # those that were left in the queue
        self._offered = self._exporter.taken

    def give_up(self) -> None:
        """End the attempts to reach the collector."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Send what is queued now."""
        return self._batches.force_flush(timeout_millis)


class Telemetry:
    """Traces one yard, and exports its spans and counts, while it is open."""

    def __init__(self, metrics: Metrics, *, upstreams: Callable[[], Mapping[str, Iterable[float]]]) -> None:
        """`upstreams` returns the durations of the sessions that ended since it was called before, by upstream."""
        self._metrics = metrics
        self._upstreams = upstreams
        self._requests: dict[tuple[tuple[str, str], ...], Share] = {}
        self._sessions: dict[tuple[tuple[str, str], ...], Share] = {}
        self._client_sessions: dict[tuple[tuple[str, str], ...], Share] = {}
        self._names: set[str] = set()
        self._queue: SpanQueue | None = None
        self._exporter: Any = None  # the SDK's types of it are incomplete
        self._ending = threading.Event()
        self._reported = 0
        self._began_ns = 0
        self.tracing: Tracer | None = None
        """Makes the spans, unless 'OTEL_TRACES_EXPORTER' is 'none'."""

    @property
    def dropped(self) -> int:
        """Return how many spans were dropped."""
        return 0 if self._queue is None else self._queue.dropped

    @asynccontextmanager
    async def open(self, name: str) -> AsyncGenerator["Tracer | None"]:
        """Export while the context is open; `name` names the service, unless the environment does."""
        self._began_ns = time.time_ns()
        facts = {"service.name": name, "service.version": VERSION, "service.instance.id": str(uuid.uuid4())}
        resource = Resource.create(facts).merge(OTELResourceDetector().detect())
        if _is_on("OTEL_TRACES_EXPORTER"):
            spans = self._spans(resource)
            self.tracing = Tracer(spans, count_request=self._count_request, count_session=self._count_session)
        if _is_on("OTEL_METRICS_EXPORTER"):
            self._exporter = OTLPMetricExporter()
        reporter = threading.Thread(
            target=self._report_forever, args=(resource, asyncio.get_running_loop()), name="callyard otlp", daemon=True
        )
        reporter.start()
        try:
            yield self.tracing
        finally:
            last = self._collect(resource)
            self._ending.set()
            await asyncio.to_thread(self._finish, reporter, last)

    def _spans(self, resource: Resource) -> Spans:
        """Return spans of the provider that the program has set, or lean ones for our own queue."""
        found = trace.get_tracer_provider()
        if isinstance(found, TracerProvider):
            return spans_of(found.get_tracer("callyard", VERSION))
        self._queue = queue = SpanQueue(OTLPSpanExporter(), resource)
        samples = sampling()
        if samples is not None:
            return lean_spans(samples, queue.on_end)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # reads the name of any other sampler
        provider.add_span_processor(queue)
        return spans_of(provider.get_tracer("callyard", VERSION))

    def _count_request(self, method: str, version: str, seconds: float, error: str) -> None:
        key = ((names.METHOD, method), (names.VERSION, version))
        _count(self._requests, (*key, (names.ERROR_TYPE, error)) if error else key, seconds)

    def _count_session(self, transport: str, version: str, seconds: float) -> None:
        network = names.TRANSPORTS.get(transport)
        key = ((names.VERSION, version),)
        _count(self._sessions, key if network is None else (*key, (names.TRANSPORT, network)), seconds)

    def _collect(self, resource: Resource) -> points.MetricsData | None:
        """Return the counts as they are now; in the event loop, which makes them."""
        for name, ended in self._upstreams().items():
            self._names.add(name)
            for seconds in ended:
                _count(self._client_sessions, ((names.SOURCE, name),), seconds)
        if self._exporter is None:
            return None
        server = [*_outer(self._metrics.tools.items()), *((dict(key), one) for key, one in self._requests.items())]
        histograms = {
            names.SERVER_OPERATION: server,
            names.CLIENT_OPERATION: [*_sent(self._metrics.tools.items(), self._names)],
            names.SERVER_SESSION: [(dict(key), one) for key, one in self._sessions.items()],
            names.CLIENT_SESSION: [(dict(key), one) for key, one in self._client_sessions.items()],
        }
        return metrics_of(resource, histograms, dropped=self.dropped, began_ns=self._began_ns)

    def _report_forever(self, resource: Resource, loop: asyncio.AbstractEventLoop) -> None:
        interval = _number("OTEL_METRIC_EXPORT_INTERVAL", round(_INTERVAL_S * 1000)) / 1000
        while not self._ending.wait(interval):

            async def collect() -> points.MetricsData | None:
                return self._collect(resource)

            collecting = asyncio.run_coroutine_threadsafe(collect(), loop)
            while not self._ending.is_set():
                try:
                    self._send(collecting.result(timeout=0.5))
                    break
                except TimeoutError:  # the loop is busy
                    continue

    def _send(self, data: points.MetricsData | None) -> None:
        dropped = self.dropped
        if dropped > self._reported:
            _log.warning("spans_dropped count=%d total=%d", dropped - self._reported, dropped)
            self._reported = dropped
        if data is not None and self._exporter is not None:
            self._exporter.export(data)

    def _finish(self, reporter: threading.Thread, last: points.MetricsData | None) -> None:
        """Send what is left, for a limited time; threads that still wait for a collector end with the process."""
        deadline = time.monotonic() + _GOODBYE_S
        reporter.join(_GOODBYE_S)
        queue, threads = self._queue, [threading.Thread(target=self._send, args=(last,), daemon=True)]
        if queue is not None:
            threads.append(threading.Thread(target=queue.shutdown, daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if queue is not None and threads[-1].is_alive():
            queue.give_up()
        if self._exporter is not None:
            self._exporter.shutdown()
        for thread in threads:
            thread.join(1.0)  # a retry that was broken off
        self._send(None)


def _count(shares: dict[tuple[tuple[str, str], ...], Share], key: tuple[tuple[str, str], ...], seconds: float) -> None:
    share = shares.setdefault(key, Share())
    share.count(seconds * 1000)
    share.run_ms += seconds * 1000


def _attributes(source: str, tool: str, stats: CallStats) -> Attributes:
    found: Attributes = {names.METHOD: names.CALL_METHODS[stats.kind]}
    if source:
        found[names.SOURCE] = source
    if stats.kind == "tool":
        found[names.OPERATION] = names.EXECUTE_TOOL
    key = {"tool": names.TOOL, "prompt": names.PROMPT}.get(stats.kind)
    return found | {key: tool} if key is not None and tool != UNKNOWN else found


def _outer(tools: Iterable[tuple[tuple[str, str], CallStats]]) -> Iterator[tuple[Attributes, Share]]:
    """Return the durations of calls from outside, those that failed apart."""
    for (source, tool), stats in tools:
        failed = [share for part, share in stats.parts.items() if part.failed and not part.is_inner]
        yield _attributes(source, tool, stats), _rest(stats)
        yield _attributes(source, tool, stats) | {names.ERROR_TYPE: names.TOOL_ERROR}, _sum(failed)


def _sent(
    tools: Iterable[tuple[tuple[str, str], CallStats]], upstreams: set[str]
) -> Iterator[tuple[Attributes, Share]]:
    """Return the durations of the calls of upstreams, those that failed apart."""
    for (source, tool), stats in tools:
        if source in upstreams:
            failed = [share for part, share in stats.parts.items() if part.failed]
            succeeded = [share for part, share in stats.parts.items() if not part.failed]
            yield _attributes(source, tool, stats), _sum([_rest(stats), *succeeded])
            yield _attributes(source, tool, stats) | {names.ERROR_TYPE: names.TOOL_ERROR}, _sum(failed)


def _rest(stats: CallStats) -> Share:
    """Return the durations of the calls that came from outside and succeeded."""
    parts = _sum(stats.parts.values())
    buckets = [every - part for every, part in zip(stats.buckets, parts.buckets, strict=True)]
    return Share(calls=stats.calls - parts.calls, buckets=buckets, run_ms=max(0.0, stats.run_ms - parts.run_ms))


def _sum(shares: Iterable[Share]) -> Share:
    whole = Share()
    for share in shares:
        whole.merge(share)
        whole.run_ms += share.run_ms
    return whole


def metrics_of(
    resource: Resource,
    histograms: Mapping[str, Sequence[tuple[Attributes, Share]]],
    *,
    dropped: int,
    began_ns: int,
) -> points.MetricsData:
    """Return durations as histograms of OpenTelemetry, and how many spans were dropped."""
    now = time.time_ns()
    found = [
        _histogram(name, [_point(attributes, share, began_ns, now) for attributes, share in counts if share.calls])
        for name, counts in histograms.items()
        if any(share.calls for _, share in counts)
    ]
    point = points.NumberDataPoint({}, began_ns, now, dropped)
    whole = points.Sum([point], points.AggregationTemporality.CUMULATIVE, is_monotonic=True)
    found.append(points.Metric(names.SPANS_DROPPED, "", "{span}", whole))
    scope = points.ScopeMetrics(InstrumentationScope("callyard", VERSION), found, "")
    return points.MetricsData([points.ResourceMetrics(resource, [scope], "")])


def _histogram(name: str, found: Sequence[points.HistogramDataPoint]) -> points.Metric:
    return points.Metric(name, "", "s", points.Histogram(found, points.AggregationTemporality.CUMULATIVE))


def _point(attributes: Attributes, share: Share, began_ns: int, now: int) -> points.HistogramDataPoint:
    unknown = cast("float", None)  # the shortest and longest are optional
    return points.HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=began_ns,
        time_unix_nano=now,
        count=share.calls,
        sum=share.run_ms / 1000,
        bucket_counts=_merged(share),
        explicit_bounds=names.BOUNDS_S,
        min=unknown,
        max=unknown,
    )


def _merged(durations: Durations) -> list[int]:
    """Return the buckets of the conventions."""
    return [sum(durations.buckets[low + 1 : high + 1]) for low, high in pairwise(_MARKS)]


def _is_on(variable: str) -> bool:
    """Return whether an exporter is wanted: 'otlp' is the default, and 'none' is no other."""
    return os.environ.get(variable, "").strip().lower() != "none"


def _number(variable: str, default: int) -> int:
    """Return a positive number from the environment; the SDK warns of a wrong one."""
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdecimal() and int(text) else default
