"""State of a running program, for every runtime: the head and tail of its output, and its clock."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

__all__ = ["HeadAndTail", "RunClock"]

_CHECK_S: Final = 0.05


class HeadAndTail:
    """The head and tail of a stream of any length."""

    def __init__(self, characters: int) -> None:
        self._half = max(characters // 2, 1)
        self._head, self._tail, self._cut = "", "", 0

    def add(self, text: str) -> None:
        """Add a text at the end."""
        room = self._half - len(self._head)
        self._head += text[:room]
        rest = self._tail + text[room:]
        self._cut += max(len(rest) - self._half, 0)
        self._tail = rest[-self._half :] if rest else ""

    def __str__(self) -> str:
        """Return the text, with a line in place of what was cut."""
        return f"{self._head}\n… {self._cut} characters left out …\n{self._tail}" if self._cut else self._head + self._tail


class RunClock:
    """Calls back when a program has run for so many seconds; time that is paused does not count."""

    def __init__(self, seconds: float, paused: Callable[[], float], expire: Callable[[], None]) -> None:
        self._seconds, self._paused, self._expire = seconds, paused, expire
        self._began = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._check)

    @property
    def seconds(self) -> float:
        """Return the running time so far."""
        return max(time.monotonic() - self._began - self._paused(), 0.0)

    def stop(self) -> None:
        """Stop the clock."""
        self._timer.cancel()

    def _check(self) -> None:
        left = self._seconds - self.seconds
        if left <= 0:
            self._expire()
        else:  # a pause may last for days: look again now and then
            self._timer = self._loop.call_later(max(left, _CHECK_S), self._check)
