"""Progress of one call: throttled, only ever growing, the last one always delivered.

It decides when progress is sent, not where. Also: thread-safe, fire-and-forget callbacks.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec

from callyard._internal.logfmt import log_exception

__all__ = ["NOOP", "Noop", "Progress", "ProgressThrottle", "SendProgress", "call_safely", "on_loop"]


_BURST: Final = 4
_PER_SECOND: Final = 4.0
_OWN_BURST: Final = 12
_OWN_PER_SECOND: Final = 0.2
"""The rate after that: nobody asked for our own progress, but a client may give up on a silent call."""
_ROUNDING: Final = 1e-6


class Progress(msgspec.Struct, frozen=True):
    """How far a call has come."""

    done: float
    total: float | None = None
    text: str = ""


SendProgress = Callable[[Progress], None]


class ProgressThrottle:
    """Sends four at once, then four a second, and always the last one."""

    __slots__ = ("_last", "_loop", "_own", "_pending", "_refilled_at", "_send", "_timer", "_tokens")

    def __init__(self, send: SendProgress, loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._last = -math.inf
        self._tokens = float(_BURST)
        self._refilled_at = loop.time()
        self._own = 0
        self._pending: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, progress: Progress, *, own: bool = False) -> None:
        """Send progress now or soon, and drop it if it does not grow. After twelve of the yard's own the rate falls."""
        if not math.isfinite(progress.done) or progress.done <= self._last:
            return
        self._last = progress.done
        self._own += own
        self._pending = progress
        if self._timer is None:
            self._deliver_if_due()

    def close(self) -> None:
        """Send what is pending and stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deliver()

    def _deliver_if_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        per_second = _PER_SECOND if self._own <= _OWN_BURST else _OWN_PER_SECOND
        self._tokens = min(_BURST, self._tokens + (now - self._refilled_at) * per_second)
        self._refilled_at = now
        if self._tokens >= 1 - _ROUNDING:
            self._tokens -= 1
            self._deliver()
        elif self._pending is not None:
            self._timer = self._loop.call_later((1 - self._tokens) / per_second, self._deliver_if_due)

    def _deliver(self) -> None:
        progress, self._pending = self._pending, None
        if progress is not None:
            self._send(progress)


_log = logging.getLogger(__name__)


def on_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the current code runs on that event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def call_safely(send: Callable[[], None]) -> None:
    """Call a channel's function; its failure must not fail the call."""
    try:
        send()
    except Exception:  # noqa: BLE001 - a channel may raise anything
        log_exception(_log, "door_failed")


class Noop:
    """Can be awaited, and need not be: the result of sending progress or a log line."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


NOOP: Final = Noop()
