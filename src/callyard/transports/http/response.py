"""HTTP responses: what writes one, and a response that is JSON if it comes quickly and alone, and an event stream otherwise.

The head of such a response is delayed until the answer, the first message or a timeout. Under our own server a quick call starts no
task and no timer.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from callyard._internal.timer import SharedTimers
from callyard.config.settings import Serving
from callyard.server.context import RequestContext, encode_log
from callyard.server.methods import answer
from callyard.transports.http.request import Receive, RefusedError, Send
from callyard.wire.messages import Fault, encode_fault
from callyard.wire.sse import KEEP_ALIVE, encode_event

__all__ = [
    "GAP",
    "JSON",
    "JSON_HEADERS",
    "OK",
    "PREFLIGHT",
    "STREAM_HEADERS",
    "AsgiWriter",
    "Header",
    "Response",
    "ResponseWriter",
    "cors_headers",
    "respond_fault",
    "respond_refusal",
]

Header = tuple[bytes, bytes]
OK: Final = 200
JSON: Final = (b"content-type", b"application/json")
JSON_HEADERS: Final = (JSON,)
"""The headers of nearly every response."""
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"POST, GET, DELETE"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-max-age", b"600"),
)
GAP: Final = "Messages are missing here: more came than are kept for a client that does not read."
_EXPOSED: Final = (b"access-control-expose-headers", b"mcp-session-id, www-authenticate")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_QUICK_S: Final = 0.05
_NOT_DELAYED: Final[dict[Any, float]] = {}
"""Shared by responses that are not held back: it stays empty."""


class ResponseWriter(ABC):
    """Writes the response to one request: whole with `respond`, or as an event stream."""

    extra_headers: tuple[Header, ...] = ()
    """Headers for every response, such as those of CORS."""
    requires_stream = False
    """Whether the client takes event streams only, so that a JSON response becomes a stream of one event."""
    task: "asyncio.Task[Any] | None" = None
    """The task that serves the request."""
    status = 0
    """The status of the response; 0 until it begins."""
    size = 0
    """The bytes of the body so far."""

    @abstractmethod
    async def respond(self, status: int, body: bytes = b"", headers: Iterable[Header] = JSON_HEADERS) -> None:
        """Write a whole response."""

    @abstractmethod
    async def start_stream(self) -> None:
        """Write the head of an event stream."""

    @abstractmethod
    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Write a part of the stream, and wait while the client reads too slowly."""

    def admit(self, identity: str | None) -> bool:  # noqa: ARG002 - other servers bound their connections themselves
        """Count the connection for an identity; return False if it has too many."""
        return True

    @abstractmethod
    def watch(self, on_disconnect: Callable[[], object]) -> None:
        """Call a function if the client disconnects before the end of the response."""

    @abstractmethod
    def unwatch(self) -> None:
        """Call it no longer."""

    @abstractmethod
    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects, or has the whole response."""

    def adapt(self, status: int, body: bytes, headers: Iterable[Header]) -> tuple[bytes, tuple[Header, ...]]:
        """Return body and headers of a whole response as `requires_stream` and `extra_headers` say."""
        pairs = tuple(headers)
        if self.requires_stream and status == OK and JSON in pairs:
            body = encode_event(body)
            pairs = (*STREAM_HEADERS, *(pair for pair in pairs if pair != JSON))
        return body, (*pairs, *self.extra_headers)


class AsgiWriter(ResponseWriter):
    """Writes to the client of any ASGI server."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def respond(self, status: int, body: bytes = b"", headers: Iterable[Header] = JSON_HEADERS) -> None:
        """Write a whole response."""
        self.unwatch()
        body, pairs = self.adapt(status, body, headers)
        self.status, self.size = status, len(body)
        length = () if STREAM_HEADERS[0] in pairs else ((b"content-length", b"%d" % len(body)),)
        await self._send({"type": "http.response.start", "status": status, "headers": [*pairs, *length]})
        await self._send({"type": "http.response.body", "body": body})

    async def start_stream(self) -> None:
        """Write the head of an event stream."""
        self.status = OK
        await self._send({"type": "http.response.start", "status": OK, "headers": [*STREAM_HEADERS, *self.extra_headers]})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Write a part of the stream."""
        if last:
            self.unwatch()
        self.size += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    def watch(self, on_disconnect: Callable[[], object]) -> None:
        """Call a function on disconnect; ASGI needs a task for that, which a quick call does not start."""

        def start() -> None:
            self._watcher = asyncio.ensure_future(self._watch(on_disconnect))

        self._timer = asyncio.get_running_loop().call_later(_QUICK_S, start)

    async def _watch(self, on_disconnect: Callable[[], object]) -> None:
        await self.wait_for_disconnect()
        on_disconnect()

    def unwatch(self) -> None:
        """Call it no longer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    async def wait_for_disconnect(self) -> None:
        """Wait until the client disconnects, or has the whole response."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def cors_headers(origin: bytes) -> tuple[Header, ...]:
    """Return the headers that let a page of an allowed origin read the response."""
    return ((b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED)


async def respond_refusal(writer: ResponseWriter, refused: RefusedError) -> None:
    """Write a refusal as plain text."""
    await writer.respond(refused.status, refused.message.encode() + b"\n", (_TEXT, *refused.headers))


async def respond_fault(writer: ResponseWriter, status: int, fault: Fault, request_id: int | str | None = None) -> None:
    """Write a fault as a JSON-RPC error."""
    await writer.respond(status, encode_fault(request_id, fault))


class Response:
    """One response to one MCP request."""

    is_gone = False
    """Whether the client disconnected before the answer."""
    log_level: int | None = None
    """The lowest level of log messages that the client gets."""
    _ended = False
    _size = 0
    _dropped = 0
    _wake: asyncio.Event | None = None
    _pump: asyncio.Task[None] | None = None

    def __init__(self, writer: ResponseWriter, serving: Serving, timers: "SharedTimers[Response]", *, streams: bool) -> None:
        self._writer = writer
        self._serving = serving
        self._timers = timers
        self._delayed: dict[Response, float] = _NOT_DELAYED
        self._streams = streams
        self._events: list[bytes] = []

    async def serve(self, context: RequestContext, method: str, params: Any) -> None:
        """Serve a request and write its answer; if the client disconnects, the request is cancelled."""
        self.watch()
        try:
            message = await answer(context, context.id, method, params)
        except asyncio.CancelledError:
            self.drop()
            if self.is_gone:
                return
            raise
        # The handshake era has its faults in the body only.
        fault = context.fault
        await self.finish(message, OK if fault is None or not context.encoder.version.modern else fault.http)

    def watch(self) -> None:
        """Cancel the task that serves the request if the client disconnects."""
        self._writer.watch(self._disconnected)
        if self._streams:
            self._delayed = self._timers.start(self, self._serving.hold_back)

    def notify(self, message: bytes) -> None:
        """Send a message ahead of the answer, which makes the response a stream."""
        if self._ended:
            return
        if self._size + len(message) > self._serving.message_bytes:
            self._dropped += 1  # the client reads too slowly; the server closes the connection of one that reads nothing
        else:
            self._size += len(message)
            self._events.append(encode_event(message))
        self.start_stream()

    def finish(self, message: bytes, status: int = OK) -> Awaitable[None]:
        """Write the answer, and end; the caller waits until it is written."""
        self._ended = True
        self._delayed.pop(self, None)
        if self._pump is None:
            return self._writer.respond(status, message)
        self._report_dropped()
        self._events.append(encode_event(message))
        self._wake_pump()
        return self._pump

    def drop(self) -> None:
        """End without an answer."""
        self._ended = True
        if self.is_gone and self._writer.task is not None:
            self._writer.task.uncancel()  # the cancellation was ours, and the task of another server may have more to do
        self._delayed.pop(self, None)
        self._writer.unwatch()
        if self._pump is not None:
            self._pump.cancel()

    def _disconnected(self) -> None:
        if not self._ended:
            self._ended = True
            self.is_gone = True
            if self._writer.task is not None:
                self._writer.task.cancel()

    def start_stream(self) -> None:
        """Make the response an event stream."""
        if self._pump is None:
            self._wake = asyncio.Event()
            self._pump = asyncio.ensure_future(self._write(self._wake))
        self._wake_pump()

    def _report_dropped(self) -> None:
        """Add a log message about the dropped messages, if the client gets warnings."""
        dropped, self._dropped = self._dropped, 0
        if dropped and self.log_level is not None:
            message = encode_log("warning", GAP, {"dropped": dropped}, self.log_level)
            if message is not None:
                self._events.append(encode_event(message))

    def _wake_pump(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def _write(self, wake: asyncio.Event) -> None:
        """Write events as they come, and keep-alive comments in between."""
        await self._writer.start_stream()
        while True:
            wake.clear()
            last = self._ended
            self._report_dropped()
            if self._events:
                body = b"".join(self._events)
                self._events.clear()
                self._size = 0
                await self._writer.write(body, last=last)
            if last:
                return
            if not self._events and not self._ended:
                try:
                    async with asyncio.timeout(self._serving.keep_alive or None):
                        await wake.wait()
                except TimeoutError:
                    await self._writer.write(KEEP_ALIVE)
