"""The small part of ASGI that is needed here: reading a body, and answering in one piece."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

from toolyard.wire.faults import Fault
from toolyard.wire.messages import encode_fault

__all__ = ["JSON", "Headers", "Receive", "Scope", "Send", "TooLargeError", "answer", "answer_fault", "answer_text", "read_body"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[bytes, bytes]

JSON: Final = (b"content-type", b"application/json")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")


class TooLargeError(Exception):
    """A body is longer than it may be."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes | None:
    """Return the whole body, or nothing if the client went away before its end.

    Raises:
        TooLargeError: It is longer than the limit; no more than that was read.
    """
    there: bytes | None = getattr(getattr(receive, "__self__", None), "body", None)
    if there is not None:
        return there  # our own server has looked at its length already
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


async def answer(send: Send, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = (JSON,)) -> None:
    """Send a whole response."""
    whole = getattr(send, "whole", None)
    if whole is not None:  # our own server takes it in one piece
        whole(status, body, headers)
        return
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def answer_text(send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Refuse a request before it is one of the protocol, with a sentence."""
    await answer(send, status, text.encode() + b"\n", [_TEXT, *headers])


async def answer_fault(send: Send, status: int, fault: Fault, request_id: int | str | None = None) -> None:
    """Refuse a request as the protocol does."""
    await answer(send, status, encode_fault(request_id, fault))
