"""Streams that can be come back to: the messages of one request of an older client, kept until it has them.

A client that loses its connection asks for what came after the last event it saw. What is kept for it is bounded in count, bytes
and time, what somebody still reads in bytes alone; whoever misses some of it is told how much that was.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Final

from toolyard.wire.events import KEEP_ALIVE, encode_event, encode_retry

__all__ = ["Gap", "Stream"]

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
