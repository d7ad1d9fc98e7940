"""The vault: where a login is kept, in the keyring of the system or else in a file that only its owner may read.

In either case there is a file, so that all processes see when something changed.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from toolyard._internal.files import make_private, read_private, write_atomically
from toolyard.providers.upstream.oauth.metadata import LoginError, StoredLogin

__all__ = ["Vault", "kept_address"]

_FILE: Final = "tokens.json"
_LOCK: Final = "tokens.lock"
_SERVICE: Final = "toolyard"
_PAUSE: Final = 0.05
_PATIENCE: Final = 60.0


class _Note(msgspec.Struct, frozen=True, tag_field="kept_in", tag="keyring"):
    """What the file says if the login itself is in the keyring."""

    user: str


class _Whole(msgspec.Struct, frozen=True, tag_field="kept_in", tag="file"):
    """What the file says otherwise."""

    login: StoredLogin


def kept_address(folder: Path) -> str | None:
    """Return the address of the upstream that something is kept of in a folder, be it only that it refused us.

    Raises:
        LoginError: The keyring does not give it out.
    """
    kept = _read(folder / _FILE)
    return None if kept is None else kept.url


class Vault:
    """What is kept of a login at one upstream; it blocks while the keyring does."""

    def __init__(self, folder: Path, url: str) -> None:
        self._path = folder / _FILE
        self._url = url

    @property
    def stamp(self) -> tuple[int, int] | None:
        """Return what is another whenever something was written, or nothing if there is nothing."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def read(self) -> StoredLogin | None:
        """Return what is kept, unless it was for another address.

        Raises:
            LoginError: The keyring does not give it out.
        """
        kept = _read(self._path)
        return kept if kept is not None and kept.url == self._url else None

    def write(self, kept: StoredLogin) -> None:
        """Keep this from now on.

        Raises:
            LoginError: It cannot be written.
        """
        user = str(self._path.parent)
        note: _Note | _Whole = _Note(user) if _into_keyring(user, kept) else _Whole(kept)
        try:
            write_atomically(self._path, msgspec.json.encode(note))
        except OSError as error:
            raise LoginError(f"The login cannot be kept: {error.strerror}.") from error

    def forget(self) -> None:
        """Keep nothing any more.

        Raises:
            LoginError: The file cannot be removed.
        """
        keyring = _keyring()
        if keyring is not None:
            with suppress(Exception):  # each system's keyring has a failure of its own for what is not there
                keyring.delete_password(_SERVICE, str(self._path.parent))
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise LoginError(f"The login cannot be removed: {error.strerror}.") from error

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Keep other processes from renewing at the same time: many servers take a refresh token only once.

        Raises:
            LoginError: Another keeps it for too long, or there can be no lock.
        """
        try:
            make_private(self._path.parent)
            number = os.open(self._path.with_name(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LoginError(f"The login cannot be kept: {error.strerror}.") from error
        try:
            await _take(number)
            yield
        finally:
            os.close(number)


def _read(path: Path) -> StoredLogin | None:
    with suppress(OSError, msgspec.DecodeError):
        found = msgspec.json.decode(read_private(path), type=_Note | _Whole)
        return found.login if isinstance(found, _Whole) else _from_keyring(found.user)
    return None


async def _take(number: int) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                await asyncio.sleep(_PAUSE)  # whoever has it tells nobody when he lets go
    except TimeoutError:
        raise LoginError("Another process keeps the login to itself.", passing=True) from None


def _keyring() -> Any:
    """Return the keyring, if there is one that can keep something."""
    try:
        keyring: Any = import_module("keyring")  # dear to load, and few have it
        return keyring if keyring.get_keyring().priority > 0 else None
    except Exception:  # noqa: BLE001 - it is not installed, or each system's has failures of its own
        return None


def _from_keyring(user: str) -> StoredLogin | None:
    keyring = _keyring()
    if keyring is None:
        raise LoginError("The login is kept in the keyring, which is not there now.")
    try:
        text = keyring.get_password(_SERVICE, user)
    except Exception as error:
        raise LoginError(f"The keyring does not open: {type(error).__name__}.") from error
    return None if text is None else msgspec.json.decode(text, type=StoredLogin)


def _into_keyring(user: str, kept: StoredLogin) -> bool:
    keyring = _keyring()
    if keyring is None:
        return False
    try:
        keyring.set_password(_SERVICE, user, msgspec.json.encode(kept).decode())
    except Exception:  # noqa: BLE001 - as above; the file is always there
        return False
    return True
