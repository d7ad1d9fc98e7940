"""Remembered tokens: whom a token admitted, so that it need not be checked at every call."""

from hashlib import sha256
from typing import Final

from toolyard.transports.auth.guard import Admitted

__all__ = ["Remembered"]

_SECONDS: Final = 300.0
_TOKENS: Final = 4096


class Remembered:
    """Keeps whom tokens admitted, by their hashes, for some minutes, and forgets the oldest beyond a number."""

    def __init__(self, size: int = _TOKENS) -> None:
        self._size = size
        self._kept: dict[bytes, tuple[Admitted, float, float]] = {}

    def __len__(self) -> int:
        """Return how many tokens are kept."""
        return len(self._kept)

    def find(self, token: str, now: float) -> Admitted | None:
        """Return whom a token admitted, if it still does."""
        key = _hash(token)
        kept = self._kept.get(key)
        if kept is None:
            return None
        admitted, since, until = kept
        # A clock that was put back must not make a token live longer.
        if since <= now < until:
            return admitted
        del self._kept[key]
        return None

    def keep(self, token: str, admitted: Admitted, *, now: float, end: float) -> None:
        """Keep whom a token admits until its end."""
        while len(self._kept) >= self._size:
            del self._kept[next(iter(self._kept))]
        self._kept[_hash(token)] = (admitted, now, min(end, now + _SECONDS))

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()


def _hash(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
