"""Credentials of somebody who signed in: shown to the upstream, renewed when they run out, and noticed when somebody signs in anew.

What signs in and renews is loaded only when it is needed: it brings an HTTP client and an OAuth library with it.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from toolyard._internal.lazy import load
from toolyard._internal.logfmt import log_value
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.oauth.metadata import IdentityAssertion, LoginError, StoredLogin, Token, parameter_of, wants_more
from toolyard.providers.upstream.oauth.vault import Vault
from toolyard.providers.upstream.settings import Login, UpstreamSettings

__all__ = ["SignedIn", "load_signing"]

_AHEAD: Final = 60.0
"""Seconds before its end at which a token is renewed; a tenth of its time if that is shorter."""
_PAUSE: Final = 10.0
"""Seconds until it is tried again to renew a token that is still good."""
_PARTING: Final = 5.0
"""Seconds that renewals may still take when nobody needs them any more."""
_SIGNING: Final = "toolyard.providers.upstream.oauth.signin"
_log = logging.getLogger(__name__)


def load_signing() -> Any:
    """Return the module that signs in and renews.

    Raises:
        LoginError: What it needs is not installed.
    """
    try:
        return load(_SIGNING)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("toolyard"):
            raise
        raise LoginError("Signing in needs packages that are not installed: run pip install 'toolyard[login]'.") from None


class SignedIn:
    """What is shown to an upstream that somebody signed in at, or may."""

    def __init__(self, name: str, settings: UpstreamSettings, folder: Path, *, beat: float = 1.0) -> None:
        self._name = name
        self._settings = settings
        self._login = settings.login or Login()
        self._vault = Vault(folder, settings.url or "")
        self._token: Token | None = None
        self._headers: Mapping[str, str] = {}
        self._renew_at: float | None = None
        self._stamp: tuple[int, int] | None = None
        self._is_read = self._vault.stamp is None
        self._is_refused = False
        self._renewing = asyncio.Lock()
        self._renewals: set[asyncio.Task[bool]] = set()
        self._beat = beat
        self._look_at = 0.0

    def ready(self) -> Mapping[str, str] | None:
        """Return the headers to send, or nothing if they must be read or renewed first."""
        self._is_read = self._is_read and not self._is_another
        if not self._is_read or (self._is_due and not self._is_refused):
            return None
        return self._headers

    async def renew(self, challenge: str) -> bool:
        """Get others: those of somebody who signed in meanwhile, or fresh ones for those that were refused or run out.

        What was begun goes on though nobody waits for it any more: many servers take a refresh token only once.

        Raises:
            LinkError: A person must sign in, or the authorization server cannot be reached.
        """
        task = asyncio.get_running_loop().create_task(self._renew_in_turn(challenge, self._token))
        self._renewals.add(task)
        task.add_done_callback(self._end_renewal)
        await asyncio.wait([task])
        return task.result()

    async def close(self) -> None:
        """Wait, for a few seconds at most, until renewals that are under way are over and kept."""
        if self._renewals:
            await asyncio.wait(self._renewals, timeout=_PARTING)

    def _end_renewal(self, task: "asyncio.Task[bool]") -> None:
        self._renewals.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits is told; if nobody does, the next call finds it out

    async def _renew_in_turn(self, challenge: str, shown: Token | None) -> bool:
        async with self._renewing:
            try:
                return await self._renew(challenge, shown)
            except LoginError as error:
                if self._token is not None and not challenge and not self._token.is_over:
                    _log.warning("login_not_renewed upstream=%s reason=%s", self._name, log_value(error.message))
                    self._is_read = True  # once, and what cannot be read now is tried again
                    self._renew_at = time.time() + _PAUSE
                    return True
                self._is_refused = not error.passing
                raise LinkError("unavailable" if error.passing else "unauthenticated", error.message) from error

    async def _renew(self, challenge: str, shown: Token | None) -> bool:
        kept = await self._read()
        if kept is not None and kept.token is not None and kept.token != shown and not kept.token.is_over:
            return True
        if not challenge and not self._is_due:
            return True  # it may let everybody in, or say how it wants it
        async with self._vault.locked():
            kept = await self._read()  # another process may have been quicker
            if self._token is not None and self._token != shown and not self._token.is_over:
                return True
            fresh = await self._fresh(kept, challenge)
            await self._write(fresh)
            self._take(fresh)
        _log.info("login_renewed upstream=%s", self._name)
        return True

    async def _fresh(self, kept: StoredLogin | None, challenge: str) -> StoredLogin:
        """Return a new login, without a person if that can be."""
        if self._can_do_alone(kept, challenge):
            try:
                return await self._alone(kept, challenge)
            except LoginError as error:
                if error.passing or not self._needs_person:
                    raise
                _log.warning("login_not_renewed upstream=%s reason=%s", self._name, log_value(error.message))
        noted = StoredLogin(url=self._settings.url or "") if kept is None else kept
        if challenge and noted.challenge != challenge:
            await self._write(msgspec.structs.replace(noted, challenge=challenge))
        raise self._person_needed(challenge)

    def _can_do_alone(self, kept: StoredLogin | None, challenge: str) -> bool:
        more = wants_more(challenge)
        if self._login.grant == "authorization_code":
            return kept is not None and kept.token is not None and kept.token.refresh_token is not None and not more
        if more and kept is not None and kept.challenge == challenge:
            return False  # it was asked for already, and not granted
        return not self._needs_person or (kept is not None and kept.vouched is not None)

    async def _alone(self, kept: StoredLogin | None, challenge: str) -> StoredLogin:
        made: StoredLogin
        if self._login.grant == "authorization_code":
            made = await load_signing().refresh(self._name, kept, self._login)
            return made

        async def keep(vouched: IdentityAssertion) -> None:
            await self._write(msgspec.structs.replace(kept or StoredLogin(url=self._settings.url or ""), vouched=vouched))

        made = await load_signing().obtain(self._name, self._settings, challenge, before=kept, keep=keep)
        return msgspec.structs.replace(made, challenge=challenge if wants_more(challenge) else "")

    @property
    def _needs_person(self) -> bool:
        """Return whether a person has to sign in at least once."""
        identity = self._login.identity
        return self._login.grant == "authorization_code" or (identity is not None and identity.id_token is None)

    @property
    def _is_another(self) -> bool:
        """Return whether somebody signed in or out meanwhile: that is looked at once a beat, or each time if we are refused."""
        now = time.monotonic()
        if now < self._look_at and not self._is_refused:
            return False
        self._look_at = now + self._beat
        return self._vault.stamp != self._stamp

    @property
    def _is_due(self) -> bool:
        """Return whether there is a token that should be renewed, and can be without a person."""
        return self._renew_at is not None and time.time() >= self._renew_at

    def _person_needed(self, challenge: str) -> LoginError:
        if wants_more(challenge):
            scope = parameter_of(challenge, "scope")
            what = f" It names '{scope[:200]}'." if scope else ""
            return LoginError(
                f"'{self._name}' does not allow this with what was granted.{what} 'toolyard login {self._name}' asks for more."
            )
        what = "wants somebody to sign in" if self._token is None else "does not take the login any more"
        return LoginError(f"'{self._name}' {what}: 'toolyard login {self._name}'.")

    async def _read(self) -> StoredLogin | None:
        stamp = self._vault.stamp
        kept = await asyncio.to_thread(self._vault.read)
        self._is_refused = False
        self._stamp = stamp
        self._take(kept)
        return kept

    async def _write(self, kept: StoredLogin) -> None:
        await asyncio.to_thread(self._vault.write, kept)
        self._stamp = self._vault.stamp  # nobody else writes while it is locked

    def _take(self, kept: StoredLogin | None) -> None:
        self._is_read = True
        token = self._token = kept.token if kept is not None else None
        if token is None:
            self._headers, self._renew_at = {}, None
            return
        self._headers = {"Authorization": f"Bearer {token.access_token}"}
        can_renew = token.refresh_token is not None or self._login.grant != "authorization_code"
        if token.expires is None or not can_renew:
            self._renew_at = None
        else:
            self._renew_at = token.expires - min(_AHEAD, (token.expires - token.began) / 10)
