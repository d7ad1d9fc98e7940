"""HTTP responses: JSON if the answer is quick and alone, and an event stream otherwise.

The head of such a response is delayed until the answer, the first message or a timeout. Under our own server a quick
call starts no task and no timer.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from callyard.config.settings import Serving
from callyard.server.context import RequestContext, encode_log
from callyard.server.methods import answer
from callyard.transports.http.request import Receive, RefusedError, Send
from callyard.wire.messages import Fault, encode_fault
from callyard.wire.sse import KEEP_ALIVE, encode_event

__all__ = [
    "GAP",
    "HOLD_BACK_S",
    "JSON",
    "JSON_HEADERS",
    "OK",
    "PREFLIGHT",
    "STREAM_HEADERS",
    "AsgiWriter",
    "EventStream",
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
HOLD_BACK_S: Final = 2.0
"""Seconds that a response is held back for the result before it becomes a stream."""
_EXPOSED: Final = (b"access-control-expose-headers", b"mcp-session-id, www-authenticate")
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_QUICK_S: Final = 0.05


class ResponseWriter(ABC):
    """Writes the response to one request: whole with `respond`, or as an event stream."""

    extra_headers: tuple[Header, ...] = ()
    """Headers for every response, such as those of CORS."""
    requires_stream = False
    """Whether the client takes event streams only, so that a JSON response becomes a stream of one event."""
    task: "asyncio.Task[Any] | None" = None
    status = 0
    size = 0

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

    def hang_up(self) -> None:
        """End the response at once, because its client may no longer read it."""
        if self.task is not None:
            self.task.cancel()

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
        await self._send(
            {"type": "http.response.start", "status": OK, "headers": [*STREAM_HEADERS, *self.extra_headers]}
        )

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Write a part of the stream."""
        if last:
            self.unwatch()
        self.size += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    def watch(self, on_disconnect: Callable[[], object]) -> None:
        """Call a function on disconnect; ASGI needs a task for that, which a quick call does not start."""

        async def watch() -> None:
            await self.wait_for_disconnect()
            on_disconnect()

        def start() -> None:
            self._watcher = asyncio.ensure_future(watch())

        self._timer = asyncio.get_running_loop().call_later(_QUICK_S, start)

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


class EventStream:
    """Writes events as the client reads them, and keep-alive comments in between."""

    def __init__(self, writer: ResponseWriter, *, keep_alive: float, report_gap: Callable[[], bytes] = bytes) -> None:
        self.size = 0
        """The bytes of the messages that are not written yet."""
        self.is_writing = False
        """Whether the client has not read yet what was written last."""
        self.is_over = False
        self._writer = writer
        self._keep_alive = keep_alive
        self._report_gap = report_gap
        self._events: list[bytes] = []
        self.wake = asyncio.Event()

    def push(self, message: bytes, *, kind: str = "message") -> None:
        """Add a message as an event."""
        self._events.append(encode_event(message, kind=kind))
        self.size += len(message)
        self.wake.set()

    def push_gap(self) -> None:
        """Report the messages that were left out since the last report."""
        self._events.append(self._report_gap())

    def end(self) -> None:
        """End the stream after the events that it has."""
        self.is_over = True
        self.wake.set()

    async def run(self) -> None:
        """Write until the stream ends."""
        await self._writer.start_stream()
        while True:
            self.wake.clear()
            self.push_gap()
            body, last = b"".join(self._events), self.is_over
            self._events.clear()
            self.size = 0
            if body or last:
                self.is_writing = True
                await self._writer.write(body, last=last)
                self.is_writing = False
            if last:
                return
            try:
                async with asyncio.timeout(self._keep_alive or None):
                    await self.wake.wait()
            except TimeoutError:
                self._events.append(KEEP_ALIVE)


class Response:
    """One response to one MCP request."""

    is_gone = False
    """Whether the client disconnected before the answer."""
    log_level: int | None = None
    """The lowest level of log messages that the client gets."""
    _ended = False
    _dropped = 0
    _hold: asyncio.TimerHandle | None = None
    _pump: asyncio.Task[None] | None = None

    def __init__(self, writer: ResponseWriter, serving: Serving, *, streams: bool) -> None:
        self.events: EventStream | None = None
        self._writer = writer
        self._serving = serving
        self._streams = streams

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
            self._hold = asyncio.get_running_loop().call_later(HOLD_BACK_S, self.start_stream)

    def notify(self, message: bytes) -> None:
        """Send a message ahead of the answer, which makes the response a stream."""
        if self._ended:
            return
        events = self.start_stream()
        if events.size + len(message) <= self._serving.message_bytes:
            events.push(message)
        else:  # the client reads too slowly; the server closes the connection of one that reads nothing
            self._dropped += 1
            events.wake.set()

    def finish(self, message: bytes, status: int = OK) -> Awaitable[None]:
        """Write the answer, and end; the caller waits until it is written."""
        self._end()
        if self._pump is None or self.events is None:
            return self._writer.respond(status, message)
        self.events.push_gap()
        self.events.push(message)
        self.events.end()
        return self._pump

    def drop(self) -> None:
        """End without an answer."""
        self._end()
        if self.is_gone and self._writer.task is not None:
            # the cancellation was ours, and the task of another server may have more to do
            self._writer.task.uncancel()
        self._writer.unwatch()
        if self._pump is not None:
            self._pump.cancel()

    def _end(self) -> None:
        self._ended = True
        if self._hold is not None:
            self._hold.cancel()

    def _disconnected(self) -> None:
        if not self._ended:
            self._ended = True
            self.is_gone = True
            if self._writer.task is not None:
                self._writer.task.cancel()

    def start_stream(self) -> EventStream:
        """Make the response an event stream, if it is none yet."""
        if self.events is None:
            self.events = EventStream(self._writer, keep_alive=self._serving.keep_alive, report_gap=self._report_gap)
            self._pump = asyncio.ensure_future(self.events.run())
        return self.events

    def _report_gap(self) -> bytes:
        """Return a log message about the dropped messages as an event; empty if the client gets no warnings."""
        dropped, self._dropped = self._dropped, 0
        if not dropped or self.log_level is None:
            return b""
        message = encode_log("warning", GAP, {"dropped": dropped}, self.log_level)
        return b"" if message is None else encode_event(message)
