"""A reader: what comes in on a descriptor, piece by piece, and not faster than it can be taken."""

import asyncio
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["Lines", "Reader", "Writer"]


class Lines:
    """Hands on every complete line; one that is too long is told of once and then skipped."""

    def __init__(self, take: Callable[[bytes], None], *, limit: int, too_long: Callable[[], None] = lambda: None) -> None:
        self._take = take
        self._limit = limit
        self._too_long = too_long
        self._buffer = bytearray()
        self._skipping = False

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        if not self._buffer and not self._skipping and piece.endswith(b"\n"):  # the everyday case: whole lines
            rest = piece
        else:
            searched = len(self._buffer)
            self._buffer += piece
            end = self._buffer.rfind(b"\n", searched)
            if end < 0:
                self._check_length()
                return
            rest = bytes(self._buffer[: end + 1])
            del self._buffer[: end + 1]
        for line in rest.split(b"\n"):
            if self._skipping:
                self._skipping = False
            elif len(line) > self._limit:
                self._too_long()
            elif line:
                self._take(line)
        self._check_length()

    def end(self) -> None:
        """Take what came without an end."""
        if self._buffer and not self._skipping:
            self._take(bytes(self._buffer))
        self._buffer.clear()

    def _check_length(self) -> None:
        if self._skipping:
            self._buffer.clear()
        elif len(self._buffer) > self._limit:
            self._too_long()
            self._skipping = True
            self._buffer.clear()


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
