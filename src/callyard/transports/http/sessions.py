"""HTTP sessions of the handshake era, with stored streams for clients that reconnect.

MCP calls them sessions; the yard's own sessions are something else.
"""

import asyncio
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from itertools import count
from typing import Any, Final, NamedTuple

from callyard.dispatch.call import ANYONE, Caller
from callyard.server import ServerContext, ServerSession
from callyard.wire.sse import KEEP_ALIVE, encode_event, encode_retry

__all__ = ["HttpSession", "HttpSessions", "McpClient", "ReplayBuffer", "ReportGap", "Stream"]


_RETRY_MS: Final = 500
_STREAM_BYTES: Final = 1024
"""Approximate memory of a stream without its messages."""
_MAX_EVENTS: Final = 256
"""Messages of each request that are kept for a client that lost its connection."""
_EVENT_SECONDS: Final = 300.0
"""Seconds for which these messages are kept."""
_EVENT_BYTES: Final = 128
"""Approximate memory of a message besides its own bytes."""
_READ_SECONDS: Final = 10.0
"""How long a stream is stored that was written whole: its last bytes may be lost on their way."""
_SWEEP_SECONDS: Final = 30.0
_MAX_STREAMS: Final = 64
_BUFFERED_MESSAGES: Final = 16
"""The replay buffer has room for so many messages of the largest size."""
ReportGap = Callable[[int], bytes | None]
"""Returns the message that reports so many dropped messages, or None if the client gets no such messages."""


class Stream:
    """The messages of one request, or of none, each with a number."""

    def __init__(self, number: int, *, max_events: int, max_bytes: int, replica: str = "") -> None:
        self.number = number
        self.name = f"{replica}.{number}" if replica else f"{number}"
        """What the ids of its events begin with."""
        self.refuse_lost: Callable[[], bytes] = bytes
        """Returns the response for the case that this process dies before the answer."""
        self.keep: Callable[[Stream], None] | None = None
        """Stores it for other replicas, while its client is away."""
        self.answer: bytes | None = None
        self.is_over = False
        self.was_read = False
        """Whether a reader got the whole stream."""
        self.attached = 0
        """Responses that read it now."""
        self.delivered = 0
        """The number of the last message that a reader got."""
        self.has_events = asyncio.Event()
        """Set once there is a message, or the end."""
        self._events: deque[tuple[int, bytes]] = deque()
        self._max_events = max_events
        self._max_bytes = self._room = max_bytes
        self._last = 0
        self._reader: asyncio.Event | None = None
        self._released = False

    def push(self, message: bytes) -> None:
        """Add a message."""
        self._store(message)
        self._signal()

    def finish(self, answer: bytes | None) -> None:
        """End the stream, with the answer as its last message if there is one."""
        self.answer = answer
        self.is_over = True
        if answer is not None:
            self._store(answer)
        self._signal()

    def detach(self) -> None:
        """Note that a response reads it no longer; without readers, less is stored."""
        self.attached -= 1
        self._trim()

    def hang_up(self) -> None:
        """Let the current reader go; it reconnects for the rest."""
        self._released = True
        self._signal()

    @property
    def events(self) -> list[tuple[int, bytes]]:
        """Return the messages that are kept, with their numbers."""
        return list(self._events)

    @property
    def has_reader(self) -> bool:
        """Return whether it is being read."""
        return self._reader is not None

    @property
    def size(self) -> int:
        """Return its approximate memory in bytes."""
        return self._max_bytes - self._room + _STREAM_BYTES + _EVENT_BYTES * len(self._events)

    @property
    def is_silent(self) -> bool:
        """Return whether the answer is its only message."""
        return self._last <= 1 and self.answer is not None

    async def read(
        self, after: int, *, keep_alive: float, primed: bool, report_gap: ReportGap
    ) -> AsyncGenerator[bytes]:
        """Yield events after a number until the stream ends, or the reader is dismissed or replaced."""
        wake = asyncio.Event()
        self._wake()
        self._reader = wake
        try:
            if primed:
                yield encode_retry(f"{self.name}-{after}", _RETRY_MS)
            while self._reader is wake:
                wake.clear()
                ends, released = self.is_over, self._released
                new = [(number, message) for number, message in self._events if number > after]
                dropped = new[0][0] - after - 1 if new else 0
                if dropped and (report := report_gap(dropped)) is not None:
                    yield encode_event(report, event_id=f"{self.name}-{after + dropped}")
                for number, message in new:
                    after = number
                    self.delivered = max(self.delivered, number)
                    yield encode_event(message, event_id=f"{self.name}-{number}")
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

    def _store(self, message: bytes) -> None:
        self._last += 1
        self._events.append((self._last, message))
        self._room -= len(message)
        self._trim()

    def _trim(self) -> None:
        """Drop the oldest messages beyond the bytes, and beyond the number unless a reader is about to get them."""
        events = self._events
        while (self._room < 0 and len(events) > 1) or (
            len(events) > self._max_events and (not self.attached or events[0][0] <= self.delivered)
        ):
            self._room += len(events.popleft()[1])

    def _signal(self) -> None:
        self.has_events.set()
        self._wake()
        if self.keep is not None and not self.attached:
            self.keep(self)

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.set()


class _Entry(NamedTuple):
    expires_at: float
    size: int
    forget: Callable[[Stream], None]


class ReplayBuffer:
    """Stores ended streams within a time and a size; those that were read are dropped first, then the oldest."""

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds = seconds
        self._room = max_bytes
        self._read: OrderedDict[Stream, _Entry] = OrderedDict()
        self._unread: OrderedDict[Stream, _Entry] = OrderedDict()
        self._loop = asyncio.get_running_loop()

    def add(self, stream: Stream, forget: Callable[[Stream], None]) -> None:
        """Store a stream; `forget` is called when it is dropped."""
        self.remove(stream)
        entries, seconds = (
            (self._read, min(self._seconds, _READ_SECONDS)) if stream.was_read else (self._unread, self._seconds)
        )
        entries[stream] = _Entry(self._loop.time() + seconds, stream.size, forget)
        self._room -= stream.size
        self.sweep()

    def remove(self, stream: Stream) -> None:
        """Store a stream no longer."""
        entry = self._read.pop(stream, None) or self._unread.pop(stream, None)
        if entry is not None:
            self._room += entry.size

    def sweep(self) -> None:
        """Drop the expired streams, and as many more as there is no room for."""
        now = self._loop.time()
        for entries in (self._read, self._unread):
            while entries and (self._room < 0 or next(iter(entries.values())).expires_at <= now):
                stream, entry = entries.popitem(last=False)
                self._room += entry.size
                entry.forget(stream)


class McpClient(NamedTuple):
    """What people see of a session."""

    number: int
    identity: str
    client: str
    """The name that the client states; nothing verifies it."""
    version: str
    age_s: float
    idle_s: float
    in_flight: int


class HttpSession:
    """One client of the handshake era: its session and its streams."""

    def __init__(
        self,
        server: ServerContext,
        caller: Caller,
        replay_buffer: ReplayBuffer,
        *,
        session_id: str = "",
        scope: str = "",
    ) -> None:
        self.id = session_id or secrets.token_hex(16)
        self.identity = caller.identity
        self.profile = caller.profile
        self.serving = server.serving
        self.open_responses = 0
        self._loop = asyncio.get_running_loop()
        self._replay_buffer = replay_buffer
        self._replica = "" if server.yard.replica is None else server.yard.replica.id
        self.keep_lost: Callable[[Stream], None] | None = None
        """Stores a stream that lost its client, for other replicas."""
        self._numbers = count(1)
        self.standalone = self._new_stream(0)
        self._streams: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._used_at = self._started_at = self._stored_at = self._loop.time()
        self.session = ServerSession(server, caller=caller, send=self.standalone.push, is_scope=True, scope=scope)

    def _new_stream(self, number: int) -> Stream:
        options = {"max_events": _MAX_EVENTS, "max_bytes": self.serving.message_bytes}
        return Stream(number, replica=self._replica, **options)

    def open_stream(self) -> Stream:
        """Return a new stream for one request."""
        if len(self._streams) >= _MAX_STREAMS:
            for old in [old for old in self._streams.values() if old.is_over][: len(self._streams) - _MAX_STREAMS + 1]:
                self._replay_buffer.remove(old)
                self.forget(old)
        stream = self._new_stream(next(self._numbers))
        self._streams[stream.number] = stream
        return stream

    def find_event(self, event_id: str) -> tuple[Stream, int] | None:
        """Return the stream and the number of an event, if it is still stored."""
        name, _, after = event_id.partition("-")
        home, _, number = name.rpartition(".")
        if not number.isdecimal() or not after.isdecimal():
            return None
        self._replay_buffer.sweep()
        is_here = home == self._replica
        if number == "0":  # each replica has notifications of its own
            return self.standalone, int(after[:18]) if is_here else self.standalone.delivered
        stream = self._streams.get(int(number[:18])) if is_here else None
        return None if stream is None else (stream, int(after[:18]))

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start the task that serves a request, and keep a reference to it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def attach(self, stream: Stream) -> None:
        """Note that a response reads a stream from now on."""
        self.open_responses += 1
        stream.attached += 1

    def detach(self, stream: Stream) -> None:
        """Note that a response reads a stream no longer."""
        self.open_responses -= 1
        self.touch()
        stream.detach()
        self._store(stream)
        is_lost = not stream.attached and not stream.was_read and stream.number
        if is_lost and self.keep_lost is not None and stream.number in self._streams:
            stream.keep = self.keep_lost
            self.keep_lost(stream)

    def finish(self, stream: Stream, answer: bytes | None) -> None:
        """End a stream with the answer, if there is one."""
        stream.finish(answer)
        self._store(stream)

    def forget(self, stream: Stream) -> None:
        """Drop a stream."""
        self._streams.pop(stream.number, None)

    def note_stored(self) -> None:
        """Note that other replicas can read it, for its timeout from now on."""
        self._stored_at = self._loop.time()

    def is_due(self, seconds: float) -> bool:
        """Return whether it was stored so long ago."""
        return self._loop.time() - self._stored_at > seconds

    def touch(self) -> None:
        """Note that the client is active."""
        self._used_at = self._loop.time()

    def _store(self, stream: Stream) -> None:
        """Store a stream that is over and not being read, because the client may reconnect."""
        if stream.is_over and not stream.attached and stream.number in self._streams:
            self._replay_buffer.add(stream, self.forget)

    @property
    def is_idle(self) -> bool:
        """Return whether no request and no response is open."""
        return not self.open_responses and not self.session.in_flight

    def describe(self) -> McpClient:
        """Return what people see of it."""
        now, session = self._loop.time(), self.session
        return McpClient(
            session.number,
            self.identity,
            session.caller.client,
            "" if session.version is None else session.version.name,
            age_s=now - self._started_at,
            idle_s=0.0 if not self.is_idle else now - self._used_at,
            in_flight=len(session.in_flight),
        )

    def has_expired(self) -> bool:
        """Return whether it was idle for longer than the timeout."""
        timeout = self.serving.session_timeout
        return bool(timeout) and self.is_idle and self._loop.time() - self._used_at > timeout

    def close(self, *, goes_on: bool = False) -> None:
        """Cancel what is in flight, each answered on its own stream, and end the standalone stream."""
        self.session.close(goes_on=goes_on)
        self.standalone.finish(None)
        for stream in self._streams.values():
            self._replay_buffer.remove(stream)
        self._streams.clear()


class HttpSessions:
    """All sessions, up to a limit."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._serving = serving = server.serving
        self._sessions: OrderedDict[str, HttpSession] = OrderedDict()
        """The most recently used at the end."""
        self._replay_buffer = ReplayBuffer(_EVENT_SECONDS, _BUFFERED_MESSAGES * serving.message_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.on_end: Callable[[HttpSession], None] | None = None
        """Ends a session for the other replicas that have it, where there are some."""

    def __len__(self) -> int:
        return len(self._sessions)

    def describe(self) -> list[McpClient]:
        """Return what people see of the sessions, the most recently used first."""
        return [session.describe() for session in reversed(self._sessions.values())]

    def end_number(self, number: int) -> bool:
        """End the session of a number, and return whether there was one."""
        found = next((session for session in self._sessions.values() if session.session.number == number), None)
        if found is not None:
            self.end(found)
        return found is not None

    def start(self, caller: Caller) -> HttpSession | None:
        """Return a new session, or None if there are too many and none is idle."""
        return self.add(HttpSession(self._server, caller, self._replay_buffer)) if self._has_room(caller) else None

    def restore(self, session_id: str, caller: Caller, scope: str) -> HttpSession | None:
        """Return a copy of a session that another replica started, or None if there are too many."""
        if not self._has_room(caller):
            return None
        return self.add(HttpSession(self._server, caller, self._replay_buffer, session_id=session_id, scope=scope))

    def find(self, session_id: str) -> HttpSession | None:
        """Return the session of an id, whoever has it, unless it has expired."""
        session = self._sessions.get(session_id)
        return None if session is None or session.has_expired() else session

    def _has_room(self, caller: Caller) -> bool:
        """Return whether a caller may have one more session, after an idle one has ended if necessary."""
        counts = Counter(session.identity for session in self._sessions.values())
        is_full = len(self._sessions) >= self._serving.sessions
        has_most = caller.identity != ANYONE.identity and counts[caller.identity] >= self._serving.sessions_per_identity
        return not (is_full or has_most) or self._make_room(caller.identity, counts, own=has_most)

    def add(self, session: HttpSession) -> HttpSession:
        """Serve a session."""
        self._sessions[session.id] = session
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        return session

    def get(self, session_id: str, caller: Caller) -> HttpSession | None:
        """Return the session of an id, if it is this caller's and has not expired."""
        session = self._sessions.get(session_id)
        if session is None or session.identity != caller.identity or session.profile is not caller.profile:
            return None
        if session.has_expired():
            self._drop_expired(session)
            return None
        if caller.identity != ANYONE.identity:
            session.session.update_caller(caller)  # a renewed token may have other claims
        session.touch()
        self._sessions.move_to_end(session_id)
        return session

    def end(self, session: HttpSession) -> None:
        """End a session."""
        self._sessions.pop(session.id, None)
        session.close()
        if self.on_end is not None:
            self.on_end(session)

    def drop(self, session: HttpSession, *, goes_on: bool) -> None:
        """Serve a session no longer, which others may."""
        self._sessions.pop(session.id, None)
        session.close(goes_on=goes_on)

    def drop_all(self) -> None:
        """Serve no session any longer, because nobody knows any."""
        for session in tuple(self._sessions.values()):
            self.drop(session, goes_on=False)

    def _drop_expired(self, session: HttpSession) -> None:
        if self.on_end is None:
            self.end(session)
        else:  # it may be in use elsewhere; if not, it expires in the store
            self.drop(session, goes_on=True)

    def end_listeners(self) -> None:
        """End the standalone streams."""
        for session in self._sessions.values():
            session.standalone.finish(None)

    def close(self) -> None:
        """End all sessions."""
        if self._timer is not None:
            self._timer.cancel()
        for session in tuple(self._sessions.values()):
            self.drop(session, goes_on=self.on_end is not None)

    def _make_room(self, identity: str, counts: Counter[str], *, own: bool) -> bool:
        """End the session that was idle for longest; return whether there was one.

        It is one of the caller's own, or of an identity with more sessions.
        """
        oldest = self._oldest_idle(identity)
        if oldest is None and not own:
            [(most, count)] = counts.most_common(1)
            if count > counts[identity] + 1:
                oldest = self._oldest_idle(most)
        if oldest is not None:
            self.end(oldest)
        return oldest is not None

    def _oldest_idle(self, identity: str) -> HttpSession | None:
        return next((old for old in self._sessions.values() if old.identity == identity and old.is_idle), None)

    def _sweep(self) -> None:
        self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep) if self._sessions else None
        self._replay_buffer.sweep()
        for session in tuple(self._sessions.values()):
            if session.has_expired():
                self._drop_expired(session)
