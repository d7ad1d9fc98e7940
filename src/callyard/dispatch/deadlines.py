"""Timeouts, and the deadlines that stop calls which take too long.

Three things bound a call: its caller, its tool, and the time limit of the client that waits for the outermost call.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from math import inf
from typing import Final

import msgspec

from callyard.dispatch.call import CLIENT_SHARE
from callyard.dispatch.run import Run, outermost
from callyard.dispatch.tool import Tool
from callyard.model.limits import Limits

__all__ = ["Deadlines", "Timeouts"]

_REPEAT_S: Final = 1.0
_LEAST_S: Final = 0.001
_EXTRA_S: Final = 1.0
"""What a tool that runs others gets on top, so that it can report what they did."""
_STEPS: Final = 50
"""The time that is left for a client is rounded to such a part, because calls with the same timeout share one timer."""
_HOLD_SHARE: Final = 0.9
"""The share of a client's time that a call is held for; the rest is for the answer."""
_log = logging.getLogger(__name__)


class _Pause(msgspec.Struct):
    """A stopped clock."""

    holders: int
    since: float
    left: float | None
    go_on: Callable[[], None] | None = None


class Deadlines:
    """The deadlines of all running calls; a handler that swallows its cancellation is cancelled again.

    Calls with the same timeout expire in the order in which they began, so one timer of the loop serves all of them.
    A timer for each would cost more than the rest of a call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[float, dict[Run, float]] = {}
        self._timers: dict[float, asyncio.TimerHandle] = {}
        self._paused: dict[Run, _Pause] = {}
        self._watchers: dict[Run, Callable[[], Callable[[], None]]] = {}
        self.on_expired: Callable[[Run], None] = lambda _: None
        """Takes each call whose deadline passed, before it is stopped."""

    def start(self, run: Run, seconds: float) -> dict[Run, float]:
        """Let a call expire after so many seconds.

        Returns:
            The table from which a call is removed that has ended in time.
        """
        waiting = self._waiting.get(seconds)
        if waiting is None:
            waiting = self._waiting[seconds] = {}
            self._timers[seconds] = self._loop.call_later(seconds, self._expire, seconds)
        waiting[run] = time.monotonic() + seconds
        return waiting

    def remove(self, run: Run) -> float | None:
        """Remove a call; return how many seconds it has left, or `None` if it is in no table."""
        for seconds, waiting in self._waiting.items():
            if run in waiting:
                left = waiting.pop(run) - time.monotonic()
                if not waiting:  # a remaining time is hardly ever shared
                    del self._waiting[seconds]
                    self._timers.pop(seconds).cancel()
                return left
        return None

    def left(self) -> dict[Run, float]:
        """Return how many seconds each call has left whose clock runs."""
        now = time.monotonic()
        return {run: end - now for waiting in self._waiting.values() for run, end in waiting.items()}

    def is_paused(self, run: Run) -> bool:
        """Return whether the clock of a call stands still."""
        return run in self._paused

    def close(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def end(self, run: Run) -> None:
        """Forget a finished run."""
        self._paused.pop(run, None)
        self.remove(run)

    @contextmanager
    def paused(self, runs: Sequence[Run]) -> Generator[None]:
        """Stop the clocks of these calls meanwhile; waits that overlap count once."""
        now = time.perf_counter()
        for run in runs:
            if run not in self._paused:
                watcher = self._watchers.get(run)
                self._paused[run] = _Pause(0, now, self.remove(run), None if watcher is None else watcher())
            self._paused[run].holders += 1
        try:
            yield
        finally:
            for run in runs:
                self._resume(run)

    @contextmanager
    def watched(self, run: Run, pause: Callable[[], Callable[[], None]]) -> Generator[None]:
        """Call `pause` whenever the clock of a call stops, and what it returns when the clock goes on."""
        self._watchers[run] = pause
        try:
            yield
        finally:
            del self._watchers[run]

    def _resume(self, run: Run) -> None:
        pause = self._paused.get(run)
        if pause is None:
            return
        pause.holders -= 1
        if pause.holders and not run.finished:
            return
        del self._paused[run]
        if run.finished:
            return
        if pause.go_on is not None:
            pause.go_on()
        run.paused_s += time.perf_counter() - pause.since
        if pause.left is not None:
            self.start(run, max(pause.left, _LEAST_S))

    def _expire(self, seconds: float) -> None:
        waiting = self._waiting.get(seconds, {})
        now = time.monotonic()
        for run in list(takewhile(lambda run: waiting[run] <= now, waiting)):
            del waiting[run]
            self.on_expired(run)
            run.stop("timeout")
            self._loop.call_later(_REPEAT_S, self._cancel_again, run)
        if waiting:
            self._timers[seconds] = self._loop.call_later(next(iter(waiting.values())) - now, self._expire, seconds)
        else:
            self._waiting.pop(seconds, None)
            self._timers.pop(seconds, None)

    def _cancel_again(self, run: Run) -> None:
        if not run.finished:
            _log.warning("handler_ignores_cancellation tool=%s id=%s", run.name, run.id)
            run.cancel()
            self._loop.call_later(_REPEAT_S, self._cancel_again, run)


class Timeouts:
    """The timeouts of the calls of one yard; 0 is none."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def of_admission(self, run: Run, tool: Tool) -> float:
        """Return the timeout that starts before a call is admitted: its caller's, or the rest of its client's."""
        if run.options.seconds:
            return self.of(run, tool)
        return 0.0 if tool.wraps else self._before_client(run, 0.0)

    def of_handler(self, run: Run, tool: Tool) -> float:
        """Return the timeout that starts with the handler."""
        if run.options.seconds and run.job is None:
            return 0.0  # its deadline has started before its admission
        if run.job is not None:
            return self.of(run, tool)
        own = run.call.spec.timeout
        return self._before_client(run, self._limits.timeout) if own is None else own

    def of(self, run: Run, tool: Tool) -> float:
        """Return the timeout of a call, for the failure that names it."""
        seconds, own = run.options.seconds, run.call.spec.timeout
        if tool.wraps:
            return seconds + _EXTRA_S if seconds else 0.0
        usual = self._limits.timeout if run.job is None else self._limits.job_timeout
        longest = usual if own is None else own
        if seconds:
            return min(seconds, longest or seconds)
        limit = self._client_limit(run) if own is None or not run.call.may_have_run else 0.0
        return min(limit, longest or limit) if limit else longest

    def hold(self, run: Run) -> float:
        """Return how long a call is held for a person: not as long as its client waits, where that is known."""
        outer = outermost(run)
        known = min(self._client_limit(outer) or inf, outer.options.seconds or inf)
        left = known - (time.perf_counter() - outer.started)
        return min(self._limits.approval_hold_s, max(left * _HOLD_SHARE, 0.0))

    def _client_limit(self, run: Run) -> float:
        """Return within how many seconds the client needs an answer; 0 if that is not known, or nobody waits."""
        client = run.call.request.caller.client
        if not client or outermost(run).job is not None:
            return 0.0
        return self._limits.client_seconds(client) * CLIENT_SHARE

    def _before_client(self, run: Run, timeout: float) -> float:
        """Return a timeout, or the time until the client of the outermost call needs its answer if that is shorter."""
        limit = self._client_limit(run)
        if not limit:
            return timeout
        outer = outermost(run)
        step = limit / _STEPS
        passed = (time.perf_counter() - outer.started - outer.paused_s) // step
        left = max(limit - passed * step, step)
        return min(timeout, left) if timeout else left
