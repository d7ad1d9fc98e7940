"""Pipes, terminals and files on the event loop: lines from bytes, a reader and a writer with back-pressure."""

import asyncio
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["LineSplitter", "Reader", "Writer"]

_READ_BYTES: Final = 64 * 1024
_POLL_S: Final = 0.1
_CLOSE_TIMEOUT_S: Final = 5.0
_HALF_CLOSED: Final[int] = getattr(select, "POLLRDHUP", 0)
"""A socket whose other side stopped writing; not every system has it."""


class LineSplitter:
    """Splits bytes into lines; skips blank lines, and a line that is too long, and reports each once."""

    def __init__(
        self,
        on_line: Callable[[bytes], None],
        *,
        limit: int,
        on_too_long: Callable[[], None] = lambda: None,
        on_blank: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_line = on_line
        self._limit = limit
        self._on_too_long = on_too_long
        self._on_blank = on_blank
        self._rest: list[bytes] = []
        """The pieces of a line that is not complete, which are joined once: a long line is copied no more than that."""
        self._size = 0
        self._skipping = False

    def feed(self, piece: bytes) -> None:
        """Pass on every line that is complete with this piece."""
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._finish(piece[start:end])
            start = end + 1
        if start < len(piece) and not self._skipping:
            self._rest.append(piece[start:])
            self._size += len(piece) - start
            if self._size > self._limit:
                self._on_too_long()
                self._skipping = True
                self._clear()

    def _finish(self, end: bytes) -> None:
        """Pass on a line with its last piece, unless it is too long."""
        line = b"".join((*self._rest, end)) if self._rest else end
        self._clear()
        if self._skipping:
            self._skipping = False
        elif len(line) > self._limit:
            self._on_too_long()
        elif line:
            self._on_line(line)
        else:
            self._on_blank()

    def flush(self) -> None:
        """Pass on the last line, which has no line break."""
        rest = b"".join(self._rest)
        self._clear()
        if rest:
            self._on_line(rest)

    def _clear(self) -> None:
        self._rest.clear()
        self._size = 0


class Reader:
    """Reads a pipe or a terminal on the loop, and a file in a thread; pauses while `is_full`.

    No event loop can watch a file.
    """

    def __init__(
        self,
        descriptor: int,
        on_data: Callable[[bytes], None],
        *,
        is_full: Callable[[], bool],
        on_end: Callable[[], None],
    ) -> None:
        self._descriptor = descriptor
        self._on_data = on_data
        self._is_full = is_full
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._room = threading.Event()
        self._watched = True
        self._paused = False
        self._closed = False
        self._poll_timer: asyncio.TimerHandle | None = None
        self._blocking = os.get_blocking(descriptor)
        try:
            self._loop.add_reader(descriptor, self._read)
            os.set_blocking(descriptor, False)
        except (OSError, RuntimeError):
            self._watched = False
            self._room.set()
            threading.Thread(target=self._read_in_thread, name="callyard stdin", daemon=True).start()

    def resume(self) -> None:
        """Read again if reading is paused and there is room."""
        if self._closed or not self._paused or self._is_full():
            return
        self._paused = False
        self._stop_polling()
        if self._watched:
            self._loop.add_reader(self._descriptor, self._read)
        else:
            self._room.set()

    def close(self) -> None:
        """Stop reading."""
        if self._closed:
            return
        self._closed = True
        self._stop_polling()
        self._room.set()
        if self._watched:
            self._loop.remove_reader(self._descriptor)
            os.set_blocking(self._descriptor, self._blocking)

    def _read(self) -> None:
        try:
            piece = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._deliver(piece)

    def _deliver(self, piece: bytes) -> None:
        if self._closed:
            return
        if not piece:
            self.close()
            self._on_end()
            return
        self._on_data(piece)
        if self._is_full():
            self._paused = True
            self._room.clear()
            if self._watched:
                self._loop.remove_reader(self._descriptor)
                self._poll_timer = self._loop.call_later(_POLL_S, self._check_hangup)

    def _check_hangup(self) -> None:
        """Detect a hang-up while paused; then read the rest despite the pause, because no more can come."""
        poll = select.poll()
        poll.register(self._descriptor, _HALF_CLOSED)
        if not poll.poll(0):
            self._poll_timer = self._loop.call_later(_POLL_S, self._check_hangup)
            return
        with suppress(OSError):
            while piece := os.read(self._descriptor, _READ_BYTES):
                self._on_data(piece)
        self.close()
        self._on_end()

    def _stop_polling(self) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None

    def _read_in_thread(self) -> None:
        while not self._closed:
            try:
                piece = os.read(self._descriptor, _READ_BYTES)
            except OSError:
                piece = b""
            if self._closed:  # while the read blocked; the loop may be closed, too
                return
            asyncio.run_coroutine_threadsafe(self._deliver_later(piece), self._loop).result()
            if not piece:
                return
            self._room.wait()

    async def _deliver_later(self, piece: bytes) -> None:
        self._deliver(piece)


class Writer:
    """Writes to a pipe, a terminal or a file; buffers what the other side does not read, and is full beyond a limit."""

    def __init__(self, descriptor: int, *, limit: int, terminator: bytes = b"") -> None:
        self.on_room: Callable[[], None] = lambda: None
        self._descriptor = descriptor
        self._limit = limit
        self._terminator = terminator
        self._pieces: list[bytes] = []
        self._left = memoryview(b"")
        self._size = 0
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._watched = False
        self.is_broken = False
        """Whether the other side hung up or this writer is closed."""
        self._blocking = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)

    @property
    def is_full(self) -> bool:
        """Return whether more than the limit is buffered."""
        return self._size > self._limit

    def write(self, piece: bytes) -> None:
        """Send a piece and its terminator; one system call per loop iteration sends all pieces."""
        if self.is_broken:
            return
        self._pieces.append(piece)
        self._size += len(piece) + len(self._terminator)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def close(self, *, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Send the rest, as far as the other side reads it before the timeout."""
        deadline = self._loop.time() + timeout_s
        while self._size and not self.is_broken and self._loop.time() < deadline:
            before = self._size
            self._flush()
            if self._size == before:
                await asyncio.sleep(0.01)  # polls, because the loop may be closing its watchers
        self.is_broken = True
        self._watched = False
        self._loop.remove_writer(self._descriptor)
        os.set_blocking(self._descriptor, self._blocking)

    def _flush(self) -> None:
        self._scheduled = False
        if self.is_broken:
            return
        if self._pieces and not self._left:
            self._pieces.append(b"")
            self._left = memoryview(self._terminator.join(self._pieces))
            self._pieces.clear()
        try:
            written = os.write(self._descriptor, self._left) if self._left else 0
        except BlockingIOError:
            written = 0
        except OSError:  # the other side hung up; the reader notices that, so it must not stay paused
            self.is_broken = True
            self._size = 0
            self._pieces.clear()
            self._stop_watching()
            self.on_room()
            return
        was_full = self.is_full
        self._left = self._left[written:]
        self._size -= written
        self._scheduled = bool(self._left or self._pieces)
        if not self._left:
            self._stop_watching()
            if self._pieces:
                self._loop.call_soon(self._flush)
        elif not self._watched:
            self._watched = True
            self._loop.add_writer(self._descriptor, self._flush)
        if was_full and not self.is_full:
            self.on_room()

    def _stop_watching(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_writer(self._descriptor)
