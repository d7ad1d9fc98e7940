"""Upgrades: the wish to speak something else than HTTP/1.1, which some clients always have and we are free not to grant."""

import re
from typing import Final

__all__ = ["Wishes"]

_WISH: Final = b"\r\nupgrade:"
_UPGRADE: Final = re.compile(_WISH, re.IGNORECASE)
_END: Final = b"\r\n\r\n"


class Wishes:
    """Takes the wish out of the heads of one connection, because a parser that sees it takes the body for something else."""

    def __init__(self) -> None:
        self.cut = b""
        """What a head that is not there whole ended with, and may become the wish."""

    def take_out(self, data: bytes) -> bytes:
        """Return what can be parsed of a piece that begins in a head."""
        head, end, rest = (self.cut + data).partition(_END)
        cut = 0 if end else _begun(head)
        self.cut = head[len(head) - cut :]
        return _UPGRADE.sub(b"\r\nx-upgrade:", head[: len(head) - cut]) + end + rest


def _begun(head: bytes) -> int:
    """Return how many bytes at the end may be the beginning of the wish, or of the end of the head."""
    tail = head[1 - len(_WISH) :].lower()
    return next((len(tail) - at for at in range(len(tail)) if _WISH.startswith(tail[at:]) or _END.startswith(tail[at:])), 0)
