"""A cycle: one request and its answer, in the shape that ASGI gives them.

It is both of ASGI's channels at once, and offers those who know it what ASGI makes dear: the body that is there already, an answer
in one piece, and to be told that the client is gone without waiting for it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from toolyard.transports.http.connection import Connection

__all__ = ["Cycle", "refusal"]

_VERSION: Final = {"version": "3.0", "spec_version": "2.3"}
_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_BODILESS: Final = frozenset({204, 304})


class Cycle:
    """One request, until it is answered."""

    __slots__ = (
        "_chunked", "_connection", "_gone", "_head", "_headers", "_is_head", "_is_over", "_url", "body", "keep_alive", "method",
        "on_gone",
    )  # fmt: skip

    def __init__(
        self, connection: "Connection", method: bytes, url: bytes, headers: list[tuple[bytes, bytes]], body: bytes, *, keep_alive: bool
    ) -> None:
        self.method = method.decode("ascii")
        self.keep_alive = keep_alive
        self._connection = connection
        self._url = url
        self._headers = headers
        self.body: bytes | None = body
        self.on_gone: Callable[[], object] | None = None
        """Called when the client goes away before its answer."""
        self._head: bytes | None = None
        self._chunked = False
        self._is_head = method == b"HEAD"
        self._is_over = False
        self._gone: asyncio.Future[None] | None = None

    @property
    def scope(self) -> dict[str, Any]:
        """Return the request as ASGI describes it."""
        raw_path, _, query = self._url.partition(b"?")
        path = raw_path.decode("latin-1")
        return {
            "type": "http",
            "asgi": _VERSION,
            "http_version": "1.1",
            "method": self.method,
            "scheme": self._connection.scheme,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
        }

    async def receive(self) -> dict[str, Any]:
        """Return the body, and then wait until the client is gone or answered."""
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._is_over and not self._connection.is_lost:
            self._gone = self._gone or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    def whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send an answer in one piece."""
        if not self._connection.is_lost and not self._is_over:
            head = self._make_head(status, headers)
            self._connection.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), b"" if self._is_head else body))
            self.end()

    async def __call__(self, event: dict[str, Any]) -> None:
        """Send the next part of the answer: its head goes out with its first bytes."""
        if self._connection.is_lost or self._is_over:
            return
        if event["type"] == "http.response.start":
            self._head = self._make_head(event["status"], event["headers"])
            return
        body: bytes = event.get("body", b"")
        more: bool = event.get("more_body", False)
        if self._head is not None:
            head, self._head = self._head, None
            self._chunked = more
            ending = b"transfer-encoding: chunked\r\n\r\n" if more else b"\r\n"
            self._connection.write(head + ending + (b"" if self._is_head else self._piece(body, more=more)))
        elif not self._is_head:
            self._connection.write(self._piece(body, more=more))
        if not more:
            self.end()
        elif self._connection.is_full:
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
            if self._head is not None or not self._chunked:
                self._connection.write(refusal(500, "The server could not answer; the reason is in its log."))
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
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        return chunk if more else chunk + b"0\r\n\r\n"

    def _make_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
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
