"""Visits: older clients over HTTP, each with a conversation under an id that it sends along, ended when idle for too long.

MCP calls a visit a session, and so do the words that a client is sent; ours are another thing.
"""

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from itertools import count
from typing import Any, Final, NamedTuple

from toolyard.config.settings import Serving
from toolyard.dispatch.call import Caller
from toolyard.server import ServerContext, ServerSession
from toolyard.wire.sse import KEEP_ALIVE, encode_event, encode_retry

__all__ = ["Gap", "HttpSession", "HttpSessions", "ReplayBuffer", "Stream"]


_RETRY_MS: Final = 500
_ITSELF: Final = 1024
"""Bytes that a stream takes without its messages, about."""
_EACH: Final = 128
"""Bytes that a message takes besides its own, about."""
Gap = Callable[[int], bytes | None]
"""Returns the message that tells of so many that are no longer there, unless nobody wants to hear of it."""


class Stream:
    """The messages that belong to one request, or to none: each under a number."""

    def __init__(self, number: int, *, keep: int, keep_bytes: int) -> None:
        self.number = number
        self.answer: bytes | None = None
        self.is_over = False
        self.was_read = False
        """Whether somebody was given all of it."""
        self.attended = 0
        """Requests that are answered with it now."""
        self.delivered = 0
        """The number of the last message that somebody was given."""
        self.spoke = asyncio.Event()
        """Set once there is something to tell: a message, or the end."""
        self._events: deque[tuple[int, bytes]] = deque()
        self._keep = keep
        self._limit = self._room = keep_bytes
        self._last = 0
        self._reader: asyncio.Event | None = None
        """What wakes whoever reads."""
        self._released = False

    def push(self, message: bytes) -> None:
        """Add a message."""
        self._keep_message(message)
        self._tell()

    def finish(self, answer: bytes | None) -> None:
        """Add the answer, if there is one; it is the last message."""
        self.answer = answer
        self.is_over = True
        if answer is not None:
            self._keep_message(answer)
        self._tell()

    def leave(self) -> None:
        """Note that one of the requests is answered with it no longer; if that was the last, less is kept."""
        self.attended -= 1
        self._trim()

    def hang_up(self) -> None:
        """Let whoever reads now go; he comes back for the rest."""
        self._released = True
        self._tell()

    @property
    def has_reader(self) -> bool:
        """Return whether somebody reads."""
        return self._reader is not None

    @property
    def size(self) -> int:
        """Return how many bytes of memory it takes, about."""
        return self._limit - self._room + _ITSELF + _EACH * len(self._events)

    @property
    def is_silent(self) -> bool:
        """Return whether nothing but the answer was ever said."""
        return self._last <= 1 and self.answer is not None

    async def read(self, after: int, *, keep_alive: float, primed: bool, gap: Gap) -> AsyncGenerator[bytes]:
        """Yield events after that number as they come, until the stream ends, the reader is let go or another one comes."""
        wake = asyncio.Event()
        self._wake()
        self._reader = wake
        try:
            if primed:
                yield encode_retry(f"{self.number}-{after}", _RETRY_MS)
            while self._reader is wake:
                wake.clear()
                ends, released = self.is_over, self._released
                new = [(number, message) for number, message in self._events if number > after]
                dropped = new[0][0] - after - 1 if new else 0
                if dropped and (told := gap(dropped)) is not None:
                    yield encode_event(told, event_id=f"{self.number}-{after + dropped}")
                for number, message in new:
                    after = number
                    self.delivered = max(self.delivered, number)
                    yield encode_event(message, event_id=f"{self.number}-{number}")
                    if self._reader is not wake:
                        return
                if ends or released:
                    self.was_read = ends
                    self._released = False
                    return
                if new:
                    continue
                try:
                    async with asyncio.timeout(keep_alive or None):
                        await wake.wait()
                except TimeoutError:
                    yield KEEP_ALIVE
        finally:
            if self._reader is wake:
                self._reader = None

    def _keep_message(self, message: bytes) -> None:
        """Keep a message, and those before it only as far as they may be."""
        self._last += 1
        self._events.append((self._last, message))
        self._room -= len(message)
        self._trim()

    def _trim(self) -> None:
        """Drop the oldest messages that there is no room for, and those that are too many and nobody is about to read."""
        events = self._events
        while (self._room < 0 and len(events) > 1) or (len(events) > self._keep and (not self.attended or events[0][0] <= self.delivered)):
            self._room += len(events.popleft()[1])

    def _tell(self) -> None:
        self.spoke.set()
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.set()


_READ_SECONDS: Final = 10.0
"""How long one is kept that was written whole: its last bytes may have been lost on their way."""


class _Place(NamedTuple):
    until: float
    size: int
    forget: Callable[[Stream], None]


class ReplayBuffer:
    """Keeps streams for so many seconds and within so many bytes; those that were read go first, and then the oldest."""

    def __init__(self, seconds: float, room: int) -> None:
        self._seconds = seconds
        self._room = room
        self._read: OrderedDict[Stream, _Place] = OrderedDict()
        self._unread: OrderedDict[Stream, _Place] = OrderedDict()
        self._loop = asyncio.get_running_loop()

    def put(self, stream: Stream, forget: Callable[[Stream], None]) -> None:
        """Keep a stream from now on, and say so when it is kept no longer."""
        self.take(stream)
        row, seconds = (self._read, min(self._seconds, _READ_SECONDS)) if stream.was_read else (self._unread, self._seconds)
        row[stream] = _Place(self._loop.time() + seconds, stream.size, forget)
        self._room -= stream.size
        self.sweep()

    def take(self, stream: Stream) -> None:
        """Keep a stream no longer, if it is kept."""
        place = self._read.pop(stream, None) or self._unread.pop(stream, None)
        if place is not None:
            self._room += place.size

    def sweep(self) -> None:
        """Forget those whose time is up, and as many more as there is no room for."""
        now = self._loop.time()
        for row in (self._read, self._unread):
            while row and (self._room < 0 or next(iter(row.values())).until <= now):
                stream, place = row.popitem(last=False)
                self._room += place.size
                place.forget(stream)


_SWEEP: Final = 30.0
_STREAMS: Final = 64
_WHOLE: Final = 16
"""How many streams as long as they may be are kept of all visits together."""


class HttpSession:
    """One older client: its conversation and its streams."""

    def __init__(self, front: ServerContext, caller: Caller, serving: Serving, *, shelf: ReplayBuffer) -> None:
        self.id = secrets.token_hex(16)
        self.identity = caller.identity
        self.profile = caller.profile
        self.busy = 0
        """Requests and streams that are open."""
        self._loop = asyncio.get_running_loop()
        self._serving = serving
        self._shelf = shelf
        self._numbers = count(1)
        self.standalone = Stream(0, keep=serving.event_count, keep_bytes=serving.message_bytes)
        self._streams: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.used = self._loop.time()
        self.conversation = ServerSession(front, caller=caller, send=self.standalone.push)

    def open_stream(self) -> Stream:
        """Return a new stream, for one request."""
        if len(self._streams) >= _STREAMS:
            for old in [old for old in self._streams.values() if old.is_over][: len(self._streams) - _STREAMS + 1]:
                self._shelf.take(old)
                self.forget(old)
        stream = Stream(next(self._numbers), keep=self._serving.event_count, keep_bytes=self._serving.message_bytes)
        self._streams[stream.number] = stream
        return stream

    def stream_of(self, event_id: str) -> tuple[Stream, int] | None:
        """Return the stream that an event was of and the event's number, if it is still kept."""
        number, _, after = event_id.partition("-")
        if not number.isdecimal() or not after.isdecimal():
            return None
        self._shelf.sweep()
        stream = self.standalone if number == "0" else self._streams.get(int(number[:18]))
        return None if stream is None else (stream, int(after[:18]))

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Work on a request of the client's."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def attend(self, stream: Stream) -> None:
        """Note that a request is answered with a stream from now on."""
        self.busy += 1
        stream.attended += 1

    def leave(self, stream: Stream) -> None:
        """Note that a request is answered with it no longer."""
        self.busy -= 1
        self.touch()
        stream.leave()
        self._put_away(stream)

    def finish(self, stream: Stream, answer: bytes | None) -> None:
        """End a stream with the answer, if there is one."""
        stream.finish(answer)
        self._put_away(stream)

    def forget(self, stream: Stream) -> None:
        """Forget a stream."""
        self._streams.pop(stream.number, None)

    def touch(self) -> None:
        """Note that the client is there."""
        self.used = self._loop.time()

    def _put_away(self, stream: Stream) -> None:
        """Keep a stream that is over, and that nobody reads, for a client that may come back."""
        if stream.is_over and not stream.attended and stream.number in self._streams:
            self._shelf.put(stream, self.forget)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing runs and nobody listens."""
        return not self.busy and not self.conversation.in_flight

    def has_expired(self) -> bool:
        """Return whether it was idle for longer than a visit may be."""
        timeout = self._serving.session_timeout
        return bool(timeout) and self.is_idle and self._loop.time() - self.used > timeout

    def close(self) -> None:
        """End: what runs is interrupted, and answered on its own stream, and whoever listens is let go."""
        self.conversation.close()
        self.standalone.finish(None)
        for stream in self._streams.values():
            self._shelf.take(stream)
        self._streams.clear()


class HttpSessions:
    """All visits, at most so many."""

    def __init__(self, front: ServerContext, serving: Serving) -> None:
        self._front = front
        self._serving = serving
        self._visits: OrderedDict[str, HttpSession] = OrderedDict()
        """The one that was used last at the end."""
        self._shelf = ReplayBuffer(serving.event_seconds, _WHOLE * serving.message_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._visits)

    def start(self, caller: Caller) -> HttpSession | None:
        """Return a new visit, or nothing if there are too many that are not idle."""
        if len(self._visits) >= self._serving.sessions and not self._make_room(caller):
            return None
        visit = HttpSession(self._front, caller, self._serving, shelf=self._shelf)
        self._visits[visit.id] = visit
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP, self._sweep)
        return visit

    def get(self, session_id: str, caller: Caller) -> HttpSession | None:
        """Return the visit of that id, if it is this caller's and has not expired."""
        visit = self._visits.get(session_id)
        if visit is None or visit.identity != caller.identity or visit.profile is not caller.profile:
            return None
        if visit.has_expired():
            self.end(visit)
            return None
        visit.conversation.renew(caller)  # what is claimed of him may be other than it was
        visit.touch()
        self._visits.move_to_end(session_id)
        return visit

    def end(self, visit: HttpSession) -> None:
        """End a visit."""
        self._visits.pop(visit.id, None)
        visit.close()

    def end_listeners(self) -> None:
        """Let go of whoever reads a stream that belongs to no request."""
        for visit in self._visits.values():
            visit.standalone.finish(None)

    def close(self) -> None:
        """End them all."""
        if self._timer is not None:
            self._timer.cancel()
        for visit in tuple(self._visits.values()):
            self.end(visit)

    def _make_room(self, caller: Caller) -> bool:
        """End the visit that was idle for longest, one of the caller's own if there is one."""
        own = (one for one in self._visits.values() if one.identity == caller.identity and one.is_idle)
        idle = next(own, None) or next((one for one in self._visits.values() if one.is_idle), None)
        if idle is not None:
            self.end(idle)
        return idle is not None

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(_SWEEP, self._sweep) if self._visits else None
        self._shelf.sweep()
        for visit in tuple(self._visits.values()):
            if visit.has_expired():
                self.end(visit)
