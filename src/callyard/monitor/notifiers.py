"""Notifiers tell people and programs of incidents: a webhook and a command, with what is needed to try again.

They do not know when an incident opens or recovers. A notice may arrive twice, with the same key.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal, Protocol

import msgspec

from callyard._internal.logfmt import log_value
from callyard._internal.programs import KeptProgram, keep_program
from callyard._internal.webhooks import Post, post_signed
from callyard.state.store import Clock

__all__ = [
    "CommandNotifier",
    "Delivery",
    "Notice",
    "NoticeKind",
    "Notifier",
    "NotifyError",
    "Outbox",
    "WebhookNotifier",
]

NoticeKind = Literal["alert", "recovery"]
Delivery = Literal["sent", "lost", "later"]
_DAY_S: Final = 86_400.0
"""For how long a notice is sent again."""
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 900.0
_COMMAND_S: Final = 30.0
_OK: Final = range(200, 300)
_CLIENT_ERROR: Final = range(400, 500)
_PASSING: Final = frozenset({408, 425, 429})
"""Refusals that concern the moment, not the notice."""
_log = logging.getLogger(__name__)


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One message about an incident."""

    type: NoticeKind
    key: str
    """The same whenever it is sent again, so that its receiver can tell."""
    at: float
    """When the incident opened or recovered, in seconds since the epoch."""
    origin: str
    """The yard or the watcher that noticed it."""
    incident: dict[str, Any]


class NotifyError(Exception):
    """A notice was not taken; `is_refused` if the receiver does not take this one, but may take others."""

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.is_refused = is_refused


class Notifier(Protocol):
    """Somebody to tell of incidents."""

    @property
    def name(self) -> str:
        """Return a name of its own, which stays the same over restarts."""
        ...

    async def notify(self, notice: Notice) -> None:
        """Send a notice.

        Raises:
            NotifyError: It was not taken.
        """
        ...


class WebhookNotifier:
    """Posts notices as signed JSON to a URL, each with an idempotency key."""

    def __init__(self, url: str, secret: str, post: Post, *, name: str = "webhook") -> None:
        self.name = name
        self._url = url
        self._secret = secret
        self._post = post

    async def notify(self, notice: Notice) -> None:
        """Post a notice."""
        body, headers = msgspec.json.encode(notice), {"Idempotency-Key": notice.key}
        status, _ = await post_signed(self._post, self._url, body, secret=self._secret, headers=headers)
        if status not in _OK:
            is_refused = status in _CLIENT_ERROR and status not in _PASSING
            raise NotifyError(f"status {status}" if status else "no answer", is_refused=is_refused)


class CommandNotifier:
    """Runs a command for each notice, with the notice as JSON on its stdin; exit code 0 means that it was taken.

    Of our environment the command gets what every program needs, and no secrets.
    """

    def __init__(self, command: Sequence[str], *, name: str = "command", seconds: float = _COMMAND_S) -> None:
        self.name = name
        self._command = tuple(command)
        self._seconds = seconds

    async def notify(self, notice: Notice) -> None:
        """Run the command, and end it if it takes too long."""
        try:
            async with asyncio.timeout(self._seconds), keep_program(self._command) as program:
                code = await _run(program, msgspec.json.encode(notice) + b"\n")
        except TimeoutError:
            raise NotifyError(f"still running after {self._seconds:g} s") from None
        except OSError as error:
            raise NotifyError(f"not started: {error.strerror}") from error
        if code:
            raise NotifyError(f"exit code {code}")


async def _run(program: KeptProgram, text: bytes) -> int:
    """Give a program its input and return its exit code; what it writes is dropped."""
    program.stdin.write(text)
    with suppress(OSError):  # a program may end without reading
        await program.stdin.drain()
    program.end_input()
    while await program.stdout.read(65_536):
        pass
    return await program.wait()


class _Wait:
    """When to try again: after 1 s, then twice as long each time, up to a quarter of an hour."""

    def __init__(self) -> None:
        self.until = 0.0
        self._seconds = _FIRST_WAIT_S

    def fail(self, now: float) -> None:
        """Wait, because another attempt failed."""
        self.until = now + self._seconds
        self._seconds = min(self._seconds * 2, _LONGEST_WAIT_S)


class Outbox:
    """Sends notices to one notifier, again and again for a day, with longer and longer waits.

    A notifier without an answer waits as a whole; a notice that it refuses holds up no others.
    """

    def __init__(self, notifier: Notifier, clock: Clock) -> None:
        self.notifier = notifier
        self._clock = clock
        self._outage: _Wait | None = None
        self._refused: dict[str, _Wait] = {}
        self.counts: dict[Delivery, int] = {"sent": 0, "lost": 0, "later": 0}
        """How often each happened."""

    @property
    def is_waiting(self) -> bool:
        """Return whether the notifier did not answer, and is not tried yet."""
        return self._outage is not None and self._clock() < self._outage.until

    async def send(self, notice: Notice) -> Delivery:
        """Send a notice if its time has come; return whether it was taken, lost or is tried again later."""
        refused = self._refused.get(notice.key)
        if self.is_waiting or (refused is not None and self._clock() < refused.until):
            return "later"
        try:
            await self.notifier.notify(notice)
        except NotifyError as error:
            result = self._note_failure(notice, str(error), is_refused=error.is_refused)
        except Exception as error:  # noqa: BLE001 - a notifier of others may raise anything, and the rest must go on
            result = self._note_failure(notice, type(error).__name__, is_refused=False)
        else:
            self._outage = None
            result = "sent"
        if result != "later":
            self._refused.pop(notice.key, None)
        self.counts[result] += 1
        return result

    def _note_failure(self, notice: Notice, reason: str, *, is_refused: bool) -> Delivery:
        now = self._clock()
        if is_refused:
            wait = self._refused.setdefault(notice.key, _Wait())
        else:
            wait = self._outage = self._outage or _Wait()
        wait.fail(now)
        facts = log_value(self.notifier.name), notice.key, log_value(reason)
        if now - notice.at >= _DAY_S:
            _log.error("notice_lost notifier=%s key=%s reason=%s", *facts)
            return "lost"
        _log.warning("notice_not_taken notifier=%s key=%s reason=%s", *facts)
        return "later"
