"""Stderr of a process, read into its log; a flood is read with rests, so that it costs little and the process can go on."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final

from toolyard.pipes.reader import Reader
from toolyard.providers.upstream.process_log import ProcessLog

__all__ = ["Stderr"]

_REST: Final = 0.002
_PIPE_BYTES: Final = 1024 * 1024


class Stderr:
    """Reads until it is closed or nobody can write any more."""

    def __init__(self, descriptor: int, log: ProcessLog, *, on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._reader = Reader(descriptor, self._take, is_full=lambda: self._resting is not None, on_end=on_end)

    def close(self) -> None:
        """Take what is there already, and read no more."""
        with contextlib.suppress(OSError):
            self._log.feed(os.read(self._descriptor, _PIPE_BYTES))
        self._reader.close()
        if self._resting is not None:
            self._resting.cancel()

    def _take(self, piece: bytes) -> None:
        self._log.feed(piece)
        if self._log.is_flooded:
            self._resting = self._loop.call_later(_REST, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        self._reader.go_on()
