"""Deadlines: one shared timer for all calls that may take equally long.

Calls of one duration end in the order they began, so only the first of them needs a timer. A timer for each would cost more than
the rest of the funnel.
"""

import asyncio
import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Final, NamedTuple

from toolyard.dispatch.call import Call

__all__ = ["Deadlines"]

_INSIST: Final = 1.0
_LEAST: Final = 0.001
_log = logging.getLogger(__name__)


class _Pause(NamedTuple):
    """The time of a call stands still: how many wish that, since when, and how many seconds it has left, if it has a deadline."""

    wishes: int
    since: float
    left: float | None


class Deadlines:
    """Stops calls that take too long, and goes on stopping those that do not listen."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[float, dict[Call, float]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._paused: dict[Call, _Pause] = {}

    def start(self, call: Call, seconds: float) -> dict[Call, float]:
        """Stop the call in so many seconds, unless it leaves those who wait, which are returned, before that; 0 is never."""
        if not seconds:
            return {}
        waiting = self._waiting.get(seconds)
        if waiting is None:
            waiting = self._waiting[seconds] = {}
            self._timers[seconds] = self._loop.call_later(seconds, self._expire, seconds)
        waiting[call] = time.monotonic() + seconds
        return waiting

    def end(self, call: Call) -> None:
        """Forget a call that is over and waits among others than those it was told of, because it was paused or is in a hurry."""
        self._paused.pop(call, None)
        self._take_out(call)

    @contextmanager
    def paused(self, calls: Sequence[Call]) -> Generator[None]:
        """Let the time that these calls have left stand still meanwhile, however many wish that, and count it once as time aside."""
        now = time.perf_counter()
        for call in calls:
            pause = self._paused.get(call)
            self._paused[call] = _Pause(1, now, self._take_out(call)) if pause is None else pause._replace(wishes=pause.wishes + 1)
        try:
            yield
        finally:
            for call in calls:
                self._go_on(call)

    def _go_on(self, call: Call) -> None:
        pause = self._paused.pop(call, None)
        if pause is None or call.finished:
            return
        if pause.wishes > 1:
            self._paused[call] = pause._replace(wishes=pause.wishes - 1)
            return
        call.paused_s += time.perf_counter() - pause.since
        if pause.left is not None:
            self.start(call, max(pause.left, _LEAST))

    def close(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _take_out(self, call: Call) -> float | None:
        """Return how many seconds a call has left, which is then waited for no more; nothing if it has no deadline."""
        for seconds, waiting in self._waiting.items():
            if call in waiting:
                left = waiting.pop(call) - time.monotonic()
                if not waiting:  # hardly anybody will have as much time again
                    del self._waiting[seconds]
                    self._timers.pop(seconds).cancel()
                return left
        return None

    def _expire(self, seconds: float) -> None:
        waiting = self._waiting.get(seconds, {})
        now = time.monotonic()
        due = list(takewhile(lambda call: waiting[call] <= now, waiting))
        for call in due:
            del waiting[call]
            call.stop("timeout")
            self._loop.call_later(_INSIST, self._insist, call)
        if waiting:
            self._timers[seconds] = self._loop.call_later(next(iter(waiting.values())) - now, self._expire, seconds)
        else:
            self._waiting.pop(seconds, None)
            self._timers.pop(seconds, None)

    def _insist(self, call: Call) -> None:
        """Interrupt a handler again that swallowed its interruption."""
        if not call.finished:
            _log.warning("handler_ignores_cancellation tool=%s id=%s", call.spec.name, call.id)
            call.interrupt()
            self._loop.call_later(_INSIST, self._insist, call)
