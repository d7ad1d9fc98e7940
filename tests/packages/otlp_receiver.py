"""A real receiver of OTLP over HTTP: it keeps the spans and metrics that arrive."""

import gzip
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Point", "Received", "Receiver", "receiving"]

_KINDS: Final = {1: "internal", 2: "server", 3: "client"}


@dataclass(frozen=True)
class Received:
    """A span that arrived."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent: str
    links: tuple[str, ...]
    attributes: dict[str, Any]
    events: tuple[tuple[str, dict[str, Any]], ...]
    is_error: bool
    resource: dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A histogram that arrived."""

    attributes: dict[str, Any]
    count: int
    sum: float
    buckets: tuple[int, ...]
    bounds: tuple[float, ...]


@dataclass
class Receiver:
    """What arrived so far."""

    url: str = ""
    spans: list[Received] = field(default_factory=list[Received])
    metrics: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    sums: dict[str, int] = field(default_factory=dict[str, int])
    units: set[str] = field(default_factory=set[str])
    status: int = 200
    """What it answers."""

    def named(self, name: str) -> Received:
        """Return the only span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def named_kind(self, name: str, kind: str) -> Received:
        """Return the only span of this name and kind."""
        (found,) = [span for span in self.spans if (span.name, span.kind) == (name, kind)]
        return found

    def take_spans(self, body: bytes) -> None:
        """Take a request with spans."""
        request: Any = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            resource = _attributes(group.resource.attributes)
            self.spans += [_span(span, resource) for scope in group.scope_spans for span in scope.spans]

    def take_metrics(self, body: bytes) -> None:
        """Take a request with metrics, which replace those from before."""
        request: Any = ExportMetricsServiceRequest.FromString(body)
        for group in request.resource_metrics:
            for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
                if metric.HasField("sum"):
                    self.sums[metric.name] = metric.sum.data_points[0].as_int
                    continue
                self.units.add(metric.unit)
                self.metrics[metric.name] = [
                    Point(
                        _attributes(point.attributes),
                        point.count,
                        point.sum,
                        tuple(point.bucket_counts),
                        tuple(point.explicit_bounds),
                    )
                    for point in metric.histogram.data_points
                ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _span(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name,
        kind=_KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        attributes=_attributes(span.attributes),
        events=tuple((event.name, _attributes(event.attributes)) for event in span.events),
        is_error=span.status.code == 2,
        resource=resource,
    )


@contextmanager
def receiving() -> Generator[Receiver]:
    """Yield a receiver that listens on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            take = {"/v1/traces": receiver.take_spans, "/v1/metrics": receiver.take_metrics}[self.path]
            if receiver.status == 200:
                take(body)
            self.send_response(receiver.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
