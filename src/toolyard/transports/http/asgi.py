"""The small part of ASGI that is needed here: reading a body, and answering in one piece."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, Protocol

from toolyard.wire.faults import Fault
from toolyard.wire.messages import encode_fault

__all__ = [
    "JSON",
    "PLAIN",
    "Foreign",
    "Headers",
    "Receive",
    "Scope",
    "Send",
    "Target",
    "TooLargeError",
    "read_body",
    "respond",
    "respond_fault",
    "respond_text",
    "wait_until_gone",
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[bytes, bytes]

JSON: Final = (b"content-type", b"application/json")
PLAIN: Final = (JSON,)
"""The headers that nearly every answer has."""
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
