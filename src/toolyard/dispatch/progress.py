"""Progress of one call: notes that only grow, thinned out, the last one always delivered.

It decides when a note may go out; where it goes is a function it is given.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec

__all__ = ["NOOP", "Noop", "Progress", "ProgressThrottle", "SendProgress", "call_safely", "on_loop"]


_BURST: Final = 4
_PER_SECOND: Final = 4.0
_OWN_NOTES: Final = 12
_OWN_PER_SECOND: Final = 0.2
"""How many of our own there are once they are many: nobody asked for them, but a client may give up on a call that falls silent."""
_ROUNDING: Final = 1e-6


class Progress(msgspec.Struct, frozen=True):
    """How far a call has come."""

    done: float
    total: float | None = None
    text: str = ""


SendProgress = Callable[[Progress], None]
"""Takes a note to whoever is told."""


class ProgressThrottle:
    """Sends a call's notes on: four at once, then four a second, with the last one never lost."""

    __slots__ = ("_last", "_loop", "_own", "_pending", "_send", "_timer", "_tokens", "_when")

    def __init__(self, send: SendProgress, loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._last = -math.inf
        self._tokens = float(_BURST)
        self._when = loop.time()
        self._own = 0
        self._pending: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, note: Progress, *, own: bool = False) -> None:
        """Send the note now or soon; one that does not grow is dropped. After twelve of our own making they are slowed down."""
        if not math.isfinite(note.done) or note.done <= self._last:
            return
        self._last = note.done
        self._own += own
        self._pending = note
        if self._timer is None:
            self._deliver_if_due()

    def close(self) -> None:
        """Send what is still waiting and stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deliver()

    def _deliver_if_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        per_second = _PER_SECOND if self._own <= _OWN_NOTES else _OWN_PER_SECOND
        self._tokens = min(_BURST, self._tokens + (now - self._when) * per_second)
        self._when = now
        if self._tokens >= 1 - _ROUNDING:
            self._tokens -= 1
            self._deliver()
        elif self._pending is not None:
            self._timer = self._loop.call_later((1 - self._tokens) / per_second, self._deliver_if_due)

    def _deliver(self) -> None:
        note, self._pending = self._pending, None
        if note is not None:
            self._send(note)


_log = logging.getLogger(__name__)


def on_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this code runs on that loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def call_safely(send: Callable[[], None]) -> None:
    """Send something that the sender does not depend on: a door that fails must not fail the call."""
    try:
        send()
    except Exception:  # noqa: BLE001 - a door may raise anything
        _log.exception("door_failed")


class Noop:
    """Something that may be awaited and need not be."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


NOOP: Final = Noop()
