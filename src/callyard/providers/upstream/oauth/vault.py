"""The stored login of an upstream: in the system's keyring, or else in a file that only its owner can read.

There is a file in both cases, so that other processes notice a change.
"""

import asyncio
import fcntl
import os
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from callyard._internal.files import make_private, read_private, write_atomically

__all__ = [
    "Client",
    "IdentityAssertion",
    "LoginError",
    "LoginVault",
    "Stamp",
    "StoredLogin",
    "Token",
    "UnreadableLoginError",
    "Vault",
    "Vaults",
    "challenge_parameter",
    "is_known",
    "join_scopes",
    "needs_more_scope",
    "stored_url",
]

_FILE: Final = "tokens.json"
_LOCK: Final = "tokens.lock"
_SERVICE: Final = "callyard"
_POLL_S: Final = 0.05
_LOCK_TIMEOUT_S: Final = 60.0


class LoginError(Exception):
    """Signing in failed: a sentence for people, and whether a later attempt may succeed without one."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_transient = is_transient


class UnreadableLoginError(LoginError):
    """A login is stored, and cannot be read with the secret of this server."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """Our registration as a client of one authorization server."""

    client_id: str
    issuer: str
    """The authorization server of the registration; no other server gets the id."""
    client_secret: str | None = None
    method: str = "none"
    """The authentication method at the token endpoint."""
    redirect_uri: str | None = None
    """The registered redirect URI, if we registered ourselves."""
    expires: float = 0
    """When the secret expires, as a Unix time; 0 is never."""

    def __repr__(self) -> str:
        return f"<Client of {self.issuer}>"

    @property
    def is_expired(self) -> bool:
        """Return whether its secret has expired."""
        return 0 < self.expires < time.time()


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An access token, and the refresh token that came with it."""

    access_token: str
    refresh_token: str | None = None
    scope: str | None = None
    """The granted scope, or the requested one if the server names none."""
    expires: float | None = None
    """When it expires, as a Unix time."""
    issued: float = msgspec.field(default=0, name="began")
    """When it was issued, as a Unix time."""

    def __repr__(self) -> str:
        return "<Token>"

    @property
    def is_expired(self) -> bool:
        """Return whether it has expired."""
        return self.expires is not None and time.time() >= self.expires


class IdentityAssertion(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of an identity provider that say who signed in there, for cross-app access."""

    id_token: str
    refresh_token: str | None = None

    def __repr__(self) -> str:
        return "<IdentityAssertion>"


class StoredLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is stored of a login at one upstream."""

    url: str
    """The URL of the upstream; the login is used for no other."""
    resource: str = ""
    token_endpoint: str = ""
    revocation_endpoint: str | None = None
    client: Client | None = None
    token: Token | None = None
    challenge: str = ""
    """The challenge of the upstream's last refusal, for the next login."""
    user: str = msgspec.field(default="", name="who")
    """The name of the person who signed in, if the server gave one."""
    issuer: str = ""
    """The first authorization server that was shown the configured client; no other is."""
    identity_assertion: IdentityAssertion | None = msgspec.field(default=None, name="vouched")


def join_scopes(*scopes: str | None) -> str:
    """Return the union of several scopes."""
    return " ".join(dict.fromkeys(word for scope in scopes if scope for word in scope.split()))


_PARAMETER: Final = r'(?:^|[\s,]){}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))'
_ESCAPED: Final = re.compile(r"\\(.)")


def challenge_parameter(challenge: str, name: str) -> str | None:
    """Return a parameter of a `WWW-Authenticate` challenge."""
    match = re.search(_PARAMETER.format(re.escape(name)), challenge, re.IGNORECASE)
    if match is None:
        return None
    return match[2] if match[1] is None else _ESCAPED.sub(r"\1", match[1])


def needs_more_scope(challenge: str) -> bool:
    """Return whether a challenge accepts the token, but asks for more scope."""
    return challenge_parameter(challenge, "error") == "insufficient_scope"


class _InKeyring(msgspec.Struct, frozen=True, tag_field="kept_in", tag="keyring"):
    """The content of the file if the login is in the keyring."""

    user: str


class _InFile(msgspec.Struct, frozen=True, tag_field="kept_in", tag="file"):
    """The content of the file if the login is in it."""

    login: StoredLogin


def is_known(folder: Path) -> bool:
    """Return whether a folder has a stored login or refusal."""
    return (folder / _FILE).exists()


def stored_url(folder: Path) -> str | None:
    """Return the URL of the upstream whose login or refusal is stored in a folder.

    Raises:
        LoginError: The keyring cannot be read.
    """
    stored = _read(folder / _FILE)
    return None if stored is None else stored.url


Stamp = tuple[int, int] | str | None
"""A value that changes with every write, or None if nothing is stored."""


class LoginVault(Protocol):
    """Where the login of one upstream is stored; every method may raise `LoginError`."""

    @property
    def stamp(self) -> Stamp:
        """Return the stamp of what is stored, as far as it is known without waiting."""
        ...

    @property
    def is_empty(self) -> bool:
        """Return whether it is certain that nothing is stored."""
        ...

    async def load(self) -> tuple[StoredLogin | None, Stamp]:
        """Return the stored login and its stamp."""
        ...

    async def save(self, login: StoredLogin) -> Stamp:
        """Store a login in place of the one that was last loaded, while it is locked; return its stamp."""
        ...

    async def remove(self) -> None:
        """Remove the stored login, while it is locked."""
        ...

    def locked(self) -> AbstractAsyncContextManager[None]:
        """Lock out all others: many authorization servers accept a refresh token only once."""
        ...

    async def close(self) -> None:
        """Close connections, if there are any; a later use opens them again."""
        ...


Vaults = Callable[[str, str, Path], LoginVault]
"""Returns the vault of an upstream: of its name, its URL and its folder."""


class Vault(LoginVault):
    """The stored login of one upstream on this machine; `read`, `write` and `forget` block while the keyring does."""

    def __init__(self, folder: Path, url: str) -> None:
        self._path = folder / _FILE
        self._url = url

    @property
    def stamp(self) -> Stamp:
        """Return a value that changes with every write, or None if nothing is stored."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is stored."""
        return self.stamp is None

    async def load(self) -> tuple[StoredLogin | None, Stamp]:
        """Return the stored login and its stamp, as `read` does."""
        stamp = self.stamp
        return await asyncio.to_thread(self.read), stamp

    async def save(self, login: StoredLogin) -> Stamp:
        """Store a login, as `write` does, and return its stamp."""
        await asyncio.to_thread(self.write, login)
        return self.stamp  # the lock keeps other writers out

    async def remove(self) -> None:
        """Remove the stored login, as `forget` does."""
        await asyncio.to_thread(self.forget)

    async def close(self) -> None:
        """Close nothing: no file stays open."""

    def read(self) -> StoredLogin | None:
        """Return the stored login, unless it belongs to another URL.

        Raises:
            LoginError: The keyring cannot be read.
        """
        stored = _read(self._path)
        return stored if stored is not None and stored.url == self._url else None

    def write(self, login: StoredLogin) -> None:
        """Store a login.

        Raises:
            LoginError: It cannot be written.
        """
        user = str(self._path.parent)
        content = _InKeyring(user) if _write_to_keyring(user, login) else _InFile(login)
        try:
            write_atomically(self._path, msgspec.json.encode(content))
        except OSError as error:
            raise LoginError(f"The login cannot be stored: {error.strerror}.") from error

    def forget(self) -> None:
        """Remove the stored login.

        Raises:
            LoginError: The file cannot be removed.
        """
        keyring = _keyring()
        if keyring is not None:
            with suppress(Exception):  # each backend raises its own error for a missing entry
                keyring.delete_password(_SERVICE, str(self._path.parent))
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise LoginError(f"The login cannot be removed: {error.strerror}.") from error

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Lock out other processes: many servers accept a refresh token only once.

        Raises:
            LoginError: Another process keeps the lock, or the lock file cannot be made.
        """
        try:
            make_private(self._path.parent)
            descriptor = os.open(self._path.with_name(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LoginError(f"The login cannot be stored: {error.strerror}.") from error
        try:
            await _lock(descriptor)
            yield
        finally:
            os.close(descriptor)


def _read(path: Path) -> StoredLogin | None:
    with suppress(OSError, msgspec.DecodeError):
        content = msgspec.json.decode(read_private(path), type=_InKeyring | _InFile)
        return content.login if isinstance(content, _InFile) else _read_from_keyring(content.user)
    return None


async def _lock(descriptor: int) -> None:
    try:
        async with asyncio.timeout(_LOCK_TIMEOUT_S):
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                await asyncio.sleep(_POLL_S)  # the release of a file lock has no event
    except TimeoutError:
        raise LoginError("Another process keeps the login locked.", is_transient=True) from None


def _keyring() -> Any:
    try:
        keyring: Any = import_module("keyring")  # optional, and slow to import
        return keyring if keyring.get_keyring().priority > 0 else None
    except Exception:  # noqa: BLE001 - it is not installed, or a backend raises an error of its own
        return None


def _read_from_keyring(user: str) -> StoredLogin | None:
    keyring = _keyring()
    if keyring is None:
        raise LoginError("The login is stored in the keyring, which is not available now.")
    try:
        text = keyring.get_password(_SERVICE, user)
    except Exception as error:
        raise LoginError(f"The keyring does not open: {type(error).__name__}.") from error
    return None if text is None else msgspec.json.decode(text, type=StoredLogin)


def _write_to_keyring(user: str, login: StoredLogin) -> bool:
    keyring = _keyring()
    if keyring is not None:
        with suppress(Exception):  # backends raise errors of their own; the file always works
            keyring.set_password(_SERVICE, user, msgspec.json.encode(login).decode())
            return True
    return False
