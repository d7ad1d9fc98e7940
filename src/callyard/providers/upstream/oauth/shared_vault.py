"""The stored logins of upstreams in a store that several machines share, sealed with a key from `CALLYARD_SECRET`."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

import msgspec

from callyard._internal.lazy import load
from callyard._internal.logfmt import log_fields
from callyard._internal.tasks import background_task
from callyard.providers.upstream.oauth.vault import LoginError, LoginVault, Stamp, StoredLogin, UnreadableLoginError
from callyard.state.store import Lease, Store, StoreUnavailableError, owner_key

__all__ = ["SharedVault", "SharedVaults"]

Result = TypeVar("Result")
_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12
_PURPOSE: Final = b"callyard logins of upstreams"
_LEASE_S: Final = 15.0
_POLL_S: Final = 0.1
_LOCK_TIMEOUT_S: Final = 60.0
_SAVE_S: Final = 10.0
"""How long a write is tried, shorter than the lease: what is written may be the only valid refresh token."""
_UNREAD: Final = "unread"
_log = logging.getLogger(__name__)


class SharedVaults:
    """The vaults of all upstreams in one store, which is closed with the last of them."""

    def __init__(self, store: Store, secret: bytes) -> None:
        self.store = store
        self.users: WeakSet[SharedVault] = WeakSet()
        self._secret = secret

    def __call__(self, name: str, url: str, _: Path) -> LoginVault:
        """Return the vault of one upstream."""
        return SharedVault(self, name, url)

    @cached_property
    def _cipher(self) -> Any:
        try:
            ciphers: Any = load("cryptography.hazmat.primitives.ciphers.aead")
            derivation: Any = load("cryptography.hazmat.primitives.kdf.hkdf")
            hashes: Any = load("cryptography.hazmat.primitives.hashes")
        except ModuleNotFoundError:
            sentence = "Stored logins need packages that are not installed: run pip install 'callyard[login]'."
            raise LoginError(sentence) from None
        key = derivation.HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=_PURPOSE).derive(self._secret)
        return ciphers.AESGCM(key)

    def seal(self, key: str, login: StoredLogin) -> bytes:
        """Return a login in a form that only those with the secret can read, and only under this key."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = self._cipher.encrypt(nonce, msgspec.json.encode(login), _VERSION + key.encode())
        return _VERSION + nonce + sealed

    def unseal(self, key: str, sealed: bytes) -> StoredLogin | None:
        """Return a login, or None if it was not sealed for this key and with this secret."""
        start, rest = sealed[: 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            text = self._cipher.decrypt(start[1:], rest, start[:1] + key.encode())
            return msgspec.json.decode(text, type=StoredLogin) if start[:1] == _VERSION else None
        except LoginError:
            raise
        except Exception:  # noqa: BLE001 - the errors of the library: a wrong tag, or too short
            return None


class SharedVault(LoginVault):
    """The stored login of one upstream."""

    def __init__(self, vaults: SharedVaults, name: str, url: str) -> None:
        self._vaults = vaults
        self._store = vaults.store
        self._name = name
        self._url = url
        self._key = f"login/{name}/{owner_key(url)}"
        self._read: bytes | None = None
        """What is stored, as it was last read."""
        self._seen: Stamp = _UNREAD
        self._unreadable: Stamp = None
        self._look: asyncio.Task[None] | None = None

    @property
    def stamp(self) -> Stamp:
        """Return what was last seen, and look again in the background."""
        if self._look is None or self._look.done():
            self._look = asyncio.get_running_loop().create_task(self._look_again())
        return self._seen

    @property
    def is_empty(self) -> bool:
        """Return False, because only the store knows."""
        return False

    async def load(self) -> tuple[StoredLogin | None, Stamp]:
        """Return the stored login and its stamp.

        Raises:
            LoginError: The store cannot be read, or the login was sealed with another secret.
        """
        sealed = self._read = await self._use(self._store.get(self._key))
        stamp = self._seen = _stamp(sealed)
        if sealed is None:
            return None, stamp
        login = self._vaults.unseal(self._key, sealed)
        if login is None or login.url != self._url:
            if self._unreadable != stamp:
                self._unreadable = stamp
                facts = log_fields({"reason": "This CALLYARD_SECRET does not open it."})
                _log.warning("login_unreadable upstream=%s%s", self._name, facts)
            problem = f"'{self._name}' requires a login: this CALLYARD_SECRET does not open the stored one."
            raise UnreadableLoginError(f"{problem} Run 'callyard login {self._name}'.")
        return login, stamp

    async def save(self, login: StoredLogin) -> Stamp:
        """Store a login in place of the one that was last loaded, and return its stamp.

        Raises:
            LoginError: The store cannot be written, or another server changed the login meanwhile.
        """
        sealed = self._vaults.seal(self._key, login)
        until = asyncio.get_running_loop().time() + _SAVE_S
        while True:
            try:
                is_saved = await self._use(self._replace(sealed))
                break
            except LoginError:
                if asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(_POLL_S)  # a store that is away tells nobody when it is back
        if not is_saved:
            raise LoginError("Another server changed the login meanwhile.", is_transient=True)
        self._read = sealed
        self._seen = _stamp(sealed)
        return self._seen

    async def remove(self) -> None:
        """Remove the stored login.

        Raises:
            LoginError: The store cannot be written.
        """
        await self._use(self._store.delete(self._key))
        self._read = self._seen = None

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Lock out other servers: many authorization servers accept a refresh token only once.

        Raises:
            LoginError: Another server keeps the lock, or the store is away.
        """
        lease = await self._acquire()
        try:
            async with background_task(self._renew(lease)):
                yield
        finally:
            with suppress(StoreUnavailableError):  # it ends by itself
                await self._store.release(lease)

    async def close(self) -> None:
        """Stop looking, and close the store if no other vault uses it."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
        users = self._vaults.users
        if self in users:
            users.discard(self)
            if not users:
                await self._store.close()

    async def _look_again(self) -> None:
        with suppress(LoginError):
            self._seen = _stamp(await self._use(self._store.get(self._key)))

    async def _replace(self, sealed: bytes) -> bool:
        """Write what is sealed unless another server wrote; an attempt before, whose answer was lost, may have."""
        is_replaced = await self._store.compare_and_set(self._key, self._read, sealed, durable=True)
        return is_replaced or await self._store.get(self._key) == sealed

    async def _acquire(self) -> Lease:
        try:
            async with asyncio.timeout(_LOCK_TIMEOUT_S):
                while True:
                    lease = await self._use(self._store.acquire(self._key, ttl=_LEASE_S))
                    if lease is not None:
                        return lease
                    await asyncio.sleep(_POLL_S)  # the end of a lease has no event
        except TimeoutError:
            raise LoginError("Another server keeps the login locked.", is_transient=True) from None

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(_LEASE_S / 3)
            with suppress(StoreUnavailableError):  # a write compares, so a lost lease overwrites nothing
                await self._store.renew(lease, ttl=_LEASE_S)

    async def _use(self, command: Awaitable[Result]) -> Result:
        self._vaults.users.add(self)
        try:
            return await command
        except StoreUnavailableError as error:
            raise LoginError("The store with the login is not available now.", is_transient=True) from error


def _stamp(sealed: bytes | None) -> Stamp:
    return None if sealed is None else sha256(sealed).hexdigest()
