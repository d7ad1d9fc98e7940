"""Spans of OpenTelemetry: of the requests of clients, of calls inside others, of requests to upstreams, and of jobs.

It is imported only where tracing is switched on. Arguments and results are never in a span.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from functools import lru_cache
from random import getrandbits
from typing import Any, Final, NamedTuple, Self, cast
from urllib.parse import urlsplit

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from callyard._internal.logfmt import is_tool_name
from callyard.dispatch.run import Run
from callyard.dispatch.tracing import RequestFacts, UpstreamFacts
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.monitor import conventions as names
from callyard.wire.messages import INTERNAL, Fault

__all__ = [
    "Dropped",
    "Ids",
    "LeanSpan",
    "Span",
    "Spans",
    "Tracer",
    "context_of",
    "current_ids",
    "lean_spans",
    "spans_of",
]

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_ID_CHARACTERS: Final = 100
_SERVER_ERRORS: Final = range(-32099, -31999)
_NOWHERE: Final = otel.Context()
_request: ContextVar["Span | Dropped | None"] = ContextVar("callyard.request_span", default=None)
"""The span of the request that is served here; its first call takes it."""
_NAMED: Final[Mapping[str, tuple[str, str]]] = {
    "tools/call": (names.TOOL, "tools/call "),
    "prompts/get": (names.PROMPT, "prompts/get "),
}
_CALLS: Final = frozenset(names.CALL_METHODS.values())
Samples = Callable[[SpanContext | None, int], bool]
"""Returns whether a span with this parent and trace id is sampled."""
CountRequest = Callable[[str, str, float, str], None]
"""Takes a request that made no call: its method and version, how many seconds it took, and its `error.type`."""
CountSession = Callable[[str, str, float], None]
"""Takes a session that ended: its transport, its version, and its seconds."""


def context_of(carrier: Mapping[str, Any]) -> SpanContext | None:
    """Return the remote span that a `traceparent` names, or None if there is none or it is wrong."""
    match = _TRACEPARENT.fullmatch(str(carrier.get("traceparent", "")))
    if match is None:
        return None
    state = str(carrier.get("tracestate", ""))
    found = SpanContext(
        int(match[1], 16),
        int(match[2], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(match[3], 16) & 1),
        trace_state=TraceState.from_header([state]) if state else None,
    )
    return found if found.is_valid else None


def current_ids() -> tuple[str, str] | None:
    """Return the ids of the trace and the span that the current code runs in."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        served = _request.get()
        if served is None:
            return None
        return served.trace_id, served.span_id
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@lru_cache(maxsize=4096)
def _shown(name: str) -> str:
    """Return a name for a span, or '' if it is not safe to show: clients choose it."""
    return name if is_tool_name(name) else ""


class LeanSpan(trace.Span):
    """A span that costs a third of the SDK's: its attributes are our own, and it becomes the SDK's when it is sent."""

    def __init__(self, name: str, ids: "Ids", kind: SpanKind, ended: "Ended") -> None:
        self.name = name
        self.context = cast("SpanContext", ids.own)
        self.parent = ids.parent
        self.kind = kind
        self.attributes: dict[str, Any] = {}
        self.links: Sequence[Link] = ()
        self.events: list[tuple[str, Mapping[str, Any], int]] = []
        self.status = _UNSET
        self.began_ns = time.time_ns()
        self.ended_ns = 0
        self._ended = ended

    def get_span_context(self) -> SpanContext:
        """Return its ids."""
        return self.context

    def is_recording(self) -> bool:
        """Return whether it has not ended."""
        return not self.ended_ns

    def set_attribute(self, key: str, value: Any) -> None:
        """Set an attribute; after the end nothing changes."""
        if not self.ended_ns:
            self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Add an event."""
        if not self.ended_ns:
            self.events.append((name, attributes or {}, timestamp or time.time_ns()))

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status."""
        self.status = status if isinstance(status, Status) else Status(status, description)

    def update_name(self, name: str) -> None:
        """Rename the span."""
        self.name = name

    def record_exception(
        self,
        exception: BaseException,
        attributes: Any = None,  # noqa: ARG002 - the interface of OpenTelemetry
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: ARG002, FBT001, FBT002 - the same
    ) -> None:
        """Add the type of an exception as an event; its message may hold contents."""
        self.add_event("exception", {"exception.type": type(exception).__name__}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End the span, which queues it."""
        if not self.ended_ns:
            self.ended_ns = end_time or time.time_ns()
            self._ended(self)


_UNSET: Final = Status(StatusCode.UNSET)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
Ended = Callable[[LeanSpan], None]


class Ids(NamedTuple):
    """The ids of a new span, if they are decided here, and those of its parent."""

    own: SpanContext | None
    parent: SpanContext | None


class Spans(NamedTuple):
    """How spans are made: by the provider of the program, or lean ones that are queued when they end."""

    decide: Callable[[SpanContext | None], Ids]
    """Returns the ids of a new span with this parent."""
    start: Callable[[str, Ids, SpanKind, dict[str, Any], Sequence[Link]], trace.Span]
    samples: Samples | None = None
    """Decides before anything is made, unless the provider of the program does."""


def spans_of(tracer: trace.Tracer) -> Spans:
    """Return spans of a provider that the program has set."""

    def start(name: str, ids: Ids, kind: SpanKind, attributes: dict[str, Any], links: Sequence[Link]) -> trace.Span:
        parent = ids.parent
        context = _NOWHERE if parent is None else trace.set_span_in_context(NonRecordingSpan(parent), _NOWHERE)
        return tracer.start_span(name, context, kind, attributes, links)

    def decide(parent: SpanContext | None) -> Ids:
        return Ids(None, parent)

    return Spans(decide, start)


def lean_spans(samples: Samples, ended: Ended) -> Spans:
    """Return lean spans, which are handed over when they end."""

    def decide(parent: SpanContext | None) -> Ids:
        trace_id = getrandbits(128) if parent is None else parent.trace_id
        flags = _SAMPLED if samples(parent, trace_id) else _NOT_SAMPLED
        state = None if parent is None else parent.trace_state
        return Ids(
            SpanContext(trace_id, getrandbits(64), is_remote=False, trace_flags=flags, trace_state=state), parent
        )

    def start(name: str, ids: Ids, kind: SpanKind, attributes: dict[str, Any], links: Sequence[Link]) -> trace.Span:
        assert ids.own is not None  # noqa: S101 - decided above
        if not ids.own.trace_flags:
            return NonRecordingSpan(ids.own)
        span = LeanSpan(name, ids, kind, ended)
        span.attributes, span.links = attributes, links
        return span

    return Spans(decide, start, samples)


class Span:
    """One span of a request, a call, a job or a request to an upstream."""

    __slots__ = (
        "_began",
        "_count",
        "_error",
        "_facts",
        "_is_request",
        "_span",
        "_spans",
        "_token",
        "context",
        "is_recording",
        "is_taken",
    )

    def __init__(self, spans: Spans, span: trace.Span, *, is_request: bool = False) -> None:
        self._spans = spans
        self._span = span
        self.context = span.get_span_context()
        self.is_recording = span.is_recording()
        self._is_request = is_request
        self.is_taken = False
        """Whether a call has it as its own."""

    @property
    def trace_id(self) -> str:
        """Return the id of its trace, in hexadecimal digits."""
        return f"{self.context.trace_id:032x}"

    @property
    def span_id(self) -> str:
        """Return its id, in hexadecimal digits."""
        return f"{self.context.span_id:016x}"

    def carrier(self) -> dict[str, str]:
        """Return its trace context, for what the call causes elsewhere."""
        context = self.context
        carrier = {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
        if context.trace_state:
            carrier["tracestate"] = context.trace_state.to_header()
        return carrier

    def current(self) -> AbstractContextManager[object]:
        """Return a context manager in which spans of the handler belong to this one."""
        return _Current(trace.set_span_in_context(self._span))

    def note_wait(self, kind: str, seconds: float) -> None:
        """Note that the call waited for its turn, or for a person."""
        self._add_event(names.WAIT, {names.WAIT_KIND: kind, names.WAIT_SECONDS: seconds})

    def note_retry(self) -> None:
        """Note that the request is sent once more."""
        self._add_event(names.RETRY, {})

    def _add_event(self, name: str, attributes: Mapping[str, str | float]) -> None:
        if self._span.is_recording():  # the span of a request may have ended while its call goes on
            self._span.add_event(name, attributes)

    def note_tool_error(self) -> None:
        """Note that the tool reports a failure."""
        self._fail(names.TOOL_ERROR)

    def fail(self, code: int) -> None:
        """Take the code of the JSON-RPC error that answers the request."""
        self._span.set_attribute(names.RPC_STATUS, str(code))
        is_defect = code == INTERNAL or code in _SERVER_ERRORS or not self._is_request
        self._fail(str(code), is_error=is_defect)

    def _fail(self, kind: str, *, is_error: bool = True) -> None:
        self._span.set_attribute(names.ERROR_TYPE, kind)
        if is_error:
            self._span.set_status(Status(StatusCode.ERROR))

    def _note_failure(self, outcome: Envelope, *, in_result: bool = True) -> None:
        if outcome.error is not None:
            self._span.set_attributes({names.ERROR_CODE: outcome.error.code, names.ERROR_BLAME: outcome.error.blame})
            if in_result:  # otherwise a JSON-RPC error answers the request
                self._fail(names.TOOL_ERROR)

    def upstream(self, method: str, name: str | None, facts: UpstreamFacts) -> "UpstreamSpan":
        """Return the span of a request to an upstream."""
        attributes: dict[str, Any] = {names.METHOD: method, names.SOURCE: facts.name}
        if facts.version is not None:
            attributes[names.VERSION] = facts.version
        if facts.url is None:
            attributes[names.TRANSPORT] = names.TRANSPORTS["stdio"]
        else:
            attributes[names.TRANSPORT] = names.TRANSPORTS["http"]
            url = urlsplit(facts.url)
            if url.hostname:
                attributes[names.SERVER_ADDRESS] = url.hostname
                attributes[names.SERVER_PORT] = url.port or {"https": 443}.get(url.scheme, 80)
        title = _add_name(attributes, method, name)
        ids = self._spans.decide(self.context)
        return UpstreamSpan(self._spans, self._spans.start(title, ids, SpanKind.CLIENT, attributes, ()))

    def become_job(self, name: str, job_id: str) -> "Span":
        """Return the span of the job that stores the call, linked to this one, which ends here unless it serves."""
        if self.is_recording:
            self._span.set_attribute(names.JOB_ID, job_id)
        if not self._is_request:
            self._span.end()
        return _job_span(self._spans, self.context, name, job_id)

    def end(self, run: Run, answer: Envelope) -> None:
        """End the span, unless it is that of a request."""
        if self._is_request:
            return
        if self.is_recording:
            source = run.call.spec.source
            if source:
                self._span.set_attribute(names.SOURCE, source)
            self._note_failure(answer)
        self._span.end()


class UpstreamSpan(Span):
    """The span of a request to an upstream, which ends with it."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        cause = None if error is None else error.__cause__
        if isinstance(cause, Fault):
            self.fail(cause.code)
        elif error is not None:
            self._fail(error.code if isinstance(error, ToolError) else type(error).__name__)
        self._span.end()


class RequestSpan(Span):
    """The span of a client's request, which ends with it."""

    __slots__ = ()

    def __init__(self, spans: Spans, span: trace.Span, facts: RequestFacts, count: CountRequest) -> None:
        super().__init__(spans, span, is_request=True)
        self._facts = facts
        self._count = count
        self._error = ""

    def note(self, outcome: Envelope) -> None:
        """Take the outcome of the call that the request made."""
        if self.is_recording:
            self._span.set_attribute(names.CALL_ID, outcome.meta.call_id)
            self._note_failure(outcome, in_result=self._facts.method == "tools/call")

    def fail(self, code: int) -> None:
        """Take the code of the JSON-RPC error that answers the request."""
        self._error = str(code)
        super().fail(code)

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._token: Token[Span | Dropped | None] = _request.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        _request.reset(self._token)
        if error is not None:  # the client went away
            self._error = type(error).__name__
            self._fail(self._error)
        self._span.end()
        if self._facts.method not in _CALLS:  # calls are counted by the monitor
            seconds = time.perf_counter() - self._began
            self._count(self._facts.method or names.OTHER_METHOD, self._facts.version, seconds, self._error)


class Dropped:
    """Stands for all spans of a request that is not sampled; it costs little, and passes the decision on."""

    __slots__ = ("_began", "_count", "_error", "_facts", "_span_id", "_token", "_trace_id", "is_taken")

    def __init__(self, trace_id: int, facts: RequestFacts, count: CountRequest) -> None:
        self._trace_id = trace_id
        self._span_id = getrandbits(64)
        self._facts = facts
        self._count = count
        self._error = ""
        self.is_taken = False

    @property
    def trace_id(self) -> str:
        """Return the id of the trace, in hexadecimal digits."""
        return f"{self._trace_id:032x}"

    @property
    def span_id(self) -> str:
        """Return an id that no span has."""
        return f"{self._span_id:016x}"

    def carrier(self) -> dict[str, str]:
        """Return the trace context, which says that the trace is not sampled."""
        carrier = {"traceparent": f"00-{self.trace_id}-{self.span_id}-00"}
        state = self._facts.meta.get("tracestate")
        return carrier if state is None else {**carrier, "tracestate": str(state)}

    def current(self) -> AbstractContextManager[object]:
        """Return a context manager without effect."""
        return _NOTHING

    def note_wait(self, kind: str, seconds: float) -> None:
        """Note nothing."""

    def upstream(self, method: str, name: str | None, facts: UpstreamFacts) -> "_DroppedRequest":  # noqa: ARG002 - as a span
        """Return what passes the decision on to an upstream."""
        return _DroppedRequest(self)

    def become_job(self, name: str, job_id: str) -> Self:  # noqa: ARG002 - as a span
        """Return itself, for the job."""
        return self

    def end(self, run: Run, answer: Envelope) -> None:
        """Do nothing."""

    def note(self, outcome: Envelope) -> None:
        """Note nothing."""

    def fail(self, code: int) -> None:
        """Take the code of the JSON-RPC error, for the counts."""
        self._error = str(code)

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._token: Token[Span | Dropped | None] = _request.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        _request.reset(self._token)
        if self._facts.method not in _CALLS:
            seconds, failed = time.perf_counter() - self._began, "" if error is None else type(error).__name__
            method = self._facts.method or names.OTHER_METHOD
            self._count(method, self._facts.version, seconds, self._error or failed)


class _DroppedRequest:
    """A request to an upstream in a trace that is not sampled."""

    __slots__ = ("carrier",)

    def __init__(self, outer: Dropped) -> None:
        self.carrier = outer.carrier

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Do nothing."""

    def note_retry(self) -> None:
        """Note nothing."""

    def note_tool_error(self) -> None:
        """Note nothing."""


_NOTHING: Final = nullcontext()


class _Current:
    """Makes a context of OpenTelemetry the current one."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: otel.Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = otel.attach(self._context)

    def __exit__(self, *exc: object) -> None:
        otel.detach(self._token)


def _add_name(attributes: dict[str, Any], method: str, name: str | None) -> str:
    """Add the name of a tool or prompt to the attributes; return the name of the span."""
    if method == "tools/call":
        attributes[names.OPERATION] = names.EXECUTE_TOOL
    shown = _shown(name) if name else ""
    if not shown or method not in _NAMED:
        return method or names.OTHER_METHOD
    key, prefix = _NAMED[method]
    attributes[key] = shown
    return prefix + shown


def _job_span(spans: Spans, starter: SpanContext | None, name: str, job_id: str) -> Span:
    """Return the span of a job: in the trace of the call that started it, and linked to it."""
    attributes = {names.OPERATION: names.EXECUTE_TOOL, names.JOB_ID: job_id, names.TOOL: name}
    links = () if starter is None else (Link(starter),)
    return Span(spans, spans.start(f"job {name}", spans.decide(starter), SpanKind.INTERNAL, attributes, links))


class Tracer:
    """Makes the spans of one yard."""

    def __init__(self, spans: Spans, *, count_request: CountRequest, count_session: CountSession) -> None:
        self._spans = spans
        self._count_request = count_request
        self._count_session = count_session

    def serve(self, facts: RequestFacts) -> "RequestSpan | Dropped":
        """Return the span of a request, while it is served.

        Its parent is the span that `_meta` names; that of the HTTP request is a link, or else the parent.
        """
        parent = context_of(facts.meta) if "traceparent" in facts.meta else None
        around = context_of(facts.around) if facts.around else None
        samples = self._spans.samples
        if samples is None:  # the program has a provider, and may have a span around the server
            around = around or _valid(trace.get_current_span().get_span_context())
        above = around if parent is None else parent
        if samples is not None:
            trace_id = getrandbits(128) if above is None else above.trace_id
            if not samples(above, trace_id):
                return Dropped(trace_id, facts, self._count_request)
        ids = self._spans.decide(above)
        links = () if parent is None or around is None or around == parent else (Link(around),)
        attributes: dict[str, Any] = {names.METHOD: facts.method or names.OTHER_METHOD, names.VERSION: facts.version}
        if facts.id is not None:
            attributes[names.REQUEST_ID] = str(facts.id)[:_ID_CHARACTERS]
        if facts.transport in names.TRANSPORTS:
            attributes[names.TRANSPORT] = names.TRANSPORTS[facts.transport]
        if facts.session is not None:
            attributes[names.SESSION_ID] = facts.session
        title = _add_name(attributes, facts.method, facts.name)
        span = self._spans.start(title, ids, SpanKind.SERVER, attributes, links)
        return RequestSpan(self._spans, span, facts, self._count_request)

    def begin(self, run: Run) -> "Span | Dropped":
        """Return the span of a call: that of its request, or one of its own."""
        served, parent, request = _request.get(), run.parent, run.call.request
        if run.options.job is not None:
            channel = run.call.channel
            return _job_span(self._spans, context_of(channel.trace), str(request.name), channel.job_id)
        if parent is None and served is not None and (not served.is_taken or isinstance(served, Dropped)):
            served.is_taken = True
            return served
        outer = None if parent is None else cast("Span | Dropped | None", parent.span)
        if isinstance(outer, Dropped):
            return outer
        above = _valid(trace.get_current_span().get_span_context()) if outer is None else outer.context
        ids = self._spans.decide(above)
        attributes: dict[str, Any] = {names.CALL_ID: run.id}
        title = _add_name(attributes, names.CALL_METHODS[request.kind], str(request.name))
        if request.kind == "tool":
            title = title.replace("tools/call", names.EXECUTE_TOOL, 1)
        return Span(self._spans, self._spans.start(title, ids, SpanKind.INTERNAL, attributes, ()))

    def end_session(self, seconds: float, *, transport: str, version: str) -> None:
        """Count the session of a client that ended."""
        self._count_session(transport, version, seconds)


def _valid(context: SpanContext) -> SpanContext | None:
    return context if context.is_valid else None
