"""Our HTTP/1.1 server side: a connection from bytes to requests and back, one request at a time.

The application gets a request when its body is complete, because none of ours is of use before. The parser is
httptools; our own are the limits, the timeouts and a response that is written in one piece.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import httptools
import msgspec

from callyard._internal.logfmt import log_exception
from callyard.transports.http.request import MAX_HEADERS, Request, is_compressed
from callyard.transports.http.response import JSON_HEADERS, OK, STREAM_HEADERS, Header, ResponseWriter
from callyard.wire.sse import encode_event

if TYPE_CHECKING:
    from callyard.transports.http.server import ServerState  # imports this module

__all__ = ["Connection", "ConnectionWriter"]


_HEAD_BYTES: Final = 64 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_REUSABLE_BYTES: Final = 4096
_NOT_REUSABLE: Final = frozenset({b"transfer-encoding", b"expect"})
_MAX_QUEUED: Final = 16
_TURN_BYTES: Final = 64 * 1024
_LENGTH_DIGITS: Final = 18
_DROPPED_BYTES: Final = 16 * 1024 * 1024
_LINGER_S: Final = 1.0
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_log = logging.getLogger(__name__)


class _Head(msgspec.Struct, kw_only=True):
    """A parsed head, which the next request may share."""

    request: Request
    """The request without its body; it is copied, never changed."""
    keep_alive: bool
    is_http_1_0: bool
    data: bytes = b""
    request_size: int = 0

    def remember(self, data: bytes) -> None:
        """Make the head reusable, if the data are exactly its request; without, each call took 12 µs more, of 55.

        Skipping the parser is safe: the next data are compared byte by byte, the end of the head and the length of the
        body included. The same bytes parse to the same head, and the rest is the body. Chunked bodies and `Expect` are
        left to the parser.
        """
        text, end, body = data.partition(_HEAD_END)
        headers = self.request.headers
        is_plain = len(text) <= _REUSABLE_BYTES and _NOT_REUSABLE.isdisjoint(headers)
        if is_plain and headers.get(b"content-length", b"0") == b"%d" % len(body):
            self.data = text + end
            self.request_size = len(data)


class ConnectionWriter(ResponseWriter):
    """Writes the response to one request on our own connection."""

    # Defaults are on the class, because setting each for every request takes measurable time.
    _on_disconnect: Callable[[], object] | None = None
    _chunked = False
    _is_over = False
    _gone: "asyncio.Future[None] | None" = None

    def __init__(self, connection: "Connection", head: _Head, body: bytes) -> None:
        self.keep_alive = head.keep_alive
        self.request = msgspec.structs.replace(head.request, body=body)
        self._connection = connection
        self._is_http_1_0 = head.is_http_1_0

    async def run(self) -> None:
        """Let the application serve the request."""
        try:
            await self._connection.server.app.respond(self.request, self)
        except Exception:  # noqa: BLE001 - a defect of ours must not end the connection without a response
            log_exception(_log, "request_failed method=%s", self.request.method)
        finally:
            self.fail()

    async def respond(self, status: int, body: bytes = b"", headers: Iterable[Header] = JSON_HEADERS) -> None:
        """Write a whole response in one piece."""
        if self._connection.is_lost or self._is_over:
            return
        if self.extra_headers or self.requires_stream:
            body, headers = self.adapt(status, body, headers)
        self.status, self.size = status, len(body)
        head = b"%bcontent-length: %d\r\n\r\n" % (self._encode_head(status, headers), len(body))
        self._connection.write(head if self.request.method == "HEAD" else head + body)
        self.end()

    async def start_stream(self) -> None:
        """Write the head of an event stream, ahead of the first event, which may take long."""
        if self._connection.is_lost or self._is_over:
            return
        self.status = OK
        self._chunked = not self._is_http_1_0
        self.keep_alive = self.keep_alive and self._chunked
        head = self._encode_head(OK, (*STREAM_HEADERS, *self.extra_headers))
        self._connection.write(head + (b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"))

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Write a part of the stream, and wait while the client reads too slowly."""
        if self._connection.is_lost or self._is_over:
            return
        self.size += len(data)
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data += b"0\r\n\r\n" if last else b""
        if self.request.method != "HEAD":
            self._connection.write(data)
        if last:
            self.end()
        else:
            await self._connection.wait_for_room()

    def admit(self, identity: str | None) -> bool:
        """Count the connection for an identity; return False if it has too many."""
        return self._connection.server.connections.admit(self._connection, identity)

    def watch(self, on_disconnect: Callable[[], object]) -> None:
        """Call a function if the client disconnects before the end of the response."""
        self._on_disconnect = on_disconnect

    def unwatch(self) -> None:
        """Call it no longer."""
        self._on_disconnect = None

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects, or has the whole response."""
        if not self._is_over and not self._connection.is_lost:
            self._gone = self._gone or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._gone)

    def end(self) -> None:
        """End the response, and let the connection go on."""
        if not self._is_over:
            self._is_over = True
            self._on_disconnect = None  # the client is still there
            self.disconnect()
            self._connection.finish(self)

    def fail(self) -> None:
        """Answer for an application that did not."""
        if not self._is_over and not self._connection.is_lost:
            self.keep_alive = False
            if not self.status:
                self._connection.write(_encode_refusal(500, "The server could not answer; the reason is in its log."))
            self.end()

    async def give_up(self, answer: bytes) -> None:
        """Answer for a call that does not end; its outcome is dropped later."""
        await (self.write(encode_event(answer), last=True) if self.status else self.respond(OK, answer))

    def hang_up(self) -> None:
        """Close the connection; the request ends as if the client had left."""
        self._connection.abort()

    def disconnect(self) -> None:
        """Report that the client is gone, or needs nothing more."""
        if self._on_disconnect is not None:
            self._on_disconnect()
            self.unwatch()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _encode_head(self, status: int, headers: Iterable[Header]) -> bytes:
        date = _date_line(int(time.time()))
        if status == OK and self.keep_alive and headers is JSON_HEADERS:  # nearly every response
            return b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\n" % date
        lines = [_STATUS_LINES[status], date]
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"connection" and value == b"close":
                self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join(lines)


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return time.strftime("date: %a, %d %b %Y %H:%M:%S GMT\r\n", time.gmtime(second)).encode()


def _encode_refusal(status: int, sentence: str) -> bytes:
    """Return a whole response to a request that the application does not get."""
    body = sentence.encode() + b"\n"
    retry = b"retry-after: 1\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else b""
    head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return _STATUS_LINES[status] + _date_line(int(time.time())) + retry + head + body


def _path_of(url: bytes) -> str:
    """Return the path of a request's URL; empty if the URL is invalid."""
    if not url.startswith(b"/"):  # an absolute URL, as proxies get it
        try:
            url = urlsplit(url).path
        except ValueError:
            return ""
    path = url.partition(b"?")[0].decode("latin-1")
    return unquote(path) if "%" in path else path


def _find_fault(version: str, url: bytes, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
    """Return the status and sentence for an ambiguous head; None if every parser reads it the same way."""
    if version not in {"1.0", "1.1"}:
        return 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here."
    if not url.startswith(b"/") and not _names_host(url, headers.get(b"host", b"")):
        return 400, "The URL of the request names another host than its header 'Host'."
    coding = headers.get(b"transfer-encoding", b"chunked").strip().lower()
    if coding != b"chunked" or (version == "1.0" and b"transfer-encoding" in headers):
        return 501, "The only transfer encoding is 'chunked', in HTTP/1.1."
    if headers.get(b"expect", b"100-continue").strip().lower() != b"100-continue":
        return 417, "The only expectation that can be met is '100-continue'."
    if is_compressed(headers):
        return 415, "The body must not be compressed: leave 'Content-Encoding' out."
    return None


def _names_host(url: bytes, host: bytes) -> bool:
    """Return whether an absolute URL, as proxies get it, is of the host in the header; other forms name no host."""
    authority = url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
    return b"://" not in url or authority.lower() == host.strip().lower()


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: "ServerState") -> None:
        self.server = server
        self.is_lost = False
        self.is_admitted = False
        self.identity: str | None = None
        """The identity of the last request, if it had credentials."""
        self.response: ConnectionWriter | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._queue: deque[ConnectionWriter] = deque()
        self._pairs: list[Header] = []
        self._headers: dict[bytes, bytes] = {}
        self._head: _Head | None = None
        """The head of the last request, if there was one in the last data."""
        self._url = b""
        self._line = b""
        """The last line of an incomplete head, which is not parsed yet."""
        self._body: list[bytes] = []
        self.buffered = 0
        """Bytes of bodies that are incomplete or queued."""
        self._size = 0
        self._framing = 0
        """Bytes of the current body besides its content: sizes of chunks, and trailers."""
        self._unproductive = 0
        """The same, since the last byte of content."""
        self._since = 0.0
        self._state = "idle"
        self._is_refused = False
        self._unread_since = 0.0
        self._room: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._transport = transport
        self._expect_head()
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's own interface
        """Report the disconnect to the response."""
        self.is_lost = True
        self.server.connections.remove(self)
        self._queue.clear()
        self.resume_writing()
        self._release(self.buffered)
        if self.response is not None:
            self.response.disconnect()
        self._parser = None

    def data_received(self, data: bytes) -> None:
        """Take data from the client."""
        if self._is_refused:
            self._size += len(data)
            if self._size > _DROPPED_BYTES:
                self._transport.abort()
            return
        head, self._head = self._head, None
        if self._state != "idle":
            self._parse(data)
        elif head and self.response is None and len(data) == head.request_size and data.startswith(head.data):
            self._head = head
            self._start(ConnectionWriter(self, head, data[len(head.data) :]))
        else:
            self._expect_head()
            self._parse(data)
            if self._head is not None:
                self._head.remember(data)

    def _parse(self, data: bytes) -> None:
        if self._state == "head":
            data = self._strip_upgrade(data)
        in_body, size = self._state == "body", self._size
        self._framing = max(self._framing, 0)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "Only HTTP is spoken here.")
        except httptools.HttpParserError:
            self._refuse(400, "This is no HTTP request.")
        if in_body and self._state == "body" and self._framing >= 0:
            self._count_framing(len(data), self._size - size)

    def _strip_upgrade(self, data: bytes) -> bytes:
        """Return the complete lines of a head, where `Upgrade` is renamed, because httptools stops parsing there."""
        head, end, body = (self._line + data).partition(_HEAD_END)
        self._size += len(head) - len(self._line)
        if self._size > _HEAD_BYTES:
            self._refuse(431, "The head of the request is too long.")
            return b""
        complete = len(head)
        if not end:
            complete = head.rfind(b"\r\n") if b"\r\n" in head else len(head.rstrip(b"\r"))
        self._line = head[complete:]
        return _UPGRADE.sub(b"\r\nx-upgrade:", head[:complete]) + end + body

    def _count_framing(self, size: int, content: int) -> None:
        """Bound the bytes of a body besides its content: the parser collects trailers, in quadratic time."""
        self._framing += size - content
        self._unproductive = 0 if content else self._unproductive + size
        if self._unproductive > _HEAD_BYTES or self._framing > self._size + _HEAD_BYTES:
            self._refuse(431, "The trailers or the sizes of the chunks are too long.")
        elif size >= _TURN_BYTES and size > content:
            # Event loops read on while there is more, and the parser calls back for each chunk: let others have their
            # turn.
            self._transport.pause_reading()
            self.server.loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if not self.is_lost and self._room is None and len(self._queue) < _MAX_QUEUED:
            self._transport.resume_reading()

    def on_message_begin(self) -> None:
        """Begin a request, which may be in the same data as the end of the one before."""
        self._pairs = []
        self._url = b""
        self._body = []
        if self._state != "head":
            self._state = "head"
            self._size = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped, because every check of headers comes before them."""
        if self._state == "head":
            self._pairs.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Check the head before the body comes."""
        self._state = "body"
        self._size = 0
        self._framing = -1  # the data that hold the head are not counted
        self._unproductive = 0
        self._headers = headers = dict(self._pairs)
        length = headers.get(b"content-length", b"0")
        fault = _find_fault(self._parser.get_http_version(), self._url, headers)
        if len(self._pairs) > MAX_HEADERS:
            self._refuse(431, f"A request may have {MAX_HEADERS} headers.")
        elif fault is not None:
            self._refuse(*fault)
        elif len(length) > _LENGTH_DIGITS or int(length or b"0") > self.server.serving.message_bytes:
            self._refuse_length()
        elif b"expect" in headers and self.response is None and not self._is_refused:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        server = self.server
        self._size += len(body)
        if self._size > server.serving.message_bytes:
            self._refuse_length()
        elif not self._is_refused:
            self._body.append(body)
            self.buffered += len(body)
            server.buffered += len(body)
            if server.buffered > server.max_buffered:
                server.make_room()

    def refuse_body(self) -> None:
        """End the connection, because all together send more than fits, and this one has sent most."""
        self._refuse(503, "Too much is being received already.")
        self._release(self.buffered)

    def _release(self, size: int) -> None:
        self.buffered -= size
        self.server.buffered -= size

    def on_message_complete(self) -> None:
        """Serve the request, or queue it until the one before is answered."""
        self._state = "idle"
        self._since = self.server.loop.time()
        if self._is_refused:
            return
        parser = self._parser
        request = Request(
            method=parser.get_method().decode("ascii"),
            path=_path_of(self._url),
            pairs=self._pairs,
            headers=self._headers,
            query=self._url.partition(b"?")[2],
            scheme=self.server.scheme,
        )
        is_http_1_0 = parser.get_http_version() == "1.0"
        self._head = _Head(request=request, keep_alive=parser.should_keep_alive(), is_http_1_0=is_http_1_0)
        response = ConnectionWriter(self, self._head, b"".join(self._body))
        self._body = []
        if self.response is None:
            self._start(response)
            return
        self._queue.append(response)
        if len(self._queue) == _MAX_QUEUED:
            self._transport.pause_reading()

    def finish(self, response: ConnectionWriter) -> None:
        """Go on after a response: with the next request, or to the end of the connection."""
        self.response = None
        if self.is_lost:
            return
        if not response.keep_alive or (self.server.is_closing and not self._queue):
            self._transport.close()
        elif self._queue:
            if self._room is None:
                self._start_next()
        else:
            self._since = self.server.loop.time()

    def write(self, data: bytes) -> None:
        """Send data to the client."""
        if not self.is_lost:
            self._transport.write(data)

    async def wait_for_room(self) -> None:
        """Wait until the client has read what was sent."""
        if self._room is not None:
            await asyncio.shield(self._room)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        if self._room is None:
            self._room = self.server.loop.create_future()
            self._transport.pause_reading()  # a client that does not read gets no more served
            self._unread_since = self.server.loop.time()

    def resume_writing(self) -> None:
        """Go on, because the client has read."""
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)
            if self.response is None and self._queue:
                self._start_next()
            self._resume_reading()

    def _start_next(self) -> None:
        self._start(self._queue.popleft())
        self._resume_reading()

    def close_when_done(self) -> None:
        """Close after the responses to the requests that came, or at once if there are none."""
        waiting = self._queue[-1] if self._queue else self.response
        if waiting is not None:
            waiting.keep_alive = False
        elif self.is_receiving:
            self._refuse(503, "The server is closing.")
        else:
            self._transport.close()

    @property
    def is_receiving(self) -> bool:
        """Return whether a part of a request has come."""
        return self._state == "body" or (self._state == "head" and bool(self._size))

    def turn_away(self) -> None:
        """Answer that there are too many connections, and close."""
        self._refuse(503, "There are too many connections.")

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def _start(self, response: ConnectionWriter) -> None:
        self.response = response
        if not self.is_admitted and self.server.app.is_open:
            self.server.connections.admit(self, None)
        if self.server.is_closing and not self._queue:
            response.keep_alive = False
        if self.buffered:
            self._release(min(self.buffered, len(response.request.body or b"")))
        response.task = self.server.create_task(response.run())

    def _refuse_length(self) -> None:
        self._refuse(413, f"The message has more than {self.server.serving.message_bytes} bytes.")

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer a request that the application does not get, and close once the client had time to read that."""
        if self._is_refused:
            return
        self._is_refused = True
        self._size = 0
        if self.response is not None:
            self._queue.clear()
            self.response.keep_alive = False  # the request before is answered, and then the connection closes
            return
        self._transport.write(_encode_refusal(status, sentence))
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self.server.loop.call_later(_LINGER_S, self._transport.close)
        else:
            self._transport.close()

    def _expect_head(self) -> None:
        self._since = self.server.loop.time()
        self._state = "head"
        self._size = 0

    def check_progress(self, now: float) -> None:
        """Close if the client is too slow."""
        if self._room is not None and now - self._unread_since > self.server.seconds["unread"]:
            self._transport.abort()
        is_busy = self.response is not None and self._state == "idle"
        if is_busy or now - self._since < self.server.seconds[self._state]:
            return
        if self.is_receiving:
            self._refuse(408, "The request did not come whole in time.")
        else:
            self._transport.close()
