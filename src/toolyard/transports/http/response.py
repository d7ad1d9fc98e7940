"""A response that is still open: plain JSON if the answer comes quickly and in silence, a stream of events otherwise.

Its head is held back until the answer, the first message or a while. Nothing is started for a quick call under our own server.
"""

import asyncio
import time
from itertools import takewhile
from typing import Any, Final, Protocol

from toolyard.config.settings import Serving
from toolyard.server.request import encode_log
from toolyard.transports.http.asgi import JSON, PLAIN, STREAM, Receive, Send, respond, wait_until_gone
from toolyard.wire.sse import KEEP_ALIVE, encode_event

__all__ = ["GAP", "Response", "StreamTimer"]


class Held(Protocol):
    """What waits for its answer, and goes on without it when the time is up."""

    def start_stream(self) -> None:
        """Wait no longer."""
        ...


class StreamTimer:
    """Tells responses that waited for so many seconds to wait no longer."""

    def __init__(self, seconds: float) -> None:
        self.waiting: dict[Held, float] = {}
        """Those that wait and until when; whoever has his answer leaves."""
        self._seconds = seconds
        self._is_looking = False

    def hold(self, held: Held) -> None:
        """Let it wait."""
        self.waiting[held] = time.monotonic() + self._seconds
        if not self._is_looking:
            self._look_in(self._seconds)

    def _look_in(self, seconds: float) -> None:
        self._is_looking = True
        asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._is_looking = False
        waiting, now = self.waiting, time.monotonic()
        for held in list(takewhile(lambda held: waiting[held] <= now, waiting)):
            del waiting[held]
            held.start_stream()
        if waiting:
            self._look_in(next(iter(waiting.values())) - now)


GAP: Final = "Messages are missing here: more came than are kept for a client that does not read."
_QUICK: Final = 0.05


class Response:
    """One response to one request."""

    is_gone = False
    """Whether the client went away before the answer."""
    log_level: int | None = None
    """From which level on the client wants to be told."""
    _ended = False
    _size = 0
    _dropped = 0
    _wake: asyncio.Event | None = None
    _pump: asyncio.Task[None] | None = None
    _watch: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _task: asyncio.Task[Any] | None = None

    def __init__(self, send: Send, receive: Receive, serving: Serving, *, patience: StreamTimer, streams: bool) -> None:
        self._send = send
        self._receive = receive
        self._serving = serving
        self._patience = patience
        self._streams = streams
        self._events: list[bytes] = []

    def watch(self) -> None:
        """Cancel the work that goes on in this task if the client goes away."""
        own: Any = self._send
        if hasattr(own, "on_gone"):  # our own server says so itself
            self._task = own.task
            own.on_gone = self._gone
            if self._streams:
                self._patience.hold(self)
        else:
            self._task = asyncio.current_task()
            self._timer = asyncio.get_running_loop().call_later(_QUICK, self._be_slow)

    def notify(self, message: bytes) -> None:
        """Send a message before the answer: from now on this is a stream."""
        if self._ended:
            return
        if self._size + len(message) > self._serving.message_bytes:
            self._dropped += 1  # nobody reads, or too much is said at once; whoever reads nothing at all is found by the server
        else:
            self._size += len(message)
            self._events.append(encode_event(message))
        self.start_stream()

    def finish_whole(self, message: bytes) -> bool:
        """Send a good answer at once, if it can be: nothing came before it, and our own server takes it in one piece."""
        whole = getattr(self._send, "whole", None)
        if self._pump is not None or whole is None:
            return False
        self._ended = True
        self._patience.waiting.pop(self, None)
        whole(200, message, PLAIN)
        return True

    async def finish(self, message: bytes, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Send the answer, and end."""
        self._ended = True
        self._stop_watching()
        if self._pump is None:
            await respond(self._send, status, message, (JSON, *headers) if headers else PLAIN)
            return
        self._tell_dropped()
        self._events.append(encode_event(message))
        self._awake()
        await self._pump

    def drop(self) -> None:
        """End without an answer: nobody wants it any more."""
        self._ended = True
        if self.is_gone and self._task is not None:
            self._task.uncancel()  # it was our doing, and the task of another server may have other work
        self._stop_watching()
        if self._pump is not None:
            self._pump.cancel()

    def _stop_watching(self) -> None:
        self._patience.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def _be_slow(self) -> None:
        self._watch = asyncio.ensure_future(self._watch_client())
        if self._streams:
            wait = max(0.0, self._serving.hold_back - _QUICK)
            self._timer = asyncio.get_running_loop().call_later(wait, self.start_stream)

    async def _watch_client(self) -> None:
        await wait_until_gone(self._receive)
        self._gone()

    def _gone(self) -> None:
        if not self._ended:
            self._ended = True
            self.is_gone = True
            if self._task is not None:
                self._task.cancel()

    def start_stream(self) -> None:
        """Be a stream from now on."""
        if self._pump is None:
            self._wake = asyncio.Event()
            self._pump = asyncio.ensure_future(self._write())
        self._awake()

    def _tell_dropped(self) -> None:
        """Tell the client how many messages are missing, if it wants to hear of it."""
        dropped, self._dropped = self._dropped, 0
        if dropped and self.log_level is not None:
            told = encode_log("warning", GAP, {"dropped": dropped}, self.log_level)
            if told is not None:
                self._events.append(encode_event(told))

    def _awake(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def _write(self) -> None:
        """Write events as they come, and a sign of life when none does."""
        wake = self._wake
        assert wake is not None  # noqa: S101 - made with the task
        await self._send({"type": "http.response.start", "status": 200, "headers": list(STREAM)})
        while True:
            wake.clear()
            last = self._ended
            self._tell_dropped()
            if self._events:
                body = b"".join(self._events)
                self._events.clear()
                self._size = 0
                await self._send(_part(body, more=not last))
            if last:
                return
            if not self._events and not self._ended:
                try:
                    async with asyncio.timeout(self._serving.keep_alive or None):
                        await wake.wait()
                except TimeoutError:
                    await self._send(_part(KEEP_ALIVE, more=True))


def _part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}
