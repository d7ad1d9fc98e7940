"""Spans of OpenTelemetry: of the requests of clients, of calls inside others, of requests to upstreams, and of jobs.

It is imported only where tracing is switched on. Arguments and results are never in a span.
"""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from functools import lru_cache
from typing import Any, Final, Self, cast
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

__all__ = ["Span", "Tracer", "context_of", "current_ids"]

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_ID_CHARACTERS: Final = 100
_SERVER_ERRORS: Final = range(-32099, -31999)
_NOWHERE: Final = otel.Context()
_request: ContextVar["Span | None"] = ContextVar("callyard.request_span", default=None)
"""The span of the request that is served here; its first call takes it."""
_NAMED: Final[Mapping[str, tuple[str, str]]] = {
    "tools/call": (names.TOOL, "tools/call "),
    "prompts/get": (names.PROMPT, "prompts/get "),
}
_CALLS: Final = frozenset(names.CALL_METHODS.values())
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
        context = served.context
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@lru_cache(maxsize=4096)
def _shown(name: str) -> str:
    """Return a name for a span, or '' if it is not safe to show: clients choose it."""
    return name if is_tool_name(name) else ""


class Span:
    """One span of a request, a call, a job or a request to an upstream."""

    __slots__ = (
        "_began",
        "_count",
        "_error",
        "_facts",
        "_is_request",
        "_span",
        "_token",
        "_tracer",
        "context",
        "is_recording",
        "is_taken",
    )

    def __init__(self, tracer: trace.Tracer, span: trace.Span, *, is_request: bool = False) -> None:
        self._tracer = tracer
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
        parent = trace.set_span_in_context(self._span, _NOWHERE)
        span = self._tracer.start_span(title, parent, SpanKind.CLIENT, attributes)
        return UpstreamSpan(self._tracer, span)

    def become_job(self, name: str, job_id: str) -> "Span":
        """Return the span of the job that stores the call, linked to this one, which ends here unless it serves."""
        if self.is_recording:
            self._span.set_attribute(names.JOB_ID, job_id)
        if not self._is_request:
            self._span.end()
        return _job_span(self._tracer, self.context, name, job_id)

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

    def __init__(self, tracer: trace.Tracer, span: trace.Span, facts: RequestFacts, count: CountRequest) -> None:
        super().__init__(tracer, span, is_request=True)
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
        self._token: Token[Span | None] = _request.set(self)
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


def _job_span(tracer: trace.Tracer, starter: SpanContext | None, name: str, job_id: str) -> Span:
    """Return the span of a job: in the trace of the call that started it, and linked to it."""
    attributes = {names.OPERATION: names.EXECUTE_TOOL, names.JOB_ID: job_id, names.TOOL: name}
    if starter is None:
        return Span(tracer, tracer.start_span(f"job {name}", _NOWHERE, SpanKind.INTERNAL, attributes))
    parent = trace.set_span_in_context(NonRecordingSpan(starter), _NOWHERE)
    span = tracer.start_span(f"job {name}", parent, SpanKind.INTERNAL, attributes, [Link(starter)])
    return Span(tracer, span)


class Tracer:
    """Makes the spans of one yard."""

    def __init__(self, tracer: trace.Tracer, *, count_request: CountRequest, count_session: CountSession) -> None:
        self._tracer = tracer
        self._count_request = count_request
        self._count_session = count_session

    def serve(self, facts: RequestFacts) -> RequestSpan:
        """Return the span of a request, while it is served.

        Its parent is the span that `_meta` names; that of the HTTP request is a link, or else the parent.
        """
        attributes: dict[str, Any] = {names.METHOD: facts.method or names.OTHER_METHOD, names.VERSION: facts.version}
        if facts.id is not None:
            attributes[names.REQUEST_ID] = str(facts.id)[:_ID_CHARACTERS]
        if facts.transport in names.TRANSPORTS:
            attributes[names.TRANSPORT] = names.TRANSPORTS[facts.transport]
        if facts.session is not None:
            attributes[names.SESSION_ID] = facts.session
        title = _add_name(attributes, facts.method, facts.name)
        parent = context_of(facts.meta) if "traceparent" in facts.meta else None
        around = context_of(facts.around) if facts.around else None
        ambient = otel.get_current()
        if around is None and ambient:
            around = _valid(trace.get_current_span(ambient).get_span_context())
        links: list[Link] | None = None
        if parent is None:
            parent = around
        elif around is not None and around != parent:
            links = [Link(around)]
        context = _NOWHERE if parent is None else trace.set_span_in_context(NonRecordingSpan(parent), _NOWHERE)
        span = self._tracer.start_span(title, context, SpanKind.SERVER, attributes, links)
        return RequestSpan(self._tracer, span, facts, self._count_request)

    def begin(self, run: Run) -> Span:
        """Return the span of a call: that of its request, or one of its own."""
        served, parent, request = _request.get(), run.parent, run.call.request
        if run.options.job is not None:
            channel = run.call.channel
            return _job_span(self._tracer, context_of(channel.trace), str(request.name), channel.job_id)
        if parent is None and served is not None and not served.is_taken:
            served.is_taken = True
            return served
        outer = None if parent is None else cast("Span | None", parent.span)
        context = None if outer is None else trace.set_span_in_context(outer._span, _NOWHERE)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - of the same kind
        attributes: dict[str, Any] = {names.CALL_ID: run.id}
        title = _add_name(attributes, names.CALL_METHODS[request.kind], str(request.name))
        if request.kind == "tool":
            title = title.replace("tools/call", names.EXECUTE_TOOL, 1)
        return Span(self._tracer, self._tracer.start_span(title, context, SpanKind.INTERNAL, attributes))

    def end_session(self, seconds: float, *, transport: str, version: str) -> None:
        """Count the session of a client that ended."""
        self._count_session(transport, version, seconds)


def _valid(context: SpanContext) -> SpanContext | None:
    return context if context.is_valid else None
