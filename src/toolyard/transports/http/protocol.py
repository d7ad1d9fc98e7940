"""Deadlines that the HTTP server itself does not have: for a request that comes too slowly, and for a client that does not read."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["Protocol", "protocol_of"]

_BODY_SECONDS: Final = 60.0
_UNREAD_SECONDS: Final = 30.0
_HEAD_BYTES: Final = 64 * 1024
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Protocol(HttpToolsProtocol):
    """One connection, which is dropped when it dawdles.

    One timer at a time looks at it now and then, because one for every request would cost more than it is worth.
    """

    head_seconds = 10.0
    """Seconds that the head of a request may take; 0 is for ever."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._begun: float | None = None
        self._has_head = False
        self._head_bytes = 0
        self._look: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        for timer in (self._look, self._unread):
            if timer is not None:
                timer.cancel()
        self._look = self._unread = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, as long as the head of a request is no longer than it may be."""
        super().data_received(data)
        if self._begun is not None and not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self.transport.write(_TOO_LONG)
                self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a request."""
        if self._begun is None:
            self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that the head is there."""
        self._has_head = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request is there."""
        self._begun = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        if self._unread is None:
            self._unread = self.loop.call_later(_UNREAD_SECONDS, self._abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Wait for the client no longer."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _begin(self) -> None:
        self._begun = self.loop.time()
        self._has_head = False
        self._head_bytes = 0
        if self._look is None and self.head_seconds:
            self._look = self.loop.call_later(self.head_seconds, self._see)

    def _see(self) -> None:
        """Drop the connection if its request is late; look again later if it is still coming."""
        self._look = None
        if self._begun is None:
            return
        late = self._begun + (_BODY_SECONDS if self._has_head else self.head_seconds) - self.loop.time()
        if late <= 0:
            self.transport.close()
        else:
            self._look = self.loop.call_later(late, self._see)

    def _abort(self) -> None:
        self._unread = None
        self.transport.abort()


def protocol_of(head_seconds: float) -> type[Protocol]:
    """Return the protocol of connections whose request heads may take so many seconds."""
    return type("Protocol", (Protocol,), {"head_seconds": head_seconds})
