"""A connection: HTTP/1.1 from bytes to the application and back, one request at a time.

A request is handed on when it is there whole, because none of ours is of use before. The parser is httptools; what is ours is when
to begin, when to stop waiting, and to write an answer in one piece.
"""

import asyncio
import re
from collections import deque
from math import inf
from typing import Any, Final

import httptools

from toolyard.transports.http.cycle import Cycle, Head, alone, read, refusal
from toolyard.transports.http.server import ServerState

__all__ = ["Connection", "UpgradeStripper"]


_WISH: Final = b"\r\nupgrade:"
_UPGRADE: Final = re.compile(_WISH, re.IGNORECASE)
_END: Final = b"\r\n\r\n"


class UpgradeStripper:
    """Takes the wish out of the heads of one connection, because a parser that sees it takes the body for something else."""

    def __init__(self) -> None:
        self.cut = b""
        """What a head that is not there whole ended with, and may become the wish."""

    def take_out(self, data: bytes) -> bytes:
        """Return what can be parsed of a piece that begins in a head."""
        head, end, rest = (self.cut + data).partition(_END)
        cut = 0 if end else _begun(head)
        self.cut = head[len(head) - cut :]
        return _UPGRADE.sub(b"\r\nx-upgrade:", head[: len(head) - cut]) + end + rest


def _begun(head: bytes) -> int:
    """Return how many bytes at the end may be the beginning of the wish, or of the end of the head."""
    tail = head[1 - len(_WISH) :].lower()
    return next((len(tail) - at for at in range(len(tail)) if _WISH.startswith(tail[at:]) or _END.startswith(tail[at:])), 0)


_HEAD_BYTES: Final = 64 * 1024
_QUEUED: Final = 16
_DIGITS: Final = 18
_DROPPED: Final = 16 * 1024 * 1024
_LINGER: Final = 1.0
_SLACK: Final = 0.1


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, house: ServerState) -> None:
        self.house = house
        self.is_lost = False
        self.cycle: Cycle | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._queue: deque[Cycle] = deque()
        self._pairs: list[tuple[bytes, bytes]] = []
        self._headers: dict[bytes, bytes] = {}
        self._head: Head | None = None
        """Of the last request, if it may be known again."""
        self._url = b""
        self._wishes = UpgradeStripper()
        self._body: bytes | bytearray = b""
        self.held = 0
        """Bytes of bodies that are not worked on yet."""
        self._size = 0
        self._since = 0.0
        self._state = "idle"
        self._is_refused = False
        self._looks_at = inf
        self._look: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self._transport = transport
        if self.house.is_closing:
            self._transport.abort()
            return
        self.house.connections.add(self)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own interface
        """Tell whoever works for the client that it is gone."""
        self.is_lost = True
        self.house.connections.discard(self)
        for timer in (self._look, self._unread):
            if timer is not None:
                timer.cancel()
        self.resume_writing()
        self._release(self.held)
        self._queue.clear()
        if self.cycle is not None:
            self.cycle.lose()
        self._parser = None

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        head = self._head
        if self._is_refused:
            self._size += len(data)
            if self._size > _DROPPED:
                self._transport.abort()
        elif self._state != "idle":
            self._parse(data)
        elif head is not None and self.cycle is None and head.begins(data):
            self._begin(Cycle(self, head, data[len(head.text) :]))
        else:
            self._expect_head()
            self._parse(data)
            self._head = None if self._head is None else alone(self._head, data)

    def _parse(self, data: bytes) -> None:
        self._head = None
        if self._state == "head":
            end = data.find(_END)
            if self._size + (len(data) if end < 0 else end) > _HEAD_BYTES:
                self._refuse(431, "The head of the request is too long.")
                return
            if data.find(b"pgrade") >= 0 or end < 0 or self._wishes.cut:  # 'in' would try it as a number first
                data = self._wishes.take_out(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "Only HTTP is spoken here.")
        except httptools.HttpParserError:
            self._refuse(400, "This is no HTTP request.")
        if self._state == "head":
            self._size = self._size + len(data) if self._head is None else 0  # the piece may hold other requests, too

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._pairs = []
        self._url = b""
        self._body = b""
        self._size = 0
        self._state = "head"

    def on_url(self, url: bytes) -> None:
        """Take a piece of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes after the body is dropped, because nobody looks at it who should."""
        if self._state == "head":
            self._pairs.append((name.lower(), value))
            return
        self._size += len(name) + len(value)
        if self._size > self.house.serving.message_bytes + _HEAD_BYTES:
            self._refuse(431, "What comes after the body is too long.")

    def on_headers_complete(self) -> None:
        """Look at the head before the body comes."""
        self._state = "body"
        self._size = 0
        self._headers = headers = dict(self._pairs)
        length = headers.get(b"content-length", b"0")
        if len(length) > _DIGITS or int(length or b"0") > self.house.serving.message_bytes:
            self._refuse(413, f"The message has more than {self.house.serving.message_bytes} bytes.")
        elif b"expect" in headers and self.cycle is None and not self._is_refused:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        house = self.house
        self._size += len(body)
        if self._size > house.serving.message_bytes:
            self._refuse(413, f"The message has more than {house.serving.message_bytes} bytes.")
        elif not self._is_refused:
            if not self._body:
                self._body = body
            else:
                self._body = self._body if isinstance(self._body, bytearray) else bytearray(self._body)
                self._body += body
            self.held += len(body)
            house.receiving += len(body)
            if house.receiving > house.room:
                house.make_room()

    def refuse_body(self) -> None:
        """End, because everybody together sends more than there is room for, and this one sends most."""
        self._refuse(503, "Too much is being received already.")
        self._release(self.held)

    def _release(self, size: int) -> None:
        self.held -= size
        self.house.receiving -= size

    def on_message_complete(self) -> None:
        """Hand the request on, or let it wait until the one before is answered."""
        self._state = "idle"
        self._since = self.house.loop.time()
        if self._is_refused:
            return
        self._head = read(self._parser, self._url, self._pairs, self._headers)
        cycle = Cycle(self, self._head, bytes(self._body))
        if self.cycle is None:
            self._begin(cycle)
            return
        self._queue.append(cycle)
        if len(self._queue) == _QUEUED:
            self._transport.pause_reading()

    def finish(self, cycle: Cycle) -> None:
        """Go on after an answer: with the next request, or to an end."""
        self.cycle = None
        if self.is_lost:
            return
        if not cycle.keep_alive or self.house.is_closing:
            self._transport.close()
        elif self._queue:
            if self._room is None:
                self._begin_next()
        else:
            self._since = self.house.loop.time()

    def write(self, data: bytes) -> None:
        """Send a piece."""
        if not self.is_lost:
            self._transport.write(data)

    async def wait_for_room(self) -> None:
        """Wait until the client has read what was sent."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        if self._room is None:
            self._room = self.house.loop.create_future()
            self._transport.pause_reading()  # who does not read is not worked for
            self._unread = self.house.loop.call_later(self.house.unread_seconds, self._transport.abort)

    def resume_writing(self) -> None:
        """Wait for the client no longer."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if room is not None and not self.is_lost:
            if self.cycle is None and self._queue:
                self._begin_next()
            if len(self._queue) < _QUEUED:
                self._transport.resume_reading()

    def _begin_next(self) -> None:
        if len(self._queue) == _QUEUED:
            self._transport.resume_reading()
        self._begin(self._queue.popleft())

    def close_when_done(self) -> None:
        """End after the answer that is being worked on, or at once if there is none."""
        if self.cycle is None:
            self._transport.close()
        else:
            self.cycle.keep_alive = False

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()

    def _begin(self, cycle: Cycle) -> None:
        self.cycle = cycle
        if self.held:
            self._release(min(self.held, len(cycle.body)))
        cycle.task = self.house.loop.create_task(cycle.run())

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer what is no request that can be handed on, and end, once the client has had the time to read that."""
        if self._is_refused:
            return
        self._is_refused = True
        self._size = 0
        if self.cycle is None and self._transport.can_write_eof():
            self._transport.write(refusal(status, sentence))
            self._transport.write_eof()
            self.house.loop.call_later(_LINGER, self._transport.close)
        elif self.cycle is None:
            self._transport.write(refusal(status, sentence))
            self._transport.close()
        else:
            self._queue.clear()
            self.cycle.keep_alive = False  # what was asked before is answered, and then it ends

    def _expect_head(self) -> None:
        """Begin to wait for the head of a request, and look in time whether it is there."""
        self._since = self.house.loop.time()
        self._state = "head"
        self._size = 0
        seconds = self.house.head_seconds
        if self._looks_at > self._since + seconds + _SLACK:
            if self._look is not None:
                self._look.cancel()
            self._look_later(seconds)

    def _look_later(self, seconds: float) -> None:
        self._looks_at = self.house.loop.time() + seconds
        self._look = self.house.loop.call_later(seconds, self._see)

    def _see(self) -> None:
        """End if the client dawdles: one timer now and then, since one for every request would cost more than it is worth."""
        self._look = None
        self._looks_at = inf
        allowed = self.house.seconds_for(self._state)
        is_busy = self.cycle is not None and self._state == "idle"
        left = allowed if is_busy else self._since + allowed - self.house.loop.time()
        if left > 0:
            self._look_later(left)
        elif self._state == "body" or (self._state == "head" and self._size):
            self._refuse(408, "The request did not come whole in time.")
        else:
            self._transport.close()
