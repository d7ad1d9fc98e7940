"""The shelf: streams that are over, of all visits together, kept for a while in case that their clients come back."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from toolyard.transports.http.streams import Stream

__all__ = ["Shelf"]

_READ_SECONDS: Final = 10.0
"""How long one is kept that was written whole: its last bytes may have been lost on their way."""


class _Place(NamedTuple):
    until: float
    size: int
    forget: Callable[[Stream], None]


class Shelf:
    """Keeps streams for so many seconds and within so many bytes; those that were read go first, and then the oldest."""

    def __init__(self, seconds: float, room: int) -> None:
        self._seconds = seconds
        self._room = room
        self._read: OrderedDict[Stream, _Place] = OrderedDict()
        self._unread: OrderedDict[Stream, _Place] = OrderedDict()
        self._loop = asyncio.get_running_loop()

    def put(self, stream: Stream, forget: Callable[[Stream], None]) -> None:
        """Keep a stream from now on, and say so when it is kept no longer."""
        self.take(stream)
        row, seconds = (self._read, min(self._seconds, _READ_SECONDS)) if stream.was_read else (self._unread, self._seconds)
        row[stream] = _Place(self._loop.time() + seconds, stream.size, forget)
        self._room -= stream.size
        self.sweep()

    def take(self, stream: Stream) -> None:
        """Keep a stream no longer, if it is kept."""
        place = self._read.pop(stream, None) or self._unread.pop(stream, None)
        if place is not None:
            self._room += place.size

    def sweep(self) -> None:
        """Forget those whose time is up, and as many more as there is no room for."""
        now = self._loop.time()
        for row in (self._read, self._unread):
            while row and (self._room < 0 or next(iter(row.values())).until <= now):
                stream, place = row.popitem(last=False)
                self._room += place.size
                place.forget(stream)
