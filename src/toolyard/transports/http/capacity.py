"""How much may be open at one time, in all and for one identity: requests in work, and connections.

Callers without credentials have no identity to count by; for them only the total is bounded.
"""

import logging
import os
import resource
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from toolyard._internal.logfmt import log_value
from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE
from toolyard.transports.http.request import RefusedError, Release

if TYPE_CHECKING:
    from toolyard.transports.http.protocol import Connection

__all__ = ["Connections", "Requests", "Throttle"]

_RETRY: Final = ((b"retry-after", b"1"),)
_QUIET_SECONDS: Final = 10.0
_RESERVED_DESCRIPTORS: Final = 64
"""Descriptors that connections leave to files, upstreams and tools."""
_log = logging.getLogger(__name__)


class Throttle:
    """Lets one of many equal log lines through in a while, so that strangers cannot fill the log."""

    def __init__(self, seconds: float = _QUIET_SECONDS) -> None:
        self._seconds = seconds
        self._next = 0.0
        self._count = 0

    def count(self) -> int:
        """Count an event; return how many there were since the last line, or 0 if it is too early for another."""
        self._count += 1
        now = time.monotonic()
        if now < self._next:
            return 0
        self._next = now + self._seconds
        count, self._count = self._count, 0
        return count


class _Counts:
    """Counts by identity, up to a limit for each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    def add(self, identity: str) -> bool:
        """Count one more; return False if there are too many."""
        count = self._counts.get(identity, 0)
        if count >= self._limit:
            return False
        self._counts[identity] = count + 1
        return True

    def remove(self, identity: str) -> None:
        """Count one less."""
        self._counts[identity] -= 1
        if not self._counts[identity]:
            del self._counts[identity]


class Requests:
    """The requests in work."""

    def __init__(self, serving: Serving) -> None:
        self._limit = serving.requests
        self._running = 0
        self._by_identity = _Counts(serving.requests_per_identity)
        self._throttle = Throttle()

    def enter(self, identity: str) -> Release:
        """Count a request; return what is called at its end.

        Raises:
            RefusedError: 503 if there are too many.
        """
        if self._running >= self._limit:
            raise self._refusal("The server has too many requests in work.", "all")
        if identity == ANYONE.identity:
            self._running += 1
            return self._leave
        if not self._by_identity.add(identity):
            raise self._refusal("These credentials have too many requests in work.", identity)
        self._running += 1
        return partial(self._leave_as, identity)

    def _leave(self) -> None:
        self._running -= 1

    def _leave_as(self, identity: str) -> None:
        self._running -= 1
        self._by_identity.remove(identity)

    def _refusal(self, sentence: str, identity: str) -> RefusedError:
        if count := self._throttle.count():
            _log.warning("requests_refused identity=%s in_work=%d times=%d", log_value(identity), self._running, count)
        return RefusedError(503, sentence, _RETRY)


class Connections:
    """The connections of one server; one that never had an admitted request makes room for a new one."""

    def __init__(self, serving: Serving) -> None:
        self.all: dict[Connection, None] = {}
        self._strangers: dict[Connection, None] = {}
        """Those without an admitted request, the oldest first."""
        self._limit = min(serving.connections, _descriptors() - _RESERVED_DESCRIPTORS)
        self._by_identity = _Counts(serving.connections_per_identity)
        self._throttle = Throttle()
        self._descriptor_throttle = Throttle()

    def add(self, connection: "Connection") -> None:
        """Add a new connection; if there are too many, the oldest stranger is turned away, or else the new one."""
        self.all[connection] = None
        self._strangers[connection] = None
        if len(self.all) > self._limit:
            if count := self._throttle.count():
                _log.warning("connections_refused open=%d strangers=%d times=%d", len(self.all), len(self._strangers), count)
            stranger = next(iter(self._strangers))
            del self._strangers[stranger]
            stranger.turn_away()

    def remove(self, connection: "Connection") -> None:
        """Forget a closed connection."""
        self.all.pop(connection, None)
        self._strangers.pop(connection, None)
        if connection.identity is not None:
            self._by_identity.remove(connection.identity)
            connection.identity = None

    def admit(self, connection: "Connection", identity: str | None) -> bool:
        """Count a connection for the identity of its newest request; return False if it has too many."""
        self._strangers.pop(connection, None)
        if identity == connection.identity:
            return True
        if identity is not None and not self._by_identity.add(identity):
            if count := self._throttle.count():
                _log.warning("connections_refused identity=%s times=%d", log_value(identity), count)
            return False
        if connection.identity is not None:
            self._by_identity.remove(connection.identity)
        connection.identity = identity
        return True

    def check_descriptors(self, descriptor: int) -> None:
        """Log if the process has no file descriptors left, because event loops then drop new connections silently."""
        try:
            os.close(os.dup(descriptor))
        except OSError as error:
            if count := self._descriptor_throttle.count():
                _log.error("descriptors_exhausted limit=%d connections=%d times=%d error=%s", _descriptors(), len(self.all), count, error)


def _descriptors() -> int:
    """Return how many file descriptors the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft, 2 * _RESERVED_DESCRIPTORS) if soft != resource.RLIM_INFINITY else 1 << 30
