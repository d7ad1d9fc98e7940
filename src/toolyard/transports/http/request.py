"""A request that the gate let in: its headers, who sent it, and the two ways to its client."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from toolyard.caller import Caller
from toolyard.transports.http.asgi import Headers, Receive, Send

__all__ = ["Request"]

_NOTHING: Final[Mapping[str, str]] = {}
_TRACE: Final = (b"traceparent", b"tracestate", b"baggage")


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
        return self.headers.get(name, b"").strip().decode("latin-1")

    def wants_stream(self) -> bool:
        """Return whether its answer may be a stream even where plain JSON is preferred."""
        return b"text/event-stream" in self.headers.get(b"accept", b"").lower()

    def trace(self) -> dict[str, str]:
        """Return the trace that the headers say it is part of."""
        return {name.decode(): self.text(name) for name in _TRACE if name in self.headers}

    def traced(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return what came beside the params, with the trace of the headers where it says none."""
        trace = self.trace()
        return {**trace, **(meta or {})} if trace else meta or _NOTHING

    def __repr__(self) -> str:
        """Return what may be shown of it: never its headers."""
        return f"<Request {self.method}>"
