"""A writer: what goes out on a descriptor, all answers of one turn of the loop in one piece, without ever blocking the loop."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

__all__ = ["Writer"]

_PATIENCE: Final = 5.0


class Writer:
    """Writes to a pipe, a terminal or a file; what the other side does not take yet is kept, and said to be full beyond a limit."""

    def __init__(self, descriptor: int, *, limit: int, end: bytes = b"") -> None:
        self.on_room: Callable[[], None] = lambda: None
        self._descriptor = descriptor
        self._limit = limit
        self._end = end
        self._pieces: list[bytes] = []
        self._left = memoryview(b"")
        self._size = 0
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._broken = False
        self._blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)

    @property
    def is_full(self) -> bool:
        """Return whether the other side is too slow for more."""
        return self._size > self._limit

    @property
    def is_broken(self) -> bool:
        """Return whether nothing can be sent any more, because the other side is gone or this one was closed."""
        return self._broken

    def write(self, piece: bytes) -> None:
        """Send a piece and its end, together with whatever else is said in this turn of the loop."""
        if self._broken:
            return
        self._pieces.append(piece)
        self._size += len(piece) + len(self._end)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def close(self, *, patience: float = _PATIENCE) -> None:
        """Send what is left, if the other side takes it within so many seconds."""
        deadline = self._loop.time() + patience
        while self._size and not self._broken and self._loop.time() < deadline:
            before = self._size
            self._flush()
            if self._size == before:
                await asyncio.sleep(0.01)  # the loop may be ending, so nobody is asked to tell
        self._broken = True
        self._loop.remove_writer(self._descriptor)
        os.set_blocking(self._descriptor, self._blocking)

    def _flush(self) -> None:
        self._scheduled = False
        if self._broken:
            return
        if self._pieces and not self._left:
            self._pieces.append(b"")
            self._left = memoryview(self._end.join(self._pieces))
            self._pieces.clear()
        try:
            written = os.write(self._descriptor, self._left) if self._left else 0
        except BlockingIOError:
            written = 0
        except OSError:  # the other side is gone; its going is seen on the way in, so that must go on
            self._broken = True
            self._size = 0
            self._pieces.clear()
            self.on_room()
            return
        was_full = self.is_full
        self._left = self._left[written:]
        self._size -= written
        self._wait_or_go_on()
        if was_full and not self.is_full:
            self.on_room()

    def _wait_or_go_on(self) -> None:
        if self._left:
            self._scheduled = True
            self._loop.add_writer(self._descriptor, self._resume)
        elif self._pieces:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _resume(self) -> None:
        self._loop.remove_writer(self._descriptor)
        self._flush()
