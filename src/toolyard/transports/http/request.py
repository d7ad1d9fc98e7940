"""A request that the gate let in: its headers, who sent it, and the two ways to its client."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from toolyard.caller import Caller
from toolyard.transports.http.asgi import Headers, Receive, Send

__all__ = ["Request", "kinds_taken", "shown_of", "text_of", "trace_of"]

_NOTHING: Final[Mapping[str, str]] = {}
_NEVER: Final = re.compile(rb"\s*q\s*=\s*0(\.0*)?\s*")
_TRACE: Final = frozenset({b"traceparent", b"tracestate", b"baggage"})


class Request(msgspec.Struct, eq=False):
    """One request."""

    method: str
    headers: Headers
    pairs: list[tuple[bytes, bytes]]
    """The headers as they came, where one may be there twice."""
    caller: Caller
    receive: Receive
    send: Send
    body: bytes | None = None
    """What it says, if that is there already."""
    streams: bool = False
    """Whether its answer may be a stream."""
    shown: Mapping[str, str] = _NOTHING
    """The headers that its call is shown: some for handlers, some for upstreams."""

    def text(self, name: bytes) -> str:
        """Return a header as text, or nothing at all."""
        return text_of(self.headers, name)

    def wants_stream(self) -> bool:
        """Return whether its answer may be a stream even where plain JSON is preferred."""
        return b"text/event-stream" in kinds_taken(self.headers.get(b"accept", b""))

    def trace(self) -> dict[str, str]:
        """Return the trace that the headers say it is part of."""
        return trace_of(self.headers)

    def traced(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return what came beside the params, with the trace of the headers where it says none."""
        trace = self.trace()
        return {**trace, **(meta or {})} if trace else meta or _NOTHING

    def __repr__(self) -> str:
        """Return what may be shown of it: never its headers."""
        return f"<Request {self.method}>"


def text_of(headers: Headers, name: bytes) -> str:
    """Return a header as text, or nothing at all."""
    return headers.get(name, b"").strip().decode("latin-1")


def trace_of(headers: Headers) -> dict[str, str]:
    """Return the trace that headers say their request is part of."""
    return {} if _TRACE.isdisjoint(headers) else shown_of(headers, _TRACE)


def kinds_taken(accept: bytes) -> frozenset[bytes]:
    """Return the kinds of content that an 'Accept' names, without those that it says are never taken."""
    named = (part.split(b";") for part in accept.lower().split(b","))
    return frozenset(kind.strip() for kind, *parameters in named if not any(map(_NEVER.fullmatch, parameters)))


def shown_of(headers: Headers, names: Iterable[bytes]) -> dict[str, str]:
    """Return the headers of those names that are there, as a call is shown them."""
    return {name.decode(): text_of(headers, name) for name in names if name in headers}
