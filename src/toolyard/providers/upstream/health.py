"""Health: how an upstream is doing, by what happened to those who used it, and whether it may be used now."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from toolyard.logline import quoted
from toolyard.providers.upstream.breaker import Breaker
from toolyard.providers.upstream.link import Credentials, LinkError
from toolyard.providers.upstream.status import State

__all__ = ["Health"]

_SMOOTH: Final = 0.2
_SERVER_ERROR: Final = 500
_FORBIDDEN: Final = 403
_WORDS: Final = 1000
_log = logging.getLogger(__name__)


class Health:
    """The state of one upstream, and why it is so."""

    def __init__(self, name: str, credentials: Credentials, *, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        self.state: State = "cold"
        self.reason = "Nothing has been asked of it yet."
        self.since = time.time()
        self.last_error = ""
        self.calls = 0
        self.failures = 0
        self.latency_ms: float | None = None
        self._breaker = Breaker(clock)
        self._name = name
        self._credentials = credentials
        self._clock = clock
        self._changed = changed
        self._refused: tuple[LinkError, Mapping[str, str] | None] | None = None

    @property
    def wait(self) -> float:
        """Return the seconds that nobody may try for."""
        return self._breaker.wait

    @property
    def may_be_looked_at(self) -> bool:
        """Return whether nothing stands against trying it now, unasked."""
        return not self._breaker.wait and self._refusal is None

    @property
    def _refusal(self) -> LinkError | None:
        """Return why we are not let in, unless somebody signed in meanwhile."""
        if self._refused is not None and self._credentials.ready() != self._refused[1]:
            self._refused = None
        return None if self._refused is None else self._refused[0]

    def admit(self) -> None:
        """Let a call try, or refuse at once what cannot work now.

        Raises:
            LinkError: It cannot.
        """
        refusal = self._refusal
        if refusal is not None:  # each time another, because one that is raised again and again grows
            raise LinkError(refusal.trouble, refusal.message, status=refusal.status, text=refusal.text, challenge=refusal.challenge)
        wait = self._breaker.admit()
        if wait:
            said = f"'{self._name}' is left alone for {wait:.1f} seconds. {self.last_error}".strip()
            raise LinkError("unavailable", said, retry_after=wait)

    def abandon(self) -> None:
        """Take note that whoever tried gave up before it was clear."""
        self._breaker.abandon()

    def succeed(self, began: float) -> None:
        """Take note that something that began then went well."""
        took = (self._clock() - began) * 1000
        self.latency_ms = took if self.latency_ms is None else self.latency_ms + _SMOOTH * (took - self.latency_ms)
        if self.state != "ready":
            self.become("ready", "")
        if self._breaker.failures:
            self._breaker.succeed()

    def fail(self, began: float, error: LinkError, *, alone: bool = False) -> None:
        """Take note that something that began then went wrong; what we asked `alone` cannot be some caller's fault."""
        said = error.message[:_WORDS]
        self.failures += 1
        self.last_error = said
        if error.trouble == "unauthenticated" and error.status == _FORBIDDEN and not alone:
            self._breaker.abandon()  # what one call may not do says nothing of the others
        elif error.trouble == "unauthenticated":
            self._breaker.abandon()
            self._refused = (error, self._credentials.ready())
            self.become("auth_needed", said)
        elif error.trouble == "session_lost" or (not alone and error.trouble == "refused" and (error.status or 0) < _SERVER_ERROR):
            self._breaker.abandon()
        else:
            self._breaker.fail(began, retry_after=error.retry_after)
            self.become("backing_off" if self._breaker.wait else "degraded", said)

    def forgive(self) -> None:
        """Hold nothing against the upstream any more, because a person says so."""
        self._breaker.reset()
        self._refused = None

    def become(self, state: State, reason: str) -> None:
        """Be in this state from now on; one that is stopped stays so."""
        if self.state == "stopped" or (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason, self.since = state, reason, time.time()
        level = logging.WARNING if state == "auth_needed" else logging.INFO  # nothing but a person ends that
        _log.log(level, "upstream_changed upstream=%s state=%s reason=%s", self._name, state, quoted(reason))
        self._changed()
