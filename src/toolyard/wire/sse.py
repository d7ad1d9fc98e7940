"""Server-sent events: how messages travel on an HTTP response that stays open."""

from collections.abc import Iterator
from typing import Final

import msgspec

__all__ = ["KEEP_ALIVE", "Event", "Events", "encode_event", "encode_retry"]

KEEP_ALIVE: Final = b": alive\r\n\r\n"
_DIGITS: Final = 15


class Event(msgspec.Struct, frozen=True):
    """One event: what it holds, its id if it can be asked for again, and its kind."""

    data: bytes
    id: str = ""
    kind: str = "message"
    retry: int | None = None


def encode_event(message: bytes, *, event_id: str = "", kind: str = "message") -> bytes:
    """Return a message, which has no line breaks, as an event."""
    where = f"id: {event_id}\r\n" if event_id else ""
    return b"".join((f"event: {kind}\r\n{where}data: ".encode(), message, b"\r\n\r\n"))


def encode_retry(event_id: str, milliseconds: int) -> bytes:
    """Return an event without a message, which tells where to go on and how soon to come back."""
    return b"id: %b\r\nretry: %d\r\ndata: \r\n\r\n" % (event_id.encode(), milliseconds)


class Events:
    """Reads events from the pieces of a stream, however it was cut."""

    def __init__(self, *, max_bytes: int) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._held = b""
        self._max_bytes = max_bytes

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield the events that are complete now.

        Raises:
            ValueError: One event is longer than it may be.
        """
        piece = self._held + piece
        self._held = b"\r" if piece.endswith(b"\r") else b""  # its other half may be in the next piece
        self._buffer += piece.removesuffix(self._held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        while (end := self._buffer.find(b"\n\n", max(0, self._searched - 1))) >= 0:
            block = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            self._searched = 0
            self._check_length(end)
            event = _event(block)
            if event is not None:
                yield event
        self._searched = len(self._buffer)
        self._check_length(self._searched)

    def _check_length(self, length: int) -> None:
        if length > self._max_bytes:
            raise ValueError(f"An event is longer than {self._max_bytes} bytes.")


def _event(block: bytes) -> Event | None:
    """Return the event that a block of lines is, or nothing if it is only a comment."""
    data: list[bytes] = []
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name:
            fields[name] = value
    if not data and not fields:
        return None
    retry = fields.get(b"retry", b"")
    return Event(
        b"\n".join(data),
        fields.get(b"id", b"").decode(errors="replace"),
        fields.get(b"event", b"message").decode(errors="replace"),
        int(retry) if retry.isdigit() and len(retry) <= _DIGITS else None,
    )
