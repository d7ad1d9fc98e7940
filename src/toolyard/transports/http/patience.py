"""Patience: one shared timer for all responses that are held back equally long.

They come due in the order they came in, so only the first needs a timer. One for each would cost more than a quick call.
"""

import asyncio
import time
from itertools import takewhile
from typing import Protocol

__all__ = ["Patience"]


class Held(Protocol):
    """What waits for its answer, and goes on without it when the time is up."""

    def start_stream(self) -> None:
        """Wait no longer."""
        ...


class Patience:
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
