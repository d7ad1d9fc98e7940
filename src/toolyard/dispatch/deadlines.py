"""Deadlines: stops calls that take too long.

Calls with the same timeout expire in the order in which they began, so one timer serves all of them. A timer for each call would
cost more than the rest of the funnel.
"""

import asyncio
import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Final, NamedTuple

from toolyard.dispatch.run import Run

__all__ = ["Deadlines"]

_REPEAT_S: Final = 1.0
_LEAST_S: Final = 0.001
_log = logging.getLogger(__name__)


class _Pause(NamedTuple):
    """A stopped clock."""

    holders: int
    """How many waits stop it."""
    since: float
    left: float | None
    """Seconds left, if there is a deadline."""


class Deadlines:
    """The deadlines of all running calls; a handler that swallows its cancellation is cancelled again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: dict[float, dict[Run, float]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._paused: dict[Run, _Pause] = {}

    def start(self, call: Run, seconds: float) -> dict[Run, float]:
        """Stop the call after so many seconds; 0 is never.

        Returns:
            The table from which the call removes itself when it ends in time.
        """
        if not seconds:
            return {}
        running = self._running.get(seconds)
        if running is None:
            running = self._running[seconds] = {}
            self._timers[seconds] = self._loop.call_later(seconds, self._expire, seconds)
        running[call] = time.monotonic() + seconds
        return running

    def end(self, call: Run) -> None:
        """Forget a finished call that may have moved to another table, because it was paused or had a timeout of its own."""
        self._paused.pop(call, None)
        self._take_out(call)

    @contextmanager
    def paused(self, calls: Sequence[Run]) -> Generator[None]:
        """Stop the clocks of these calls meanwhile; waits that overlap count once."""
        now = time.perf_counter()
        for call in calls:
            pause = self._paused.get(call)
            self._paused[call] = _Pause(1, now, self._take_out(call)) if pause is None else pause._replace(holders=pause.holders + 1)
        try:
            yield
        finally:
            for call in calls:
                self._resume(call)

    def paused_s(self, call: Run) -> float:
        """Return how long the clock of a call stood still so far."""
        pause = self._paused.get(call)
        return call.paused_s + (0.0 if pause is None else time.perf_counter() - pause.since)

    def _resume(self, call: Run) -> None:
        pause = self._paused.pop(call, None)
        if pause is None or call.finished:
            return
        if pause.holders > 1:
            self._paused[call] = pause._replace(holders=pause.holders - 1)
            return
        call.paused_s += time.perf_counter() - pause.since
        if pause.left is not None:
            self.start(call, max(pause.left, _LEAST_S))

    def close(self) -> None:
        """Forget everything."""
        self._running.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _take_out(self, call: Run) -> float | None:
        """Remove a call and return how many seconds it has left, or `None` if it has no deadline."""
        for seconds, running in self._running.items():
            if call in running:
                left = running.pop(call) - time.monotonic()
                if not running:  # a remaining time is hardly ever shared
                    del self._running[seconds]
                    self._timers.pop(seconds).cancel()
                return left
        return None

    def _expire(self, seconds: float) -> None:
        running = self._running.get(seconds, {})
        now = time.monotonic()
        due = list(takewhile(lambda call: running[call] <= now, running))
        for call in due:
            del running[call]
            call.stop("timeout")
            self._loop.call_later(_REPEAT_S, self._cancel_again, call)
        if running:
            self._timers[seconds] = self._loop.call_later(next(iter(running.values())) - now, self._expire, seconds)
        else:
            self._running.pop(seconds, None)
            self._timers.pop(seconds, None)

    def _cancel_again(self, call: Run) -> None:
        """Cancel again a handler that swallowed its cancellation."""
        if not call.finished:
            _log.warning("handler_ignores_cancellation tool=%s id=%s", call.spec.name, call.id)
            call.cancel()
            self._loop.call_later(_REPEAT_S, self._cancel_again, call)
