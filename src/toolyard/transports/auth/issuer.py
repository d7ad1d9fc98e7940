"""The issuer: where its keys are, and when they are read anew.

It loads PyJWT and an HTTP client, so only those who check tokens import it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final
from urllib.parse import urlsplit

from toolyard.logline import quoted
from toolyard.store import Clock
from toolyard.transports.auth.address import UnreadError, check_address
from toolyard.transports.auth.fetch import fetch_object
from toolyard.transports.auth.guard import IssuerUnreachableError
from toolyard.transports.auth.signature import KeySet

__all__ = ["FixedKeys", "Issuer"]

_log = logging.getLogger(__name__)

_FRESH: Final = 600.0
"""How long keys are used before they are read again."""

_PAUSE: Final = 30.0
"""How long the issuer is left alone after it was asked, whatever tokens come, while there are keys."""

_PAUSE_WITHOUT_KEYS: Final = 5.0
"""The same while there are none, and so nobody can come in."""


class FixedKeys:
    """Keys that were given once and for all."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys

    async def keys(self) -> KeySet:
        """Return the keys."""
        return self._keys

    async def newer_than(self, seen: KeySet) -> KeySet | None:  # noqa: ARG002 - the shape of an issuer
        """Return nothing: there are no others."""
        return None


class Issuer:
    """Reads the keys of an issuer when they are needed, and keeps the last ones if it cannot.

    `changed` is called when the issuer publishes other keys than before.
    """

    def __init__(
        self,
        name: str,
        jwks: str | None,
        *,
        algorithms: Sequence[str],
        deadline: float,
        changed: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._name = name
        self._jwks = jwks
        self._algorithms = tuple(algorithms)
        self._deadline = deadline
        self._changed = changed
        self._clock = clock
        self._keys: KeySet | None = None
        self._read_at = 0.0
        self._asked_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._failure = ""

    async def keys(self) -> KeySet:
        """Return the keys, read again if they are old.

        Raises:
            IssuerUnreachableError: They were never read, and cannot be now.
        """
        if self._keys is None or self._clock() - self._read_at >= _FRESH:
            await self._ask()
        if self._keys is None:
            raise IssuerUnreachableError(
                f"The keys of the issuer '{self._name}' cannot be read: {self._failure}.", retry_after=int(self._pause)
            )
        return self._keys

    async def newer_than(self, seen: KeySet) -> KeySet | None:
        """Return the keys that took the place of these, asking the issuer unless it was asked a moment ago."""
        if self._keys is seen:
            await self._ask()
        return None if self._keys is seen else self._keys

    @property
    def _pause(self) -> float:
        return _PAUSE_WITHOUT_KEYS if self._keys is None else _PAUSE

    async def _ask(self) -> None:
        """Read the keys unless that was tried a moment ago; all who want them wait for the same answer."""
        if self._reading is None or self._reading.done():
            if self._asked_at is not None and self._clock() - self._asked_at < self._pause:
                return
            self._asked_at = self._clock()
            self._reading = asyncio.create_task(self._read())
        # Shielded, because one caller who goes away must not take the answer from the others.
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                keys = await _in_thread(self._fetch)
        except (UnreadError, TimeoutError) as error:
            failure = error if isinstance(error, UnreadError) else UnreadError("timeout", "it takes too long to answer")
            self._failure = failure.text
            kept = 0 if self._keys is None else len(self._keys)
            _log.warning("issuer_unreachable issuer=%s reason=%s keys_kept=%d", quoted(self._name), failure.reason, kept)
            return
        self._read_at = self._clock()
        if self._keys is None or keys.entries != self._keys.entries:
            self._keys = keys
            self._changed()

    def _fetch(self) -> KeySet:
        end = time.monotonic() + self._deadline
        address = self._jwks or self._discover(end)
        document = fetch_object(address, seconds=_left(end))
        try:
            return KeySet(document, self._algorithms)
        except ValueError:
            raise UnreadError("malformed", "it answers with something that is no set of keys") from None

    def _discover(self, end: float) -> str:
        """Return where the issuer says that its keys are."""
        failure = UnreadError("unreachable", "it cannot be reached")
        for place in _places(self._name):
            try:
                metadata = fetch_object(place, seconds=_left(end))
                return _address_in(metadata, self._name)
            except UnreadError as error:
                failure = error
        raise failure


def _places(issuer: str) -> list[str]:
    """Return where the metadata of an issuer may be: RFC 8414 puts the path behind, others in front."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    server, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    return list(dict.fromkeys([f"{origin}{server}{path}", f"{origin}{path}{server}", f"{origin}{path}{openid}"]))


def _address_in(metadata: dict[str, object], issuer: str) -> str:
    if metadata.get("issuer") != issuer:
        raise UnreadError("wrong_issuer", "its metadata names another issuer")
    address = metadata.get("jwks_uri")
    try:
        check_address("jwks_uri", str(address))
    except ValueError:
        raise UnreadError("malformed", "its metadata has no 'jwks_uri' that can be trusted") from None
    return str(address)


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


async def _in_thread(work: Callable[[], KeySet]) -> KeySet:
    """Return what the work returns, done in a thread that holds up nothing if it never ends."""
    outcome: Future[KeySet] = Future()
    outcome.set_running_or_notify_cancel()  # so that who no longer waits does not make its end an error

    def run() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:  # noqa: BLE001 - who waits gets it, whatever it is
            outcome.set_exception(error)

    threading.Thread(target=run, name="toolyard-issuer", daemon=True).start()
    return await asyncio.wrap_future(outcome)
