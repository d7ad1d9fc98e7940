"""What the funnel needs of a tracer: spans of calls, and of the requests of clients that start them.

It knows no tracing library. A yard that is not traced has no tracer, and its runs have no spans.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from callyard.model.envelope import Envelope

if TYPE_CHECKING:
    from callyard.dispatch.run import Run  # it has a span

__all__ = ["CallSpan", "RequestFacts", "RequestSpan", "Tracing", "UpstreamFacts", "UpstreamSpan"]


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request of an MCP client, without its arguments."""

    method: str
    """Empty for a method that does not exist, because clients choose its name."""
    name: str | None
    """The name of a tool or prompt, as the client wrote it."""
    id: str | int | float | None
    version: str
    transport: str
    session: str | None
    """The conversation of a client that began with a handshake."""
    meta: Mapping[str, Any]
    around: Mapping[str, str]
    """The trace context of the transport, which is the HTTP request."""


class UpstreamFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request to an upstream goes."""

    name: str
    url: str | None
    """The address, unless it is a program."""
    version: str | None


class UpstreamSpan(Protocol):
    """The span of a request to an upstream, while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object, /) -> None: ...

    def carrier(self) -> dict[str, str]:
        """Return the trace context for the `_meta` of the request."""
        ...

    def note_retry(self) -> None:
        """Note that the request is sent once more."""
        ...

    def note_tool_error(self) -> None:
        """Note that the tool reports a failure."""
        ...


class CallSpan(Protocol):
    """The span of a call."""

    @property
    def trace_id(self) -> str:
        """Return the id of its trace, in hexadecimal digits."""
        ...

    @property
    def span_id(self) -> str:
        """Return its id, in hexadecimal digits."""
        ...

    def carrier(self) -> dict[str, str]:
        """Return its trace context, for what the call causes elsewhere."""
        ...

    def current(self) -> AbstractContextManager[object]:
        """Return a context manager in which spans of the handler belong to this one."""
        ...

    def note_wait(self, kind: str, seconds: float) -> None:
        """Note that the call waited for its turn, or for a person."""
        ...

    def upstream(self, method: str, name: str | None, facts: UpstreamFacts) -> UpstreamSpan:
        """Return the span of a request to an upstream."""
        ...

    def become_job(self, name: str, job_id: str) -> "CallSpan":
        """Return the span of the job that stores the call."""
        ...

    def end(self, run: "Run", answer: Envelope) -> None:
        """End the span, unless it is that of a request."""
        ...


class RequestSpan(Protocol):
    """The span of a client's request."""

    def note(self, outcome: Envelope) -> None:
        """Take the outcome of the call that the request made."""
        ...

    def fail(self, code: int) -> None:
        """Take the code of the JSON-RPC error that answers the request."""
        ...


class Tracing(Protocol):
    """Makes spans, for one yard."""

    def begin(self, run: "Run") -> CallSpan:
        """Return the span of a call: that of its request, or one of its own."""
        ...

    def serve(self, facts: RequestFacts) -> AbstractContextManager[RequestSpan]:
        """Return the span of a request, while it is served."""
        ...

    def end_session(self, seconds: float, *, transport: str, version: str) -> None:
        """Count the session of a client that ended."""
        ...
