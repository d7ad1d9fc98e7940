"""Takes in what an upstream sends, so that a flood of it does not delay the calls of others.

Data are taken in portions, one in each turn of the event loop, and a portion is as large as fits into a short time.
What nobody waits for may take a small share of the loop's time; beyond that nothing is read for a while. It does not
know what the data mean.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Intake", "Share"]

_SHARE: Final = 0.02
"""The part of the event loop's time that one upstream may take with what nobody waits for."""
_BURST_SECONDS: Final = 0.01
_TARGET_SECONDS: Final = 0.0002
"""How long a portion should take: about as long as one call."""
_READ_SECONDS: Final = 0.00005
"""What reading a portion and the turn of the loop cost besides: most of it, where the data are dropped."""
_FIRST_BYTES: Final = 2 * 1024
_MIN_BYTES: Final = 256
_MAX_BYTES: Final = 64 * 1024
_DISCARD_SECONDS: Final = 0.01


class Share:
    """The time that one upstream may take of the event loop, over all its connections and pipes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent = 0.0
        self._settled = clock()

    def charge(self, seconds: float) -> None:
        """Count time that was spent on something that nobody waits for."""
        self._settle()
        self._spent += seconds

    @property
    def wait(self) -> float:
        """Return the seconds until more may be taken in."""
        if self._spent <= _BURST_SECONDS:  # the usual case needs no clock
            return 0.0
        self._settle()
        return max(0.0, (self._spent - _BURST_SECONDS) / _SHARE)

    def _settle(self) -> None:
        now = self._clock()
        self._spent = max(0.0, self._spent - (now - self._settled) * _SHARE)
        self._settled = now


class Intake:
    """Passes data on in portions; its owner reads nothing while it is full.

    The time is that of the processor, so that other programs on a busy machine do not count.
    """

    def __init__(
        self,
        take: Callable[[bytes], None],
        share: Share,
        *,
        on_room: Callable[[], None],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._take = take
        self._share = share
        self._on_room = on_room
        self._clock = clock
        self._rest = memoryview(b"")
        self._portion_bytes = _FIRST_BYTES
        self._next: asyncio.Handle | None = None
        self._was_awaited = self._is_discarding = self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Return whether nothing more should be read now."""
        return self._next is not None

    @property
    def has_rest(self) -> bool:
        """Return whether there are data that were not passed on yet."""
        return bool(self._rest)

    def feed(self, data: bytes) -> None:
        """Pass the first portion on, and the others in later turns of the loop."""
        if self._is_discarding:
            self._go_on_after(_DISCARD_SECONDS)
        elif self._next is None:
            self._rest = memoryview(data)
            self._take_portion()
        else:
            self._rest = memoryview(bytes(self._rest) + data)

    def forgive(self) -> None:
        """Do not charge the current portion: it has a response that somebody waits for."""
        self._was_awaited = True

    def flush(self) -> None:
        """Pass all data on at once, because no more will come."""
        self._cancel()
        while self._rest and not self._is_discarding:
            self._take(self._next_portion())

    def discard(self) -> None:
        """Drop the data, and all that follow."""
        self._is_discarding = True
        self._rest = memoryview(b"")

    def close(self) -> None:
        """Drop the data, and do nothing later."""
        self.discard()
        self._cancel()
        self._is_closed = True

    def _take_portion(self) -> None:
        self._was_awaited = False
        portion = self._next_portion()
        started = self._clock()
        self._take(portion)
        seconds = self._clock() - started
        if seconds > 2 * _TARGET_SECONDS:
            self._portion_bytes = max(_MIN_BYTES, int(len(portion) * _TARGET_SECONDS / seconds))
        elif seconds < _TARGET_SECONDS / 2 and len(portion) == self._portion_bytes:
            self._portion_bytes = min(_MAX_BYTES, 2 * self._portion_bytes)
        if not self._was_awaited:
            self._share.charge(seconds + _READ_SECONDS)
        wait = self._share.wait
        if wait or self._rest:
            self._go_on_after(wait)

    def _next_portion(self) -> bytes:
        portion = bytes(self._rest[: self._portion_bytes])
        self._rest = self._rest[self._portion_bytes :]
        return portion

    def _go_on_after(self, wait: float) -> None:
        if self._next is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._next = loop.call_later(wait, self._go_on) if wait else loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._next = None
        if self._rest:
            self._take_portion()
        if self._next is None:
            self._on_room()

    def _cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
