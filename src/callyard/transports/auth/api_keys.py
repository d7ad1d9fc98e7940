"""API keys: long random strings, of which only digests are stored.

A key has 256 random bits, so nobody can find it by its digest, however fast the hash is. A slow hash is for passwords that people
choose; here it would only slow down every request.
"""

import hmac
import re
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec

from callyard._internal.logfmt import is_identifier
from callyard.transports.auth.authenticator import KEY_PREFIX, Admitted, Refusal, bearer_of

__all__ = ["ApiKey", "ApiKeys", "digest_of", "new_key"]

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


def new_key() -> str:
    """Return a new random key, to be shown once."""
    return f"ty_{secrets.token_urlsafe(32)}"


def digest_of(key: str) -> str:
    """Return the digest of a key, which is all that is stored."""
    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


class ApiKey(msgspec.Struct, frozen=True):
    """The name and the digest of a key, its profile, and the other profiles that its owner may choose by path."""

    name: str
    digest: str
    profile: str | None = None
    profiles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_identifier(self.name):
            raise ValueError("The name of an API key must be one plain word.")
        if _DIGEST.match(self.digest) is None:
            # The value is not repeated, because it may be the key itself.
            raise ValueError(f"The digest of the API key '{self.name}' must be 'sha256:' and 64 hexadecimal digits in small letters.")


def _admitted(key: ApiKey) -> Admitted:
    return Admitted(identity=f"{KEY_PREFIX}{key.name}", profile=key.profile, profiles=key.profiles)


class ApiKeys:
    """Admits callers with one of these keys; two keys of one name are one caller, so that a key can be replaced without a gap."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = [(key.digest, _admitted(key)) for key in keys]
        if not self._keys:
            raise ValueError("Without API keys nobody could come in: add one.")
        if len({digest for digest, _ in self._keys}) < len(self._keys):
            raise ValueError("Two API keys have the same digest.")
        owners: dict[str, Admitted] = {}
        for _, admitted in self._keys:
            if owners.setdefault(admitted.identity, admitted) != admitted:
                name = admitted.identity.removeprefix(KEY_PREFIX)
                raise ValueError(f"The API keys named '{name}' must have the same profiles.")

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        """Return the owner of the key in `X-API-Key`, or in `Authorization` as Bearer.

        Raises:
            Refusal: There is none, or it is unknown.
        """
        key = (api_key or "").strip() or bearer_of(authorization)
        if not key:
            raise Refusal("An API key is needed, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'.")
        admitted = self._find(digest_of(key))
        if admitted is None:
            raise Refusal("The API key is not known.", error="invalid_token")
        return admitted

    def protected_resource(self, resource: str) -> dict[str, Any] | None:  # noqa: ARG002 - the interface of `Authenticator`
        """Return None: keys have no issuer."""
        return None

    def _find(self, digest: str) -> Admitted | None:
        # All are compared, so that the time does not depend on which one matches.
        matches = [admitted for stored, admitted in self._keys if hmac.compare_digest(stored, digest)]
        return matches[0] if matches else None
