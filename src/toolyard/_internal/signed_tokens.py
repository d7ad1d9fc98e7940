"""Seals: short tokens that only whoever knows the secret can have made.

A token tells its holder nothing that must stay secret, and it cannot be changed. Restarts and other workers accept it if they
know the same secret: the one that `TOOLYARD_SECRET` gives them, or else the one that is kept in the state directory.
"""

import hmac
import logging
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Callable
from functools import cache, cached_property
from hashlib import sha256
from typing import Any, Final

import msgspec

from toolyard._internal.logfmt import quoted

__all__ = ["Cursors", "SignatureError", "Signer", "own_signer"]

_MARK: Final = 16
_VARIABLE: Final = "TOOLYARD_SECRET"
_FILE: Final = "secret"
_BYTES: Final = 32
_log = logging.getLogger(__name__)


class SignatureError(ValueError):
    """A token was not made here, or not for this."""


class Signer:
    """Makes and opens tokens with one secret, which is asked for when it is first needed."""

    def __init__(self, secret: Callable[[], bytes]) -> None:
        self._ask = secret

    def prepare(self) -> None:
        """Ask for the secret now, so that processes that are forked from this one have the same."""
        _ = self._secret

    def sign(self, purpose: str, content: Any) -> str:
        """Return the content, which must be JSON, as a token for one purpose."""
        text = msgspec.json.encode(content)
        return urlsafe_b64encode(self._mark(purpose, text) + text).rstrip(b"=").decode()

    def verify(self, purpose: str, token: str) -> Any:
        """Return what is in a token.

        Raises:
            SealError: It was not made with this secret for this purpose.
        """
        try:
            raw = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        except (Error, UnicodeEncodeError) as error:
            raise SignatureError("The token is none of ours.") from error
        mark, text = raw[:_MARK], raw[_MARK:]
        canonical = urlsafe_b64encode(raw).rstrip(b"=").decode() == token
        if not hmac.compare_digest(mark, self._mark(purpose, text)) or not canonical:
            raise SignatureError("The token is none of ours.")
        return msgspec.json.decode(text)

    @cached_property
    def _secret(self) -> bytes:
        return sha256(b"toolyard seal" + self._ask()).digest()

    def _mark(self, purpose: str, text: bytes) -> bytes:
        return hmac.digest(self._secret, purpose.encode() + b"\0" + text, "sha256")[:_MARK]


class Cursors:
    """Signs cursors that lead to the next page of one list, and verifies them."""

    def __init__(self, signer: Signer, purpose: str) -> None:
        self._signer = signer
        self._purpose = purpose

    def sign(self, fingerprint: str, offset: int) -> str:
        """Return the cursor of the page that begins at an offset in the list of a fingerprint."""
        return self._signer.sign(self._purpose, [fingerprint, offset])

    def verify(self, fingerprint: str, cursor: str) -> int | None:
        """Return the offset of a cursor's page, or None if the cursor is of another list or the list has changed.

        Raises:
            SignatureError: It was not signed here.
        """
        signed, offset = self._signer.verify(self._purpose, cursor)
        return int(offset) if signed == fingerprint else None


def own_signer(state_dir: str | None = None) -> Signer:
    """Return a seal with the secret of the environment, or else of the state directory, or else one that nobody else knows."""
    return Signer(lambda: os.environ.get(_VARIABLE, "").encode() or _kept(state_dir))


def _kept(state_dir: str | None) -> bytes:
    from toolyard._internal.files import find_state_dir, write_once  # noqa: PLC0415 - most servers seal nothing, and are to start quickly

    try:
        path = find_state_dir(state_dir) / _FILE
        secret = write_once(path, os.urandom(_BYTES))
    except OSError as error:
        return _unkept(str(error.filename or state_dir), error.strerror or "unknown")
    return secret if len(secret) >= _BYTES else _unkept(str(path), "It is too short")


@cache
def _unkept(path: str, reason: str) -> bytes:
    """Return a secret of this process, and warn once that no other process knows it."""
    _log.warning("secret_unkept path=%s reason=%s", quoted(path), quoted(reason))
    return os.urandom(_BYTES)
