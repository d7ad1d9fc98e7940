"""HTTP requests, whichever server received them: our own or any ASGI server."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

import msgspec

from callyard.dispatch.call import SHARED, Caller

__all__ = [
    "MAX_HEADERS",
    "Headers",
    "Receive",
    "RefusedError",
    "Release",
    "Request",
    "Scope",
    "Send",
    "TooLargeError",
    "accepted_types",
    "is_compressed",
    "read_body",
    "request_of",
    "select_headers",
]


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[bytes, bytes]
Release = Callable[[], None]
MAX_HEADERS: Final = 256
_EMPTY: Final[Mapping[str, Any]] = {}
_ZERO_QUALITY: Final = re.compile(rb"\s*q\s*=\s*0(\.0*)?\s*")
_TRACE: Final = frozenset({b"traceparent", b"tracestate", b"baggage"})


class RefusedError(Exception):
    """A request is refused with an HTTP status, a sentence and headers."""

    def __init__(self, status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class TooLargeError(Exception):
    """A body is longer than the limit."""


class Request(msgspec.Struct, eq=False, kw_only=True):
    """One request."""

    method: str
    path: str
    """The path below `root`; empty if the URL is invalid."""
    pairs: list[tuple[bytes, bytes]]
    """The headers as they came; a name may be there twice."""
    headers: dict[bytes, bytes]
    subpath: str = ""
    """The part of the path below the mount, such as '/x'."""
    query: bytes = b""
    scheme: str = "http"
    root: str = ""
    """The path at which the application is mounted."""
    body: bytes | None = None
    """The whole body, unless it must be read with `receive`."""
    receive: Receive | None = None
    caller: Caller = SHARED
    profiles: frozenset[str] | None = None
    """The profiles that the path may name; None is any."""
    release: Release | None = None
    """Called when the request is no longer in work."""
    accepts_stream: bool = False
    visible_headers: Mapping[str, str] = _EMPTY
    """The headers that are passed on to the call: some for handlers, some for upstreams."""

    def text(self, name: bytes) -> str:
        """Return a header as text; empty if it is missing."""
        return _text_of(self.headers, name)

    def requires_stream(self) -> bool:
        """Return whether `Accept` names event streams, even where JSON is preferred."""
        return b"text/event-stream" in accepted_types(self.headers.get(b"accept", b""))

    def trace(self) -> dict[str, str]:
        """Return the trace context in the headers."""
        return {} if _TRACE.isdisjoint(self.headers) else select_headers(self.headers, _TRACE)

    def traced(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return a `_meta` with the trace context of the headers, unless it has its own."""
        trace = self.trace()
        return {**trace, **(meta or {})} if trace else meta or _EMPTY

    def __repr__(self) -> str:
        """Return the method, and never the headers, which hold credentials."""
        return f"<Request {self.method}>"


def request_of(scope: Scope, receive: Receive) -> Request:
    """Return the request of an ASGI scope."""
    pairs: list[tuple[bytes, bytes]] = scope["headers"]
    root: str = scope.get("root_path", "")
    path: str = scope["path"]
    return Request(
        method=scope["method"],
        path=path[len(root) :] if root and path.startswith(f"{root}/") else path,
        pairs=pairs,
        headers=dict(pairs),
        query=scope.get("query_string", b""),
        scheme=scope.get("scheme", "http"),
        root=root,
        receive=receive,
    )


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes | None:
    """Return the whole body, or None if the client disconnected before its end.

    Raises:
        TooLargeError: It is longer than the limit; no more than that was read.
    """
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:19]) > limit:
        raise TooLargeError
    body = bytearray()
    while (event := await receive())["type"] == "http.request":
        body += event.get("body", b"")
        if len(body) > limit:
            raise TooLargeError
        if not event.get("more_body"):
            return bytes(body)
    return None


def is_compressed(headers: Headers) -> bool:
    """Return whether the body is encoded in a way that is not undone here."""
    return headers.get(b"content-encoding", b"").strip().lower() not in {b"", b"identity"}


def _text_of(headers: Headers, name: bytes) -> str:
    return headers.get(name, b"").strip().decode("latin-1")


def accepted_types(accept: bytes) -> frozenset[bytes]:
    """Return the media types in an `Accept` header, without those of quality 0."""
    types = (part.split(b";") for part in accept.lower().split(b","))
    return frozenset(kind.strip() for kind, *parameters in types if not any(map(_ZERO_QUALITY.fullmatch, parameters)))


def select_headers(headers: Headers, names: Iterable[bytes]) -> dict[str, str]:
    """Return the headers of these names as text, without the missing ones."""
    return {name.decode(): _text_of(headers, name) for name in names if name in headers}
