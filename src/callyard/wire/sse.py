"""Server-sent events: the encoding of messages on an HTTP response that stays open, and its decoder."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

__all__ = ["KEEP_ALIVE", "Event", "Events", "encode_event", "encode_retry"]

KEEP_ALIVE: Final = b": alive\r\n\r\n"
_RETRY_DIGITS: Final = 15
_MAX_LINES: Final = 100_000
_SKIPPED: Final = (b"\n", b":")
_NOTHING: Final = re.compile(rb"(?:\n|:[^\n]*\n)+")
"""Matches blank lines and comments between two events."""


class Event(msgspec.Struct, frozen=True):
    """One event: its data, its id, its type and the time to wait before a reconnect."""

    data: bytes
    id: str = ""
    kind: str = "message"
    retry: int | None = None


def encode_event(message: bytes, *, event_id: str = "", kind: str = "message") -> bytes:
    """Return a message, which must have no line breaks, as an event."""
    id_line = f"id: {event_id}\r\n" if event_id else ""
    return b"".join((f"event: {kind}\r\n{id_line}data: ".encode(), message, b"\r\n\r\n"))


def encode_retry(event_id: str, milliseconds: int) -> bytes:
    """Return an event without a message: the id to resume from, and the time to wait before a reconnect."""
    return b"id: %b\r\nretry: %d\r\ndata: \r\n\r\n" % (event_id.encode(), milliseconds)


class Events:
    """Decodes the events of a stream from pieces of any size."""

    def __init__(self, *, max_bytes: int) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._carriage_return = b""
        self._max_bytes = max_bytes

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield the events that are complete now.

        Raises:
            ValueError: An event is longer than `max_bytes`, or has too many lines.
        """
        piece = self._carriage_return + piece
        self._carriage_return = b"\r" if piece.endswith(b"\r") else b""  # a line feed may follow in the next piece
        self._buffer += piece.removesuffix(self._carriage_return).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._skip()
        while (end := self._buffer.find(b"\n\n", max(0, self._searched - 1))) >= 0:
            block = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            self._searched = 0
            self._check_length(end)
            self._skip()
            event = _decode(block)
            if event is not None:
                yield event
        self._searched = len(self._buffer)
        self._check_length(self._searched)

    def _skip(self) -> None:
        """Remove blank lines and comments ahead of the next event: one by one they would cost as much as events."""
        if self._buffer.startswith(_SKIPPED) and self._buffer.find(b"\n", self._searched) >= 0:
            found = _NOTHING.match(self._buffer)
            length = 0 if found is None else found.end()
            found = None  # a match keeps the buffer from being changed
            del self._buffer[:length]
            self._searched = max(0, self._searched - length)

    def _check_length(self, length: int) -> None:
        if length > self._max_bytes:
            raise ValueError(f"An event is longer than {self._max_bytes} bytes.")


def _decode(block: bytes) -> Event | None:
    """Return the event of a block of lines, or None if it is only a comment."""
    if block.count(b"\n") > _MAX_LINES:
        raise ValueError(f"An event has more than {_MAX_LINES} lines.")
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
        data=b"\n".join(data),
        id=fields.get(b"id", b"").decode(errors="replace"),
        kind=fields.get(b"event", b"message").decode(errors="replace"),
        retry=int(retry) if retry.isdigit() and len(retry) <= _RETRY_DIGITS else None,
    )
