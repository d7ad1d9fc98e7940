"""Visits: older clients over HTTP, each with a conversation under an id that it sends along, ended when idle for too long.

MCP calls a visit a session, and so do the words that a client is sent; ours are another thing.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Coroutine
from itertools import count
from typing import Any, Final

from toolyard.caller import Caller
from toolyard.conversation import Conversation, Front
from toolyard.serving import Serving
from toolyard.transports.http.shelf import Shelf
from toolyard.transports.http.streams import Stream

__all__ = ["Visit", "Visits"]

_SWEEP: Final = 30.0
_STREAMS: Final = 64
_WHOLE: Final = 16
"""How many streams as long as they may be are kept of all visits together."""


class Visit:
    """One older client: its conversation and its streams."""

    def __init__(self, front: Front, caller: Caller, serving: Serving, *, shelf: Shelf) -> None:
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
        self.conversation = Conversation(front, caller=caller, send=self.standalone.push)

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


class Visits:
    """All visits, at most so many."""

    def __init__(self, front: Front, serving: Serving) -> None:
        self._front = front
        self._serving = serving
        self._visits: OrderedDict[str, Visit] = OrderedDict()
        """The one that was used last at the end."""
        self._shelf = Shelf(serving.event_seconds, _WHOLE * serving.message_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._visits)

    def start(self, caller: Caller) -> Visit | None:
        """Return a new visit, or nothing if there are too many that are not idle."""
        if len(self._visits) >= self._serving.sessions and not self._make_room(caller):
            return None
        visit = Visit(self._front, caller, self._serving, shelf=self._shelf)
        self._visits[visit.id] = visit
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP, self._sweep)
        return visit

    def get(self, session_id: str, caller: Caller) -> Visit | None:
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

    def end(self, visit: Visit) -> None:
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
