"""A connection to an upstream: HTTP/1.1 from requests to responses, one at a time.

The parser only notes what it finds; it is handed on afterwards, so that whoever takes it may do anything, also end the connection.
"""

import asyncio
import re
import select
import socket
from collections.abc import Mapping
from typing import Any, Final, Protocol

import httptools

from toolyard.providers.upstream.link import LinkError

__all__ = ["TEXT", "Connection", "Home", "Taker"]

TEXT: Final = 500
"""Letters of what an upstream said that are told on."""
_HEAD_BYTES: Final = 64 * 1024
_KEPT_SECONDS: Final = 30.0
_PROBE_SECONDS: Final = 60
_MARGIN_SECONDS: Final = 1.0
_KEEP_ALIVE: Final = re.compile(rb"timeout=(\d{1,6})")
_OK: Final = 200


class Taker(Protocol):
    """Who takes a response as it comes; after `finish` or `fail` nothing comes any more."""

    connection: "Connection | None"

    def begin(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Take the head."""
        ...

    def take(self, piece: bytes) -> None:
        """Take a piece of the body."""
        ...

    def finish(self) -> None:
        """Take note that the response is whole."""
        ...

    def fail(self, error: LinkError) -> None:
        """Take note that it will never be."""
        ...


class Home(Protocol):
    """Where connections are kept."""

    name: str

    def keep(self, connection: "Connection") -> None:
        """Take note of a connection that was made."""
        ...

    def release(self, connection: "Connection") -> None:
        """Take a connection back that can be used again."""
        ...

    def forget(self, connection: "Connection") -> None:
        """Take note that a connection is gone."""
        ...


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, home: Home) -> None:
        self.since = 0.0
        """When it was last of use."""
        self._home = home
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._poll = select.poll()
        self._taker: Taker | None = None
        self._kept = _KEPT_SECONDS
        self._is_over = False
        self._forget_response()

    def _forget_response(self) -> None:
        self._status = 0
        self._size = 0
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._has_begun = False
        self._is_whole = False
        self._is_broken = False
        self._keeps = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready."""
        self._transport = transport
        plug: Any = transport.get_extra_info("socket")
        self._poll.register(plug.fileno(), select.POLLIN)
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # so that a server that vanished is noticed
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
        self._home.keep(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits for a response; one without a stated length is whole when the connection ends."""
        self._is_over = True
        self._parser = None
        self._home.forget(self)
        taker = self._let_go()
        if taker is None:
            return
        is_open_ended = b"content-length" not in self._headers and b"transfer-encoding" not in self._headers
        if exc is None and self._status and is_open_ended:
            taker.finish()
            return
        when = "in the middle of its answer" if self._status else "before it answered"
        taker.fail(LinkError("lost", f"'{self._home.name}' closed the connection {when}.", sent=True))

    @property
    def is_alive(self) -> bool:
        """Return whether it has not ended, as far as is known."""
        return not self._is_over and not self._transport.is_closing()

    def is_fit(self, now: float) -> bool:
        """Return whether it can be used once more.

        What was sent is never sent again, so a connection about which there is a doubt is not used: one that waits to be read
        has mostly come to its end, which the loop will tell us only after we have sent.
        """
        return self.is_alive and now - self.since <= self._kept and not self._poll.poll(0)

    def send(self, taker: Taker, data: bytes) -> None:
        """Send a request, whose response goes to the taker."""
        self._taker = taker
        taker.connection = self
        self._transport.write(data)

    def _let_go(self) -> Taker | None:
        taker, self._taker = self._taker, None
        if taker is not None:
            taker.connection = None
        return taker

    def abort(self) -> None:
        """End at once; nobody is told."""
        self._let_go()
        self._is_over = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._taker is None:
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_broken = True
        if not self._status:
            self._size += len(data)
        self._hand_on(self._taker, data)

    def _hand_on(self, taker: Taker, data: bytes) -> None:
        if self._status and not self._has_begun:
            self._has_begun = True
            taker.begin(self._status, self._headers)
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                if self._taker is taker:
                    taker.take(piece)
        if self._taker is not taker:
            return  # it wants no more
        if self._is_whole:
            self._end(taker)
        elif self._is_broken:
            self._refuse(taker, "with something that is no HTTP", "" if self._has_begun else data[:TEXT].decode("utf-8", "replace"))
        elif self._size > _HEAD_BYTES:
            self._refuse(taker, "with too long a head", "")

    def _end(self, taker: Taker) -> None:
        alive = self._headers.get(b"keep-alive")
        if alive is not None and (found := _KEEP_ALIVE.search(alive)):
            self._kept = min(_KEPT_SECONDS, int(found[1]) - _MARGIN_SECONDS)  # before it gives up on us
        self._let_go()
        if self._keeps and not self._is_broken:
            self._forget_response()
            self._home.release(self)
        else:
            self.abort()
        taker.finish()

    def _refuse(self, taker: Taker, what: str, text: str) -> None:
        self.abort()
        taker.fail(LinkError("refused", f"'{self._home.name}' answered {what}.", sent=True, text=text))

    def on_message_begin(self) -> None:
        """Begin a response; there is one to each request."""
        self._is_broken = self._is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes after the body is dropped."""
        if self._status:
            self._size += len(name) + len(value)
            return
        name = name.lower()
        before = self._headers.get(name)
        self._headers[name] = value if before is None else b"%b, %b" % (before, value)

    def on_headers_complete(self) -> None:
        """Take the status; those that only say that another will follow are skipped."""
        status = self._parser.get_status_code()
        if status < _OK:
            self._headers = {}
        elif not self._is_whole:
            self._status = status
            self._size = 0

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; that of a response which nobody asked for is dropped."""
        if not self._is_whole:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Take note that the response is whole."""
        if self._status:
            self._is_whole = True
            self._keeps = self._parser.should_keep_alive()
