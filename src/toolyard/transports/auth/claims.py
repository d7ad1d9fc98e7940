"""Claims: what a token that is known to be genuine must say, and whom it admits."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from toolyard.caller import ANYONE
from toolyard.transports.auth.guard import KEY_PREFIX, Admitted, Refusal

__all__ = ["EVERYBODY", "Expectation"]

EVERYBODY: Final = "*"
"""The key among profiles that fits every token."""

_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+\Z")
_MAX_LEEWAY: Final = 300
_MAX_SECONDS: Final = 10**12
_MAX_IDENTITY: Final = 256


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """What is expected of claims beside issuer and audience, and how they become a caller."""

    scopes: tuple[str, ...] = ()
    identity_claim: str = "sub"
    profile_claim: str | None = None
    profiles: Mapping[str, str] = {}
    leeway: float = 30

    def __post_init__(self) -> None:
        if not all(_SCOPE.match(scope) for scope in self.scopes):
            raise ValueError("A scope must be one word of plain characters.")
        if not 0 <= self.leeway <= _MAX_LEEWAY:
            raise ValueError(f"The leeway must be between 0 and {_MAX_LEEWAY} seconds.")
        if self.profile_claim is not None and not self.profiles:
            raise ValueError("A claim that chooses the profile needs 'profiles': which value gives which profile.")

    def end_of(self, claims: Mapping[str, Any]) -> float:
        """Return when a token ends to be valid, in seconds since the epoch."""
        return _seconds(claims, "exp", -math.inf) + self.leeway

    def admitted(self, claims: dict[str, Any], now: float) -> Admitted:
        """Return whom the claims admit.

        Raises:
            Refusal: It is not the time, or they do not say who it is, or do not allow enough.
        """
        if self.end_of(claims) <= now:
            raise _invalid("The token has expired.")
        if max(_seconds(claims, "nbf", now), _seconds(claims, "iat", now)) > now + self.leeway:
            raise _invalid("The token is not valid yet.")
        identity = self._identity(claims)
        scopes = _words(claims.get("scope")) + _words(claims.get("scp"))
        if not set(self.scopes) <= set(scopes):
            raise _too_little("The token lacks a scope that is needed.")
        return Admitted(identity=identity, claims=claims, profile=self._profile(claims, scopes))

    def _identity(self, claims: Mapping[str, Any]) -> str:
        identity: object = claims.get(self.identity_claim)
        if not isinstance(identity, str) or not 0 < len(identity) <= _MAX_IDENTITY or not identity.isprintable():
            raise _invalid(f"The token does not say who it is for: the claim '{self.identity_claim}' must be a short text.")
        if identity.startswith(KEY_PREFIX) or identity == ANYONE.identity:
            # Whoever may choose their own name at the issuer must not become the owner of a key, or the local user.
            raise _invalid(f"The claim '{self.identity_claim}' of the token is a reserved name.")
        return identity

    def _profile(self, claims: Mapping[str, Any], scopes: Sequence[str]) -> str | None:
        if not self.profiles:
            return None
        values = scopes if self.profile_claim is None else _texts(claims.get(self.profile_claim))
        for value, profile in self.profiles.items():
            if value == EVERYBODY or value in values:
                return profile
        # Without a refusal the yard's own profile would hold, which may allow more than any of these.
        raise _too_little("The token fits none of the profiles.")


def _invalid(message: str) -> Refusal:
    return Refusal(message, error="invalid_token")


def _too_little(message: str) -> Refusal:
    return Refusal(message, status=403, error="insufficient_scope")


def _seconds(claims: Mapping[str, Any], name: str, otherwise: float) -> float:
    value: object = claims.get(name)
    if value is None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_SECONDS:
        raise _invalid(f"The claim '{name}' of the token must be a time.")
    return value


def _words(value: object) -> list[str]:
    """Return scopes, which some issuers write as a text of words and some as a list."""
    return value.split() if isinstance(value, str) else _texts(value)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [item for item in cast("list[object]", value) if isinstance(item, str)] if isinstance(value, list) else []
