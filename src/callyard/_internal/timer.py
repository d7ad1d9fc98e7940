"""Timers that many waiting things share.

Things with the same delay expire in the order in which they were added, so one timer of the event loop serves all of them. A timer
for each would cost more than the rest of a call.
"""

import asyncio
import time
from collections.abc import Callable
from itertools import takewhile
from typing import Generic, TypeVar

__all__ = ["SharedTimers"]

T = TypeVar("T")


class SharedTimers(Generic[T]):
    """Calls a function with each item when its delay has passed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[T], object]) -> None:
        self._loop = loop
        self._expired = expired
        self._waiting: dict[float, dict[T, float]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}

    def start(self, item: T, seconds: float) -> dict[T, float]:
        """Let the item expire after so many seconds.

        Returns:
            The table from which an item removes itself that need not wait any longer.
        """
        waiting = self._waiting.get(seconds)
        if waiting is None:
            waiting = self._waiting[seconds] = {}
            self._timers[seconds] = self._loop.call_later(seconds, self._expire, seconds)
        waiting[item] = time.monotonic() + seconds
        return waiting

    def remove(self, item: T) -> float | None:
        """Remove an item from whatever table it is in; return how many seconds it has left, or `None` if it is in none."""
        for seconds, waiting in self._waiting.items():
            if item in waiting:
                left = waiting.pop(item) - time.monotonic()
                if not waiting:  # a remaining time is hardly ever shared
                    del self._waiting[seconds]
                    self._timers.pop(seconds).cancel()
                return left
        return None

    def close(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _expire(self, seconds: float) -> None:
        waiting = self._waiting.get(seconds, {})
        now = time.monotonic()
        for item in list(takewhile(lambda item: waiting[item] <= now, waiting)):
            del waiting[item]
            self._expired(item)
        if waiting:
            self._timers[seconds] = self._loop.call_later(next(iter(waiting.values())) - now, self._expire, seconds)
        else:
            self._waiting.pop(seconds, None)
            self._timers.pop(seconds, None)
