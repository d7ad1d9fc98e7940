"""Lines: from pieces of a stream to messages, one to a line, however it was cut."""

from collections.abc import Callable

__all__ = ["Lines"]


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
