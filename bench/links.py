"""Connections of the load generator: a socket with one request at a time, and a pair of pipes with many in flight."""

import os
import re
import select
import socket
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final, NamedTuple, Protocol

from protocol import FIRST_ID

__all__ = ["Connection", "Link", "Pipe", "Replies", "Shot"]

_PLACE: Final = f'"id":{FIRST_ID}'.encode()
_ID: Final = re.compile(rb'"id":\s*(\d{8})\b')
_LENGTH: Final = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_READ: Final = 1 << 20
_SHOWN: Final = 400
"""Characters of a wrong reply that are shown."""


class Shot(NamedTuple):
    """A request, split at its id, and the text that its reply must contain."""

    before: bytes
    after: bytes
    expect: bytes

    @classmethod
    def of(cls, head: str, body: str, expect: str) -> "Shot":
        """Return the shot for a message. Its body has the first id, and all ids have the same length."""
        before, _, after = body.encode().partition(_PLACE)
        return cls(head.encode() + before + b'"id":', after, expect.encode())

    def numbered(self, number: int) -> bytes:
        """Return the request with the given id."""
        return b"%b%d%b" % (self.before, number, self.after)


class Replies:
    """The replies and their latencies."""

    def __init__(self) -> None:
        self.open = 0
        """How many are still missing."""
        self._took: list[int] = []
        self._bytes = 0
        self._wrong = 0
        self._first_wrong = ""

    @property
    def count(self) -> int:
        """Return the number of replies."""
        return len(self._took)

    def add(self, started: int, reply: bytes, *, right: bool) -> None:
        """Count a reply to a request sent at that time."""
        self.open -= 1
        self._took.append(time.perf_counter_ns() - started)
        self._bytes += len(reply)
        if not right:
            self._wrong += 1
            self._first_wrong = self._first_wrong or reply[:_SHOWN].decode(errors="replace")

    def forget(self) -> None:
        """Drop the correct replies so far; a wrong one is kept."""
        self._took.clear()
        self._bytes = 0

    def summary(self) -> dict[str, Any]:
        """Return the numbers, and the first wrong reply if there is one."""
        took = sorted(self._took) or [0]
        middle, late = took[len(took) // 2], took[min(len(took) - 1, len(took) * 99 // 100)]
        numbers = {
            "requests": len(self._took),
            "bytes": self._bytes // max(1, len(self._took)),
            "p50_us": middle / 1e3,
            "p99_us": late / 1e3,
        }
        return numbers | (
            {"fault": f"{self._wrong} wrong replies, the first: {self._first_wrong}"} if self._wrong else {}
        )


class Link(Protocol):
    """A connection to a server."""

    @property
    def room(self) -> int:
        """Return how many requests may be in flight."""
        ...

    def watched(self) -> Iterator[tuple[int, int]]:
        """Return the descriptors to poll, and the events of each."""
        ...

    def send(self, requests: int) -> int:
        """Send up to so many requests, and return how many were sent."""
        ...

    def ready(self, events: int) -> int:
        """Read and write without blocking, and return how many requests were answered."""
        ...


class Connection:
    """A persistent socket with one request in flight."""

    room = 1

    def __init__(self, port: int, *, shots: list[Shot], numbers: Iterator[int], replies: Replies) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)  # noqa: FBT003 - as the standard library has it
        self._shots = cycle(shots)
        self._numbers = numbers
        self._replies = replies
        self._unsent = memoryview(b"")
        self._parts: list[bytes] = []
        self._missing = -1
        self._id = b""
        self._expect = b""
        self._started = 0

    def watched(self) -> Iterator[tuple[int, int]]:
        """Return the socket, edge-triggered."""
        yield self._socket.fileno(), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET

    def send(self, requests: int) -> int:
        """Send one request."""
        if not requests:
            return 0
        shot, number = next(self._shots), next(self._numbers)
        self._id, self._expect = b"%d" % number, shot.expect
        self._unsent = memoryview(shot.numbered(number))
        self._replies.open += 1
        self._started = time.perf_counter_ns()
        self._write()
        return 1

    def ready(self, events: int) -> int:
        """Continue with the request or its reply."""
        if events & select.EPOLLOUT and self._unsent:
            self._write()
        if not events & ~select.EPOLLOUT:
            return 0
        while True:
            try:
                piece = self._socket.recv(_READ)
            except BlockingIOError:
                return 0
            if not piece:
                raise ConnectionResetError("The server closed a connection.")
            if self._is_whole(piece):
                return 1
            if len(piece) < _READ:
                return 0

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return

    def _is_whole(self, piece: bytes) -> bool:
        """Read a piece of the reply, and count the reply if it is complete."""
        if self._missing < 0 and self._parts:
            self._parts = [piece := b"".join((*self._parts, piece))]
        else:
            self._parts.append(piece)
        if self._missing >= 0:
            self._missing -= len(piece)
            whole = self._missing <= 0
        else:
            head = piece.find(b"\r\n\r\n")
            length = _LENGTH.search(piece, 0, head + 2) if head >= 0 else None
            if length is not None:
                self._missing = max(0, head + 4 + int(length[1]) - len(piece))
            whole = self._missing == 0 if length is not None else head >= 0 and piece.endswith(_LAST_CHUNK)
        if whole:
            self._count(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
        return whole

    def _count(self, reply: bytes) -> None:
        self._replies.add(
            self._started,
            reply,
            right=reply.startswith(b"HTTP/1.1 200") and self._id in reply and self._expect in reply,
        )
        self._parts.clear()
        self._missing = -1


class Pipe:
    """A pair of pipes with many requests in flight; requests that are sent together are one write."""

    def __init__(
        self, write: int, read: int, *, room: int, shots: list[Shot], numbers: Iterator[int], replies: Replies
    ) -> None:
        os.set_blocking(write, False)
        os.set_blocking(read, False)
        self.room = room
        self._write_fd, self._read_fd = write, read
        self._shots = cycle(shots)
        self._numbers = numbers
        self._replies = replies
        self._flying: dict[int, tuple[int, bytes]] = {}
        self._unsent = memoryview(b"")
        self._parts: list[bytes] = []

    def watched(self) -> Iterator[tuple[int, int]]:
        """Return both pipes; the one for writing is edge-triggered."""
        yield self._read_fd, select.EPOLLIN
        yield self._write_fd, select.EPOLLOUT | select.EPOLLET

    def send(self, requests: int) -> int:
        """Send requests in one write."""
        started = time.perf_counter_ns()
        pieces = [bytes(self._unsent)] if self._unsent else []
        for _ in range(requests):
            shot, number = next(self._shots), next(self._numbers)
            self._flying[number] = (started, shot.expect)
            pieces.append(shot.numbered(number) + b"\n")
        self._replies.open += requests
        self._unsent = memoryview(b"".join(pieces))
        self._write()
        return requests

    def ready(self, events: int) -> int:
        """Write the buffer, or read lines and count them."""
        if events & (select.EPOLLOUT | select.EPOLLERR):
            self._write()
            return 0
        piece = os.read(self._read_fd, _READ)
        if not piece:
            raise ConnectionResetError("The server closed its output.")
        self._parts.append(piece)
        if b"\n" not in piece:
            return 0
        *lines, rest = b"".join(self._parts).split(b"\n")
        self._parts = [rest] if rest else []
        return sum(map(self._is_reply, lines))

    def _is_reply(self, line: bytes) -> bool:
        found = _ID.search(line)
        sent = self._flying.pop(int(found[1]), None) if found else None
        if sent is None:  # a notification
            return False
        self._replies.add(sent[0], line, right=sent[1] in line)
        return True

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._write_fd, self._unsent) :]
        except BlockingIOError:
            return
