"""Seals: short tokens that only whoever knows the secret can have made.

A token tells its holder nothing that must stay secret, and it cannot be changed. Restarts and other workers accept it if they
know the same secret, which `TOOLYARD_SECRET` gives them.
"""

import hmac
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from hashlib import sha256
from typing import Any, Final

import msgspec

__all__ = ["Seal", "SealError", "own_seal"]

_MARK: Final = 16
_VARIABLE: Final = "TOOLYARD_SECRET"


class SealError(ValueError):
    """A token was not made here, or not for this."""


class Seal:
    """Makes and opens tokens with one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = sha256(b"toolyard seal" + secret).digest()

    def close(self, purpose: str, content: Any) -> str:
        """Return the content, which must be JSON, as a token for one purpose."""
        text = msgspec.json.encode(content)
        return urlsafe_b64encode(self._mark(purpose, text) + text).rstrip(b"=").decode()

    def open(self, purpose: str, token: str) -> Any:
        """Return what is in a token.

        Raises:
            SealError: It was not made with this secret for this purpose.
        """
        try:
            raw = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        except (Error, UnicodeEncodeError) as error:
            raise SealError("The token is none of ours.") from error
        mark, text = raw[:_MARK], raw[_MARK:]
        canonical = urlsafe_b64encode(raw).rstrip(b"=").decode() == token
        if not hmac.compare_digest(mark, self._mark(purpose, text)) or not canonical:
            raise SealError("The token is none of ours.")
        return msgspec.json.decode(text)

    def _mark(self, purpose: str, text: bytes) -> bytes:
        return hmac.digest(self._secret, purpose.encode() + b"\0" + text, "sha256")[:_MARK]


def own_seal() -> Seal:
    """Return the seal of this process: with the secret from the environment, or else one that nobody else knows."""
    given = os.environ.get(_VARIABLE, "")
    return Seal(given.encode() if given else secrets.token_bytes(32))
