"""The health of an upstream: a circuit breaker, the state that people see, and the files that share it."""

import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from callyard._internal.files import read_private, write_atomically
from callyard._internal.logfmt import log_value
from callyard._internal.mask import mask_text, secrets_in
from callyard.providers.upstream.link import Credentials, LinkError
from callyard.providers.upstream.settings import Carrier

__all__ = [
    "Breaker",
    "Health",
    "State",
    "Status",
    "Supervised",
    "more_command",
    "read_last_status",
    "read_status",
    "request_restart",
    "restart_requested_at",
    "supervised",
    "write_status",
]

State = Literal["cold", "starting", "ready", "degraded", "backing_off", "auth_needed", "stopped"]
_THRESHOLD: Final = 3
"""The breaker opens with this many failures in a row; a single crash must not delay the next call."""
_FIRST_WAIT_SECONDS: Final = 1.0
_LONGEST_WAIT_SECONDS: Final = 60.0
_PROBE_WAIT_SECONDS: Final = 1.0
"""How long others wait while one call probes the upstream."""
_NEVER: Final = float("-inf")
_SMOOTHING: Final = 0.2
_SERVER_ERROR: Final = 500
_FORBIDDEN: Final = 403
_ERROR_CHARACTERS: Final = 1000
_STATUS_FILE: Final = "status.json"
_RESTART_FILE: Final = "restart"
_log = logging.getLogger(__name__)


class Breaker:
    """A circuit breaker: opens after three failures in a row, for twice as long each time, then lets one call probe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed_at = _NEVER
        self.succeed()

    @property
    def wait(self) -> float:
        """Return the seconds until the next attempt is allowed."""
        return max(0.0, self._open_until - self._clock())

    def admit(self) -> float:
        """Return the seconds to wait; with 0 the caller may try, and must report the outcome."""
        wait = self.wait
        if wait or self.failures < _THRESHOLD:
            return wait
        if self._is_probing:
            return _PROBE_WAIT_SECONDS
        self._is_probing = True
        return 0.0

    def succeed(self) -> None:
        """Close the breaker."""
        self.failures = 0
        self._open_until = _NEVER
        self._is_probing = False

    def fail(self, started: float, *, retry_after: float | None = None) -> None:
        """Record that an attempt that started then failed; attempts that ran at the same time count as one failure."""
        self._is_probing = False
        now = self._clock()
        if retry_after is not None:
            self._open_until = max(self._open_until, now + retry_after)
        if started <= self._failed_at:
            return
        self._failed_at = now
        self.failures += 1
        if self.failures >= _THRESHOLD:
            longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2 ** (self.failures - _THRESHOLD))
            spread = random.uniform(0.5, 1.0)  # noqa: S311 - no secret: not all yards should come back at once
            self._open_until = max(self._open_until, now + longest * spread)

    def abandon(self) -> None:
        """Record that an attempt ended without an outcome, so that another call may probe."""
        self._is_probing = False

    def reset(self) -> None:
        """Close the breaker and forget the last failure."""
        self.succeed()
        self._failed_at = _NEVER


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one upstream, as commands show it."""

    name: str
    state: State
    reason: str = ""
    since: float = 0.0
    """When it entered this state, in seconds of the wall clock."""
    server: str = ""
    """The name that the server gives itself."""
    version: str = ""
    tools: int = 0
    resources: int = 0
    prompts: int = 0
    withheld: int = 0
    """Items that it lists and that are not published."""
    warned: int = 0
    """Items that are published although nobody accepted their current definition."""
    unsettled: int = 0
    """Tools of which neither the upstream nor a person has said what they do."""
    calls: int = 0
    failures: int = 0
    latency_ms: float | None = None
    last_error: str = ""
    failed: float | None = None
    """When its last attempt failed, in seconds of the wall clock; None if that succeeded."""
    retry_at: float | None = None
    """When it may be tried again, in seconds of the wall clock."""
    seen: float | None = None
    """When its catalogue was last fetched."""
    pid: int | None = None
    """The process of the upstream, if it is a running program."""
    yard_pid: int = 0
    """The process of the yard that wrote this."""

    @property
    def is_failing(self) -> bool:
        """Return whether it needs a person."""
        return self.state in {"degraded", "backing_off", "auth_needed"}


class Supervised:
    """A provider with a connection that is supervised, so that it has a status."""

    name: str
    prefix: str
    """What is in front of the names of its tools; empty if they keep their own."""

    @property
    def is_settled(self) -> bool:
        """Return whether something is published, or it is clear that nothing can be for now."""
        raise NotImplementedError

    def status(self) -> Status:
        """Return the state of the connection."""
        raise NotImplementedError


def supervised(providers: Iterable[object]) -> list[Supervised]:
    """Return the providers that have a status."""
    return [provider for provider in providers if isinstance(provider, Supervised)]


def write_status(folder: Path, status: Status) -> None:
    """Write a status for commands of other processes.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(folder / _STATUS_FILE, msgspec.json.encode(status))


def read_status(folder: Path) -> Status | None:
    """Return the status that a running yard wrote, or None if no running yard uses the upstream."""
    status = read_last_status(folder)
    return status if status is not None and status.state != "stopped" and _is_alive(status.yard_pid) else None


def read_last_status(folder: Path) -> Status | None:
    """Return the status that the last yard or check wrote, whether it still runs or not."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(read_private(folder / _STATUS_FILE), type=Status)
    return None


def more_command(name: str, carrier: Carrier) -> str:
    """Return the command that shows an operator more about a failing upstream; only programs have a log."""
    return f"callyard logs {name}" if carrier == "stdio" else "callyard upstreams --check"


def request_restart(folder: Path) -> None:
    """Ask the yard that uses an upstream to restart it.

    Raises:
        OSError: The request cannot be written.
    """
    write_atomically(folder / _RESTART_FILE, b"")


def restart_requested_at(folder: Path) -> float:
    """Return when a restart was last requested, in seconds of the wall clock; 0 if never."""
    with suppress(OSError):
        return (folder / _RESTART_FILE).stat().st_mtime
    return 0.0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # it runs, as another user
    return True


class Health:
    """The state of one upstream, and the reason for it."""

    def __init__(
        self,
        name: str,
        credentials: Credentials,
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        secrets: Iterable[str] = (),
    ) -> None:
        self.state: State = "cold"
        self.reason = "Nothing has been asked of it yet."
        self.since = time.time()
        self.last_error = ""
        self.failed: float | None = None
        self.calls = 0
        self.failures = 0
        self.latency_ms: float | None = None
        self._breaker = Breaker(clock)
        self._name = name
        self._credentials = credentials
        self._clock = clock
        self._changed = changed
        self._secrets = frozenset(secrets)
        self._refused: tuple[LinkError, Mapping[str, str] | None] | None = None
        """The refusal of our credentials, and the headers that were refused."""

    @property
    def wait(self) -> float:
        """Return the seconds until the next attempt is allowed."""
        return self._breaker.wait

    @property
    def allows_attempt(self) -> bool:
        """Return whether the yard may try the upstream for itself."""
        return not self._breaker.wait and self._refusal is None

    @property
    def _refusal(self) -> LinkError | None:
        """Return the refusal of our credentials, unless there are others now."""
        if self._refused is not None and self._credentials.ready() != self._refused[1]:
            self._refused = None
        return None if self._refused is None else self._refused[0]

    def admit(self) -> None:
        """Admit a call.

        Raises:
            LinkError: The call cannot succeed now.
        """
        refusal = self._refusal
        if refusal is not None:  # a copy: without the answer to another caller, and without a traceback that grows
            raise LinkError(
                refusal.kind,
                refusal.message,
                status=refusal.status,
                private=refusal.private,
                challenge=refusal.challenge,
            )
        wait = self._breaker.admit()
        if wait:
            text = f"'{self._name}' failed several times and is not called for another {wait:.1f} seconds."
            raise LinkError("unavailable", text, retry_after=wait, private=self.last_error)

    def abandon(self) -> None:
        """Record that an attempt ended without an outcome."""
        self._breaker.abandon()

    def succeed(self, started: float) -> None:
        """Record that an attempt that started then succeeded."""
        took = (self._clock() - started) * 1000
        self.latency_ms = took if self.latency_ms is None else self.latency_ms + _SMOOTHING * (took - self.latency_ms)
        if self.state != "ready":
            self.set_state("ready", "")
        if self._breaker.failures:
            self._breaker.succeed()

    def fail(self, started: float, error: LinkError, *, own_request: bool = False) -> None:
        """Record that an attempt that started then failed; the error of an own request cannot be a caller's fault."""
        self.failures += 1
        # The last line of stderr usually names the cause. After calls it may hold their contents, so then only the
        # process log has it.
        cause = error.private.strip().splitlines()[-1:] if error.kind != "lost" else []
        secrets = self._secrets | secrets_in(dict(self._credentials.ready() or {}))
        self.last_error = mask_text(" ".join([error.message, *cause]), secrets)[:_ERROR_CHARACTERS]
        if error.kind == "unauthenticated" and error.status == _FORBIDDEN and not own_request:
            self._breaker.abandon()  # one forbidden call says nothing about others
        elif error.kind == "unauthenticated":
            self._breaker.abandon()
            self._refused = (error, self._credentials.ready())
            self.failed = time.time()
            self.set_state("auth_needed", self.last_error)
        elif error.kind == "session_lost" or (
            not own_request and error.kind == "refused" and (error.status or 0) < _SERVER_ERROR
        ):
            self._breaker.abandon()
        else:
            self._breaker.fail(started, retry_after=error.retry_after)
            self.failed = time.time()
            self.set_state("backing_off" if self._breaker.wait else "degraded", self.last_error)

    def reset(self) -> None:
        """Forget all failures, because a person restarts the upstream."""
        self._breaker.reset()
        self._refused = None

    def set_state(self, state: State, reason: str) -> None:
        """Enter a state; 'stopped' is final."""
        if self.state == "stopped" or (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason, self.since = state, reason, time.time()
        if state == "ready":
            self.failed = None
        level = logging.WARNING if state == "auth_needed" else logging.INFO  # only a person can end that state
        _log.log(level, "upstream_changed upstream=%s state=%s reason=%s", self._name, state, log_value(reason))
        self._changed()
