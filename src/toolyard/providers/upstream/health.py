"""Health: how an upstream is doing, by what happened to those who used it, and whether it may be used now."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from toolyard._internal.files import read_private, write_atomically
from toolyard._internal.logfmt import log_value
from toolyard.providers.upstream.link import Credentials, LinkError

__all__ = ["Breaker", "Health", "State", "Status", "ask_for_restart", "keep_status", "read_status", "restart_asked_at"]


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


State = Literal["cold", "starting", "ready", "degraded", "backing_off", "auth_needed", "stopped"]
_STATUS: Final = "status.json"
_RESTART: Final = "restart"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How one upstream is, and why."""

    name: str
    state: State
    reason: str = ""
    since: float = 0.0
    """When it came to be so, in seconds of the wall clock."""
    server: str = ""
    """What it calls itself."""
    version: str = ""
    """The version of the protocol it speaks."""
    tools: int = 0
    resources: int = 0
    prompts: int = 0
    withheld: int = 0
    """Things that it has and that are not published."""
    warned: int = 0
    """Things that are published although nobody accepted them as they are."""
    calls: int = 0
    failures: int = 0
    latency_ms: float | None = None
    """What a call took lately, on average."""
    last_error: str = ""
    retry_at: float | None = None
    """When it may be tried again, in seconds of the wall clock."""
    seen: float | None = None
    """When what it offers was last looked at."""
    pid: int = 0
    """The yard that says so."""


def keep_status(folder: Path, status: Status) -> None:
    """Keep how an upstream is where commands of other processes find it.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(folder / _STATUS, msgspec.json.encode(status))


def read_status(folder: Path) -> Status | None:
    """Return how an upstream is, as the yard that uses it last said; nothing if no yard that still runs uses it."""
    with suppress(OSError, msgspec.DecodeError):
        status = msgspec.json.decode(read_private(folder / _STATUS), type=Status)
        return status if status.state != "stopped" and _is_alive(status.pid) else None
    return None


def ask_for_restart(folder: Path) -> None:
    """Ask whichever yard uses an upstream to start it anew.

    Raises:
        OSError: That cannot be written.
    """
    write_atomically(folder / _RESTART, b"")


def restart_asked_at(folder: Path) -> float:
    """Return when somebody last asked for that, in seconds of the wall clock."""
    with suppress(OSError):
        return (folder / _RESTART).stat().st_mtime
    return 0.0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
        _log.log(level, "upstream_changed upstream=%s state=%s reason=%s", self._name, state, log_value(reason))
        self._changed()
