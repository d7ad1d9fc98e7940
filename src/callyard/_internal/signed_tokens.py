"""Signed tokens: JSON with an HMAC, readable by its holder but not forgeable.

Restarts and other workers accept a token if they share the secret: `CALLYARD_SECRET`, or else the one in the store, or
else the one in the state directory.
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

from callyard._internal.files import find_state_dir, write_once
from callyard._internal.logfmt import log_value

__all__ = ["Cursors", "SignatureError", "Signer", "default_signer", "environment_secret"]

_SIGNATURE_BYTES: Final = 16
_SECRET_BYTES: Final = 32
_log = logging.getLogger(__name__)


class SignatureError(ValueError):
    """A token was not signed with this secret for this purpose."""


class Signer:
    """Signs and verifies tokens with one secret, which it loads when first needed."""

    def __init__(self, load_secret: Callable[[], bytes]) -> None:
        self.load_secret = load_secret
        """Returns the secret, such as to store it for other processes."""

    def prepare(self) -> None:
        """Load the secret now, so that forked processes share it."""
        _ = self._secret

    def use_secret(self, secret: bytes) -> None:
        """Sign and verify with this secret from now on."""
        self.load_secret = lambda: secret
        self.__dict__.pop("_secret", None)

    def sign(self, purpose: str, content: Any) -> str:
        """Return JSON content as a token for one purpose."""
        text = msgspec.json.encode(content)
        return urlsafe_b64encode(self._signature(purpose, text) + text).rstrip(b"=").decode()

    def verify(self, purpose: str, token: str) -> Any:
        """Return the content of a token.

        Raises:
            SignatureError: It was not signed with this secret for this purpose.
        """
        try:
            raw = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        except (Error, UnicodeEncodeError) as error:
            raise SignatureError("The token was not signed here.") from error
        signature, text = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        is_canonical = urlsafe_b64encode(raw).rstrip(b"=").decode() == token
        if not hmac.compare_digest(signature, self._signature(purpose, text)) or not is_canonical:
            raise SignatureError("The token was not signed here.")
        return msgspec.json.decode(text)

    @cached_property
    def _secret(self) -> bytes:
        # The prefix is part of every token that was ever signed, so it keeps its old word.
        return sha256(b"callyard seal" + self.load_secret()).digest()

    def _signature(self, purpose: str, text: bytes) -> bytes:
        return hmac.digest(self._secret, purpose.encode() + b"\0" + text, "sha256")[:_SIGNATURE_BYTES]


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


def default_signer(state_dir: str | None = None) -> Signer:
    """Return a signer with the secret of the environment, the state directory or, failing both, this process."""
    return Signer(lambda: environment_secret() or _stored_secret(state_dir))


def environment_secret() -> bytes:
    """Return the secret of the environment, or an empty text.

    It comes before all others and is never stored.
    """
    return os.environ.get("CALLYARD_SECRET", "").encode()


def _stored_secret(state_dir: str | None) -> bytes:
    try:
        path = find_state_dir(state_dir) / "secret"
        secret = write_once(path, os.urandom(_SECRET_BYTES))
    except OSError as error:
        return _process_secret(str(error.filename or state_dir), error.strerror or "unknown")
    return secret if len(secret) >= _SECRET_BYTES else _process_secret(str(path), "It is too short")


@cache
def _process_secret(path: str, reason: str) -> bytes:
    """Return a secret of this process alone, and warn once that other processes do not share it."""
    _log.warning("secret_unkept path=%s reason=%s", log_value(path), log_value(reason))
    return os.urandom(_SECRET_BYTES)
