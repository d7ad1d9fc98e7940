"""A breaker: whether an upstream may be tried now, after what happened to those who tried."""

from collections.abc import Callable
from typing import Final

__all__ = ["Breaker"]

_PATIENCE: Final = 3
"""Failures in a row that are forgiven: a crash must not keep the next call waiting."""
_FIRST: Final = 1.0
_LONGEST: Final = 60.0
_PROBE: Final = 1.0


class Breaker:
    """Counts failures in a row; from the third on it keeps callers away, twice as long each time, then lets one try for all."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._failed_at = float("-inf")
        self._until = float("-inf")
        self._probing = False

    @property
    def failures(self) -> int:
        """Return how often it failed in a row."""
        return self._failures

    @property
    def wait(self) -> float:
        """Return the seconds that nobody may try for."""
        return max(0.0, self._until - self._clock())

    def admit(self) -> float:
        """Return how many seconds whoever asks must wait; 0 lets him try, and he must say how it went."""
        wait = self.wait
        if wait or self._failures < _PATIENCE:
            return wait
        if self._probing:
            return _PROBE
        self._probing = True
        return 0.0

    def succeed(self) -> None:
        """Take note that it works."""
        self._failures = 0
        self._until = float("-inf")
        self._probing = False

    def fail(self, began: float, *, retry_after: float | None = None) -> None:
        """Take note that something that began then did not work; all that was under way at the time counts as one failure."""
        self._probing = False
        now = self._clock()
        if retry_after is not None:
            self._until = max(self._until, now + retry_after)
        if began <= self._failed_at:
            return
        self._failed_at = now
        self._failures += 1
        if self._failures >= _PATIENCE:
            longest = min(_LONGEST, _FIRST * 2 ** (self._failures - _PATIENCE))
            self._until = max(self._until, now + longest * _about_one())

    def abandon(self) -> None:
        """Take note that whoever tried gave up before it was clear."""
        self._probing = False

    def reset(self) -> None:
        """Forget everything, because a person says so."""
        self.succeed()
        self._failed_at = float("-inf")


def _about_one() -> float:
    """Return a factor by chance, so that not all come back at once."""
    import random  # noqa: PLC0415 - what is well needs no chance, and starts sooner

    return random.uniform(0.5, 1.0)  # noqa: S311 - no secret
