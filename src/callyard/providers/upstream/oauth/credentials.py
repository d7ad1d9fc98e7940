"""OAuth credentials of an upstream: read from the vault, renewed before they expire, reread after a new login.

The module that signs in and renews is loaded only when needed, because it imports an HTTP client and an OAuth library.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from callyard._internal.lazy import load
from callyard._internal.logfmt import log_value
from callyard.providers.upstream.link import Credentials, LinkError
from callyard.providers.upstream.oauth.vault import (
    LoginError,
    LoginVault,
    Stamp,
    StoredLogin,
    Token,
    UnreadableLoginError,
    Vault,
    Vaults,
    challenge_parameter,
    needs_more_scope,
)
from callyard.providers.upstream.settings import Login, UpstreamSettings

__all__ = ["OAuthCredentials", "load_signin", "open_vault", "sign_in_and_store"]

_RENEW_AHEAD_S: Final = 60.0
"""How long before its expiry a token is renewed, but at most a tenth of its lifetime."""
_RETRY_S: Final = 10.0
"""When a failed renewal of a token that is still valid is tried again."""
_CLOSE_TIMEOUT_S: Final = 5.0
_log = logging.getLogger(__name__)


def load_signin() -> Any:
    """Return the module that signs in and renews.

    Raises:
        LoginError: A package that it needs is not installed.
    """
    try:
        return load("callyard.providers.upstream.oauth.signin")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("callyard"):
            raise
        sentence = "Signing in needs packages that are not installed: run pip install 'callyard[login]'."
        raise LoginError(sentence) from None


def open_vault(vaults: Vaults | None, name: str, settings: UpstreamSettings, folder: Path) -> LoginVault:
    """Return the vault of an upstream; without `vaults`, that of this machine."""
    url = settings.url or ""
    return Vault(folder, url) if vaults is None else vaults(name, url, folder)


async def sign_in_and_store(
    name: str, settings: UpstreamSettings, vault: LoginVault, *, show: Callable[[str], None], seconds: float
) -> StoredLogin:
    """Have a person sign in at an upstream and store the login in its vault; `show` gets the URL to open.

    Raises:
        LoginError: It failed, or nobody signed in within so many seconds.
    """

    async def known() -> StoredLogin | None:
        with suppress(UnreadableLoginError):  # a new login takes its place
            return (await vault.load())[0]
        return None

    async def save(login: StoredLogin) -> None:
        async with vault.locked():
            await known()  # a vault replaces what was last loaded
            await vault.save(login)

    try:
        before = await known()
        signed_in: StoredLogin = await load_signin().sign_in(
            name, settings, before, show=show, seconds=seconds, save=save
        )
        await save(signed_in)
    finally:
        await vault.close()
    return signed_in


class OAuthCredentials(Credentials):
    """The `Authorization` header for one upstream, if somebody signed in there."""

    def __init__(self, name: str, settings: UpstreamSettings, vault: LoginVault, *, poll_s: float = 1.0) -> None:
        self._name = name
        self._settings = settings
        self._login = settings.login or Login()
        self._vault = vault
        self._token: Token | None = None
        self._headers: Mapping[str, str] = {}
        self._renew_at: float | None = None
        self._stamp: Stamp = None
        self._is_read = vault.is_empty
        self._is_refused = False
        self._lock = asyncio.Lock()
        self._renewals: set[asyncio.Task[bool]] = set()
        self._poll_s = poll_s
        self._poll_at = 0.0

    def ready(self) -> Mapping[str, str] | None:
        """Return the headers to send, or None if they must be read or renewed first."""
        self._is_read = self._is_read and not self._has_changed
        if not self._is_read or (self._is_due and not self._is_refused):
            return None
        return self._headers

    async def renew(self, challenge: str) -> bool:
        """Read a newer login, or renew a token that was refused or expires.

        A renewal goes on when its caller is cancelled, because many servers accept a refresh token only once.

        Raises:
            LinkError: A person must sign in, or the authorization server cannot be reached.
        """
        task = asyncio.get_running_loop().create_task(self._renew_locked(challenge, self._token))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)
        # marks the exception as retrieved: if the caller was cancelled, the next call fails the same way
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait([task])
        return task.result()

    async def close(self) -> None:
        """Wait a few seconds for running renewals, so that their tokens are stored."""
        if self._renewals:
            await asyncio.wait(self._renewals, timeout=_CLOSE_TIMEOUT_S)
        await self._vault.close()

    async def _renew_locked(self, challenge: str, refused: Token | None) -> bool:
        async with self._lock:
            try:
                return await self._renew(challenge, refused)
            except LoginError as error:
                if self._token is not None and not challenge and not self._token.is_expired:
                    self._log_failure(error)
                    self._is_read = True  # use the valid token, although the vault may be unreadable now
                    self._renew_at = time.time() + _RETRY_S
                    return True
                self._is_refused = not error.is_transient
                raise LinkError("unavailable" if error.is_transient else "unauthenticated", error.message) from error

    async def _renew(self, challenge: str, refused: Token | None) -> bool:
        await self._read()
        if self._is_newer_than(refused) or (not challenge and not self._is_due):
            return True  # without a challenge the upstream may need no login, or will send one
        async with self._vault.locked():
            stored = await self._read()  # another process may have renewed it
            if self._is_newer_than(refused):
                return True
            login = await self._new_login(stored, challenge)
            await self._write(login)
            self._use(login)
        _log.info("login_renewed upstream=%s", self._name)
        return True

    def _is_newer_than(self, refused: Token | None) -> bool:
        return self._token is not None and self._token != refused and not self._token.is_expired

    async def _new_login(self, stored: StoredLogin | None, challenge: str) -> StoredLogin:
        """Return a new login, if no person is needed for it."""
        if self._can_renew(stored, challenge):
            try:
                return await self._renewed_login(stored, challenge)
            except LoginError as error:
                if error.is_transient or not self._needs_person:
                    raise
                self._log_failure(error)
                # the attempt may have pinned the authorization server
                stored, _ = await self._vault.load()
        refused = stored or StoredLogin(url=self._settings.url or "")
        if challenge and refused.challenge != challenge:
            await self._write(msgspec.structs.replace(refused, challenge=challenge))
        raise self._sign_in_error(challenge)

    def _can_renew(self, stored: StoredLogin | None, challenge: str) -> bool:
        """Return whether a renewal without a person is worth an attempt."""
        needs_more = needs_more_scope(challenge)
        if self._login.grant == "authorization_code":
            token = stored and stored.token
            return token is not None and token.refresh_token is not None and not needs_more
        if needs_more and stored is not None and stored.challenge == challenge:
            return False  # the scope was requested before, and not granted
        return not self._needs_person or (stored is not None and stored.identity_assertion is not None)

    async def _renewed_login(self, stored: StoredLogin | None, challenge: str) -> StoredLogin:
        signin = load_signin()
        if self._login.grant == "authorization_code":
            return cast("StoredLogin", await signin.refresh(self._name, stored, self._login))
        login: StoredLogin = await signin.obtain(self._name, self._settings, challenge, stored=stored, save=self._write)
        return msgspec.structs.replace(login, challenge=challenge if needs_more_scope(challenge) else "")

    @property
    def _needs_person(self) -> bool:
        identity = self._login.identity
        return self._login.grant == "authorization_code" or (identity is not None and identity.id_token is None)

    @property
    def _has_changed(self) -> bool:
        """Return whether somebody signed in or out; checked once per interval, or each time after a refusal."""
        now = time.monotonic()
        if now < self._poll_at and not self._is_refused:
            return False
        self._poll_at = now + self._poll_s
        return self._vault.stamp != self._stamp

    @property
    def _is_due(self) -> bool:
        """Return whether the token should be renewed now, and can be without a person."""
        return self._renew_at is not None and time.time() >= self._renew_at

    def _log_failure(self, error: LoginError) -> None:
        _log.warning("login_not_renewed upstream=%s reason=%s", self._name, log_value(error.message))

    def _sign_in_error(self, challenge: str) -> LoginError:
        if needs_more_scope(challenge):
            scope = challenge_parameter(challenge, "scope")
            needed = f" It needs '{scope[:200]}'." if scope else ""
            refusal = f"'{self._name}' does not allow this with the granted scope.{needed}"
            return LoginError(f"{refusal} Run 'callyard login {self._name}'.")
        problem = "requires a login" if self._token is None else "does not accept the login any more"
        return LoginError(f"'{self._name}' {problem}. Run 'callyard login {self._name}'.")

    async def _read(self) -> StoredLogin | None:
        stored, stamp = await self._vault.load()
        self._is_refused = False
        self._stamp = stamp
        self._use(stored)
        return stored

    async def _write(self, login: StoredLogin) -> None:
        self._stamp = await self._vault.save(login)

    def _use(self, login: StoredLogin | None) -> None:
        self._is_read = True
        token = self._token = login and login.token
        self._renew_at = None
        self._headers = {} if token is None else {"Authorization": f"Bearer {token.access_token}"}
        can_renew = token is not None and (token.refresh_token is not None or self._login.grant != "authorization_code")
        if token is not None and token.expires is not None and can_renew:
            self._renew_at = token.expires - min(_RENEW_AHEAD_S, (token.expires - token.issued) / 10)
