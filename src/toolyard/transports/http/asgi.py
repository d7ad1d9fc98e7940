"""The small part of ASGI that is needed here: reading a body, and answering in one piece."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, Protocol

import msgspec

from toolyard.dispatch.call import Caller
from toolyard.wire.messages import Fault, encode_fault
from toolyard.wire.sse import encode_event

__all__ = [
    "JSON",
    "PLAIN",
    "PREFLIGHT",
    "STREAM",
    "Foreign",
    "Headers",
    "Receive",
    "Request",
    "Scope",
    "Send",
    "Shared",
    "Streamed",
    "Target",
    "TooLargeError",
    "Way",
    "kinds_taken",
    "read_body",
    "respond",
    "respond_fault",
    "respond_text",
    "share",
    "shown_of",
    "text_of",
    "trace_of",
    "wait_until_gone",
]


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[bytes, bytes]
JSON: Final = (b"content-type", b"application/json")
PLAIN: Final = (JSON,)
"""The headers that nearly every answer has."""
STREAM: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")


class Target(Protocol):
    """What a request is about, before anybody looked at who sent it."""

    method: str
    pairs: list[tuple[bytes, bytes]]
    """The headers as they came, where one may be there twice."""
    headers: dict[bytes, bytes]
    body: bytes | None

    @property
    def scheme(self) -> str:
        """Return which of the two is spoken."""
        ...

    @property
    def root(self) -> str:
        """Return the path that the application is mounted at."""
        ...

    @property
    def path(self) -> str:
        """Return the path that is asked for, below that."""
        ...

    @property
    def query(self) -> bytes:
        """Return what comes after the path."""
        ...


class Foreign:
    """The target of a request that another ASGI server took."""

    def __init__(self, scope: Scope) -> None:
        self.body: bytes | None = None
        self.method: str = scope["method"]
        self.pairs: list[tuple[bytes, bytes]] = scope["headers"]
        self.headers = dict(self.pairs)
        self.scheme: str = scope.get("scheme", "http")
        self.root: str = scope.get("root_path", "")
        self.query: bytes = scope.get("query_string", b"")
        path: str = scope["path"]
        self.path = path[len(self.root) :] if self.root and path.startswith(f"{self.root}/") else path


class TooLargeError(Exception):
    """A body is longer than it may be."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes | None:
    """Return the whole body, or nothing if the client went away before its end.

    Raises:
        TooLargeError: It is longer than the limit; no more than that was read.
    """
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:19]) > limit:
        raise TooLargeError
    event = await receive()
    if event["type"] == "http.request" and not event.get("more_body"):
        body: bytes = event.get("body", b"")
        if len(body) > limit:
            raise TooLargeError
        return body
    pieces = bytearray()
    while event["type"] == "http.request":
        pieces += event.get("body", b"")
        if len(pieces) > limit:
            raise TooLargeError
        if not event.get("more_body"):
            return bytes(pieces)
        event = await receive()
    return None


async def wait_until_gone(receive: Receive) -> None:
    """Wait until the client goes away, or is answered."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(send: Send, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = PLAIN) -> None:
    """Send a whole response."""
    whole = getattr(send, "whole", None)
    if whole is not None:  # our own server takes it in one piece
        whole(status, body, headers)
        return
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def respond_text(send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Refuse a request before it is one of the protocol, with a sentence."""
    await respond(send, status, text.encode() + b"\n", [_TEXT, *headers])


async def respond_fault(send: Send, status: int, fault: Fault, request_id: int | str | None = None) -> None:
    """Refuse a request as the protocol does."""
    await respond(send, status, encode_fault(request_id, fault))


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


_GOOD: Final = 200
Pair = tuple[bytes, bytes]


class Way:
    """A way to the client through another."""

    def __init__(self, send: Send) -> None:
        self._send: Any = send
        if hasattr(send, "whole"):
            self.whole = self._whole

    async def __call__(self, event: Any) -> None:
        """Send the next part of an answer."""
        await self._send(event)

    @property
    def task(self) -> Any:
        """Return the task that works on the request, where the server says it."""
        return self._send.task

    @property
    def on_gone(self) -> Callable[[], object] | None:
        """Return what is called when the client goes away; there is nothing such with another server."""
        return self._send.on_gone

    @on_gone.setter
    def on_gone(self, told: Callable[[], object] | None) -> None:
        self._send.on_gone = told

    def _whole(self, status: int, body: bytes, headers: Iterable[Pair]) -> None:
        self._send.whole(status, body, headers)


class Streamed(Way):
    """The way to a client that takes nothing but streams: a good answer in one piece becomes a stream of one event."""

    _held: Any = None

    async def __call__(self, event: Any) -> None:
        """Send the next part of an answer; a head that says it is JSON waits for its body."""
        if event["type"] == "http.response.start" and event["status"] == _GOOD and JSON in event["headers"]:
            self._held = event
            return
        if self._held is not None:
            started, self._held = self._held, None
            headers = [pair for pair in _as_stream(started["headers"]) if pair[0] != b"content-length"]
            await self._send({**started, "headers": headers})
            event = {**event, "body": encode_event(event["body"])}
        await super().__call__(event)

    def _whole(self, status: int, body: bytes, headers: Iterable[Pair]) -> None:
        pairs = tuple(headers)
        if status == _GOOD and JSON in pairs:
            self._send.whole(status, encode_event(body), _as_stream(pairs))
        else:
            super()._whole(status, body, pairs)


def _as_stream(headers: Iterable[Pair]) -> list[Pair]:
    return [*STREAM, *(pair for pair in headers if pair != JSON)]


Pairs = tuple[tuple[bytes, bytes], ...]
PREFLIGHT: Final[Pairs] = (
    (b"access-control-allow-methods", b"POST, GET, DELETE"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED: Final = (b"access-control-expose-headers", b"mcp-session-id, www-authenticate")


class Shared(Way):
    """A way to the client that adds the headers for its page to every answer."""

    def __init__(self, send: Send, origin: bytes) -> None:
        super().__init__(send)
        self._pairs: Pairs = ((b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED)

    async def __call__(self, event: Any) -> None:
        """Send the next part of an answer."""
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event["headers"], *self._pairs]}
        await super().__call__(event)

    def _whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
        super()._whole(status, body, (*headers, *self._pairs))


def share(send: Send, origin: bytes | None) -> Send:
    """Return the way to the client, which tells its page, if it has one, that it may look."""
    return send if origin is None else Shared(send, origin)
