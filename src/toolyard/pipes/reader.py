"""A reader: what comes in on a descriptor, piece by piece, and not faster than it can be taken."""

import asyncio
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["Reader"]

_PIECE: Final = 64 * 1024
_LOOK: Final = 0.1
_HALF: Final[int] = getattr(select, "POLLRDHUP", 0)  # what a socket says whose other side only listens from now on; not known everywhere


class Reader:
    """Reads a pipe or a terminal as the loop says, and a file, which no loop can watch, in a thread."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None], *, is_full: Callable[[], bool], on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._is_full = is_full
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._room = threading.Event()
        self._watched = True
        self._paused = False
        self._closed = False
        self._look: asyncio.TimerHandle | None = None
        self._blocking = os.get_blocking(descriptor)
        try:
            self._loop.add_reader(descriptor, self._read)
            os.set_blocking(descriptor, False)
        except (OSError, RuntimeError):
            self._watched = False
            self._room.set()
            threading.Thread(target=self._read_in_thread, name="toolyard stdin", daemon=True).start()

    def go_on(self) -> None:
        """Read again, if it was paused and there is room now."""
        if self._closed or not self._paused or self._is_full():
            return
        self._paused = False
        self._stop_looking()
        if self._watched:
            self._loop.add_reader(self._descriptor, self._read)
        else:
            self._room.set()

    def close(self) -> None:
        """Read no more."""
        if self._closed:
            return
        self._closed = True
        self._stop_looking()
        self._room.set()
        if self._watched:
            self._loop.remove_reader(self._descriptor)
            os.set_blocking(self._descriptor, self._blocking)

    def _read(self) -> None:
        try:
            piece = os.read(self._descriptor, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._hand_on(piece)

    def _hand_on(self, piece: bytes) -> None:
        if self._closed:
            return
        if not piece:
            self.close()
            self._on_end()
            return
        self._take(piece)
        if self._is_full():
            self._paused = True
            self._room.clear()
            if self._watched:
                self._loop.remove_reader(self._descriptor)
                self._look = self._loop.call_later(_LOOK, self._look_whether_gone)

    def _look_whether_gone(self) -> None:
        """Notice while nothing is read that the other side is gone; what it left is taken then, since it grows no more."""
        poll = select.poll()
        poll.register(self._descriptor, _HALF)
        if not poll.poll(0):
            self._look = self._loop.call_later(_LOOK, self._look_whether_gone)
            return
        with suppress(OSError):
            while piece := os.read(self._descriptor, _PIECE):
                self._take(piece)
        self.close()
        self._on_end()

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _read_in_thread(self) -> None:
        while not self._closed:
            try:
                piece = os.read(self._descriptor, _PIECE)
            except OSError:
                piece = b""
            if self._closed:  # while it was waited for, and its loop may be, too
                return
            taken = asyncio.run_coroutine_threadsafe(self._hand_on_later(piece), self._loop)
            taken.result()
            if not piece:
                return
            self._room.wait()

    async def _hand_on_later(self, piece: bytes) -> None:
        self._hand_on(piece)
