"""Signatures: the public keys of an issuer, and whether one of them signed a token.

It imports PyJWT and cryptography, so only those who check tokens load it.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.types import Options

from toolyard.transports.auth.guard import Refusal

__all__ = ["ALGORITHMS", "KeySet", "claims_of", "header_of"]

_FITS: Final[dict[str, tuple[str, tuple[str | None, ...]]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", (None,))),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}
"""The type and curves of the keys that each algorithm takes; all are asymmetric, so that what checks a token cannot make one."""

ALGORITHMS: Final = tuple(_FITS)

_RSA_BITS: Final = 2048
_OPTIONS: Final[Options] = {
    "require": ["iss", "aud", "exp"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_sub": False,
    "verify_jti": False,
}
_NO_JWT: Final = "The token is not a signed JWT."
_SENTENCES: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.InvalidIssuerError, "The token comes from another issuer."),
    (jwt.InvalidAudienceError, "The token is meant for another audience."),
    (jwt.MissingRequiredClaimError, "The token lacks one of the claims 'iss', 'aud' and 'exp'."),
)


class KeySet:
    """The keys of a JWKS document that can check signatures; the others in it are passed over."""

    def __init__(self, document: object, algorithms: Iterable[str]) -> None:
        entries = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ValueError("A set of keys must be an object with a list of 'keys'.")  # noqa: TRY004 - a wrong document, not a wrong type
        self.entries = cast("list[object]", entries)
        usable = [cast("dict[str, Any]", entry) for entry in self.entries if isinstance(entry, dict)]
        self._keys = [key for entry in usable for algorithm in algorithms for key in _keys_of(entry, algorithm)]

    def __len__(self) -> int:
        """Return how many ways there are to check a signature."""
        return len(self._keys)

    def find(self, algorithm: str, kid: str | None) -> list[jwt.PyJWK]:
        """Return the keys of that algorithm and id; every id will do for a token that names none."""
        return [key for key in self._keys if key.algorithm_name == algorithm and kid in (None, key.key_id)]


def _keys_of(entry: dict[str, Any], algorithm: str) -> list[jwt.PyJWK]:
    """Return the entry as a key of the algorithm, or none if it is not a public key which may be used so."""
    kind, curves = _FITS[algorithm]
    operations: object = entry.get("key_ops")
    fits = (
        entry.get("kty") == kind
        and entry.get("crv") in curves
        and entry.get("alg") in (None, algorithm)
        and entry.get("use") in (None, "sig")
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
        and "d" not in entry
    )
    try:
        found = [jwt.PyJWK(entry, algorithm)] if fits else []
    except (jwt.PyJWTError, ValueError, TypeError):
        return []
    return [key for key in found if not isinstance(key.key, RSAPublicKey) or key.key.key_size >= _RSA_BITS]


def header_of(token: str) -> tuple[object, str | None]:
    """Return the algorithm and the key id that a token names, which nothing has proved yet.

    Raises:
        Refusal: It is no JWT.
    """
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise Refusal(_NO_JWT, error="invalid_token") from None
    return header.get("alg"), header.get("kid")


def claims_of(token: str, keys: Iterable[jwt.PyJWK], *, issuer: str, audience: Sequence[str]) -> dict[str, Any] | None:
    """Return the claims of a token if one of the keys signed it, checked but for what `Expectation` judges.

    Raises:
        Refusal: It is signed, and by or for somebody else.
    """
    for key in keys:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=issuer,
                audience=audience,
                options=_OPTIONS,
            )
        except jwt.InvalidSignatureError:
            continue
        except jwt.PyJWTError as error:
            # What the library says may repeat parts of the token, so it goes no further.
            raise Refusal(_sentence(error), error="invalid_token") from None
    return None


def _sentence(error: jwt.PyJWTError) -> str:
    return next((sentence for kind, sentence in _SENTENCES if isinstance(error, kind)), _NO_JWT)
