"""Pace: progress of a call that runs other calls, kept back until the call has lasted long enough to be worth it."""

import asyncio
from types import TracebackType
from typing import Final, Self

from toolyard.call import Call
from toolyard.progress import Note

__all__ = ["Pace"]

_SECONDS: Final = 0.1


class Pace:
    """Tells how far a call has come, from a tenth of a second on: a quick call stays a single answer."""

    __slots__ = ("_call", "_last", "_ripe", "_timer", "_told")

    def __init__(self, call: Call, first: Note, *, told: bool = False) -> None:
        self._call = call
        self._last = first
        self._ripe = False
        self._told = told
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if self._call.door.progress is not None:
            self._timer = self._call.funnel.loop.call_later(_SECONDS, self._ripen)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, note: Note) -> None:
        """Tell this now, or once it is time."""
        self._last = note
        if self._ripe:
            self._tell()

    def forward(self, note: Note) -> None:
        """Tell at once what an inner call says of itself, in place of what would have been said of it."""
        self._told = True
        self._call.progress(note.done, note.total, note.text)

    @property
    def heard(self) -> bool:
        """Return whether anybody is told."""
        return self._timer is not None

    @property
    def silent(self) -> bool:
        """Return whether no inner call said anything of its own."""
        return not self._told

    def _ripen(self) -> None:
        self._ripe = True
        if not self._told:
            self._tell()

    def _tell(self) -> None:
        self._call.progress(self._last.done, self._last.total, self._last.text, own=True)
