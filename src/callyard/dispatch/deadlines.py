"""Deadlines: stops calls that take too long."""

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from callyard._internal.timer import SharedTimers
from callyard.dispatch.run import Run

__all__ = ["Deadlines"]

_REPEAT_S: Final = 1.0
_LEAST_S: Final = 0.001
_log = logging.getLogger(__name__)


class _Pause(msgspec.Struct, frozen=True):
    """A stopped clock."""

    holders: int
    """How many waits stop it."""
    since: float
    left: float | None
    """Seconds left, if there is a deadline."""
    go_on: Callable[[], None] | None = None
    """What is called when the clock goes on."""


class Deadlines(SharedTimers[Run]):
    """The deadlines of all running calls; a handler that swallows its cancellation is cancelled again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop, self._stop)
        self._paused: dict[Run, _Pause] = {}
        self._watchers: dict[Run, Callable[[], Callable[[], None]]] = {}

    def end(self, call: Run) -> None:
        """Forget a finished call, in whichever table of timers it is: a pause or a timeout of its own moves it to another."""
        self._paused.pop(call, None)
        self.remove(call)

    @contextmanager
    def paused(self, calls: Sequence[Run]) -> Generator[None]:
        """Stop the clocks of these calls meanwhile; waits that overlap count once."""
        now = time.perf_counter()
        for call in calls:
            pause = self._paused.get(call)
            self._paused[call] = self._pause(call, now) if pause is None else msgspec.structs.replace(pause, holders=pause.holders + 1)
        try:
            yield
        finally:
            for call in calls:
                self._resume(call)

    @contextmanager
    def watched(self, call: Run, pause: Callable[[], Callable[[], None]]) -> Generator[None]:
        """Call `pause` whenever the clock of a call stops, and what it returns when the clock goes on."""
        self._watchers[call] = pause
        try:
            yield
        finally:
            del self._watchers[call]

    def _pause(self, call: Run, now: float) -> _Pause:
        watcher = self._watchers.get(call) if self._watchers else None
        return _Pause(1, now, self.remove(call), None if watcher is None else watcher())

    def _resume(self, call: Run) -> None:
        pause = self._paused.pop(call, None)
        if pause is None or call.finished:
            return
        if pause.holders > 1:
            self._paused[call] = msgspec.structs.replace(pause, holders=pause.holders - 1)
            return
        if pause.go_on is not None:
            pause.go_on()
        call.paused_s += time.perf_counter() - pause.since
        if pause.left is not None:
            self.start(call, max(pause.left, _LEAST_S))

    def _stop(self, call: Run) -> None:
        call.stop("timeout")
        self._loop.call_later(_REPEAT_S, self._cancel_again, call)

    def _cancel_again(self, call: Run) -> None:
        """Cancel again a handler that swallowed its cancellation."""
        if not call.finished:
            _log.warning("handler_ignores_cancellation tool=%s id=%s", call.spec.name, call.id)
            call.cancel()
            self._loop.call_later(_REPEAT_S, self._cancel_again, call)
