"""Streams that can be come back to: the messages of one request of an older client, kept until it has them.

A client that loses its connection asks for what came after the last event it saw. What is kept is bounded in count and in time;
whoever comes back too late for some of it is told how much that was.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Final

from toolyard.wire.events import KEEP_ALIVE, encode_event, encode_retry

__all__ = ["Gap", "Stream"]

_RETRY_MS: Final = 500

Gap = Callable[[int], bytes | None]
"""Returns the message that tells of so many that are no longer there, unless nobody wants to hear of it."""


class Stream:
    """The messages that belong to one request, or to none: each under a number."""

    def __init__(self, number: int, *, keep: int, keep_bytes: int, clock: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.answer: bytes | None = None
        self.is_over = False
        self.over_since = 0.0
        self.has_reader = False
        self.delivered = 0
        """The number of the last message that somebody was given."""
        self.spoke = asyncio.Event()
        """Set once there is something to tell: a message, or the end."""
        self._events: deque[tuple[int, bytes]] = deque()
        self._keep = keep
        self._room = keep_bytes
        self._last = 0
        self._readers: set[asyncio.Event] = set()
        self._released = False
        self._clock = clock

    def push(self, message: bytes) -> None:
        """Add a message."""
        self._keep_message(message)
        self._tell()

    def finish(self, answer: bytes | None) -> None:
        """Add the answer, if there is one; it is the last message."""
        self.answer = answer
        self.is_over = True
        self.over_since = self._clock.time()
        if answer is not None:
            self._keep_message(answer)
        self._tell()

    def hang_up(self) -> None:
        """Let whoever reads now go; he comes back for the rest."""
        self._released = True
        self._tell()

    @property
    def is_silent(self) -> bool:
        """Return whether nothing but the answer was ever said."""
        return self._last <= 1 and self.answer is not None

    async def read(self, after: int, *, keep_alive: float, primed: bool, gap: Gap) -> AsyncGenerator[bytes]:
        """Yield events after that number as they come, until the stream ends or the reader is let go."""
        wake = asyncio.Event()
        self._readers.add(wake)
        self.has_reader = True
        try:
            if primed:
                yield encode_retry(f"{self.number}-{after}", _RETRY_MS)
            while True:
                wake.clear()
                new = [(number, message) for number, message in self._events if number > after]
                dropped = new[0][0] - after - 1 if new else 0
                if dropped and (told := gap(dropped)) is not None:
                    yield encode_event(told, event_id=f"{self.number}-{after + dropped}")
                for number, message in new:
                    after = number
                    self.delivered = max(self.delivered, number)
                    yield encode_event(message, event_id=f"{self.number}-{number}")
                if self.is_over or self._released:
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
            self._readers.discard(wake)
            self.has_reader = bool(self._readers)

    def _keep_message(self, message: bytes) -> None:
        """Keep a message, and the ones before it only as far as there is room."""
        self._last += 1
        self._events.append((self._last, message))
        self._room -= len(message)
        while len(self._events) > self._keep or (self._room < 0 and len(self._events) > 1):
            self._room += len(self._events.popleft()[1])

    def _tell(self) -> None:
        self.spoke.set()
        for wake in self._readers:
            wake.set()
