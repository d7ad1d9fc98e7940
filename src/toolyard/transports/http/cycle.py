"""A cycle: one request and its answer, in the shape that ASGI gives them.

It is both of ASGI's channels at once, and offers those who know it what ASGI makes dear: the body that is there already, an answer
in one piece, and to be told that the client is gone without waiting for it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from toolyard.transports.http.asgi import PLAIN
from toolyard.transports.http.host_check import RefusedError
from toolyard.wire.sse import encode_event

if TYPE_CHECKING:
    from toolyard.transports.http.protocol import Connection

__all__ = ["Cycle", "Head", "alone", "read", "refusal"]


_END: Final = b"\r\n\r\n"
_KEPT: Final = 4096
_ROUNDABOUT: Final = frozenset({b"transfer-encoding", b"expect"})


class Head(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One head: nobody changes what is in it, since the next request may have the same."""

    method: str
    url: bytes
    pairs: list[tuple[bytes, bytes]]
    """The headers as they came, where one may be there twice."""
    headers: dict[bytes, bytes]
    keep_alive: bool
    is_old: bool
    text: bytes = b""
    """The bytes that say it, where they may be known again."""
    size: int = 0
    """How long those are, and the body."""

    def begins(self, data: bytes) -> bool:
        """Return whether these bytes are a whole request that says just the same."""
        return len(data) == self.size and data.startswith(self.text)


def read(parser: Any, url: bytes, pairs: list[tuple[bytes, bytes]], headers: dict[bytes, bytes]) -> Head:
    """Return the head that a parser has read."""
    method = parser.get_method()
    is_old = parser.get_http_version() == "1.0"
    return Head("POST" if method == b"POST" else method.decode("ascii"), url, pairs, headers, parser.should_keep_alive(), is_old)


def alone(head: Head, data: bytes) -> Head | None:
    """Return a head so that it is known again, if these bytes are its request and nothing else."""
    text, end, body = data.partition(_END)
    if len(text) > _KEPT or not _ROUNDABOUT.isdisjoint(head.headers) or head.headers.get(b"content-length", b"0") != b"%d" % len(body):
        return None
    return Head(head.method, head.url, head.pairs, head.headers, head.keep_alive, head.is_old, text + end, len(data))


_GOOD: Final = 200
_log = logging.getLogger(__name__)
_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Cycle:
    """One request, until it is answered."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_gone",
        "_head",
        "_is_over",
        "_started",
        "body",
        "headers",
        "keep_alive",
        "method",
        "on_gone",
        "pairs",
        "task",
    )

    root = ""

    def __init__(self, connection: "Connection", head: Head, body: bytes) -> None:
        self.method = head.method
        self.pairs = head.pairs
        self.headers = head.headers
        self.task: asyncio.Task[Any] | None = None
        """The one that works on it."""
        self.body = body
        self.keep_alive = head.keep_alive
        self.on_gone: Callable[[], object] | None = None
        """Called when the client goes away before its answer."""
        self._connection = connection
        self._head = head
        self._started = False
        self._chunked = False
        self._is_over = False
        self._gone: asyncio.Future[None] | None = None

    @property
    def scheme(self) -> str:
        """Return which of the two is spoken."""
        return self._connection.house.scheme

    @property
    def path(self) -> str:
        """Return the path that is asked for.

        Raises:
            RefusedError: There is none, because the address makes no sense.
        """
        url = self._head.url
        if url == b"/mcp":  # what nearly all ask for
            return "/mcp"
        if not url.startswith(b"/"):  # the whole address, as it is asked of a proxy
            try:
                url = urlsplit(url).path
            except ValueError:
                raise RefusedError(400, "The request is for no address.") from None
        path = url.partition(b"?")[0].decode("latin-1")
        return unquote(path) if "%" in path else path

    @property
    def query(self) -> bytes:
        """Return what comes after the path."""
        return self._head.url.partition(b"?")[2]

    async def run(self) -> None:
        """Let the application answer."""
        try:
            await self._connection.house.app.respond(self, self.receive, self)
        except Exception:  # noqa: BLE001 - a defect of ours must not end the connection without a word
            _log.exception("request_failed method=%s", self.method)
        finally:
            self.fail()

    async def receive(self) -> dict[str, Any]:
        """Wait until the client is gone or answered; the body was there before."""
        if not self._is_over and not self._connection.is_lost:
            self._gone = self._gone or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    def whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send an answer in one piece."""
        if not self._connection.is_lost and not self._is_over:
            self._started = True
            head = self._make_head(status, headers)
            length = b"content-length: %d\r\n\r\n" % len(body)
            self._connection.write(b"".join((head, length, b"" if self.method == "HEAD" else body)))
            self.end()

    async def __call__(self, event: dict[str, Any]) -> None:
        """Send the next part of a stream: its head at once, since its first event may be long in coming."""
        if self._connection.is_lost or self._is_over:
            return
        if event["type"] == "http.response.start":
            self._started = True
            self._chunked = not self._head.is_old
            self.keep_alive = self.keep_alive and self._chunked
            head = self._make_head(event["status"], event["headers"])
            self._connection.write(head + (b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"))
            return
        more: bool = event.get("more_body", False)
        if self.method != "HEAD":
            self._connection.write(self._piece(event.get("body", b""), more=more))
        if not more:
            self.end()
        else:
            await self._connection.wait_for_room()

    def end(self) -> None:
        """Be over: whoever waits for the client need not any more, and the connection goes on."""
        if not self._is_over:
            self._is_over = True
            self.on_gone = None
            self.lose()
            self._connection.finish(self)

    def fail(self) -> None:
        """Answer in the place of an application that did not."""
        if not self._is_over and not self._connection.is_lost:
            self.keep_alive = False
            if not self._started:
                self._connection.write(refusal(500, "The server could not answer; the reason is in its log."))
            self.end()

    def give_up(self, answer: bytes) -> None:
        """Answer in the place of a call that does not end; what comes of it later is told to nobody."""
        if not self._started:
            self.whole(_GOOD, answer, PLAIN)
        elif not self._is_over:
            self._connection.write(self._piece(encode_event(answer), more=False))
            self.end()

    def lose(self) -> None:
        """Tell whoever waits for the client to go."""
        if self.on_gone is not None:
            self.on_gone()
            self.on_gone = None
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _piece(self, body: bytes, *, more: bool) -> bytes:
        if not self._chunked:
            return body
        chunk = b"".join((b"%x\r\n" % len(body), body, b"\r\n")) if body else b""
        return chunk if more else chunk + b"0\r\n\r\n"

    def _make_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        if status == _GOOD and self.keep_alive and headers is PLAIN:  # the everyday case
            return b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\n" % _date.line()
        lines = [_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, _date.line()]
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"connection" and value == b"close":
                self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join(lines)


class _Date:
    """The header that says when it is, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        """Return it."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = time.strftime("date: %a, %d %b %Y %H:%M:%S GMT\r\n", time.gmtime(now)).encode()
        return self._line


_date: Final = _Date()


def refusal(status: int, sentence: str) -> bytes:
    """Return a whole answer to what no application sees."""
    body = sentence.encode() + b"\n"
    head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return (_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status) + _date.line() + head + body
