"""Authentication by the access tokens of an OAuth 2.1 issuer, and by several authenticators in turn.

PyJWT is imported when the first `Tokens` is made, because a yard without an issuer does not need it.
"""

import math
import re
import time
import unicodedata
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from callyard.dispatch.call import ANYONE
from callyard.state.store import Clock
from callyard.transports.auth.authenticator import (
    KEY_PREFIX,
    Admitted,
    Authenticator,
    Refusal,
    admit_request,
    bearer_of,
)

if TYPE_CHECKING:
    from callyard.transports.auth.jwks import Verifier

__all__ = ["ANY_TOKEN", "AnyOf", "ClaimRules", "TokenCache", "Tokens"]


ANY_TOKEN: Final = "*"  # noqa: S105 - no password
"""The key of `profiles` that matches every token."""
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+\Z")
_MAX_LEEWAY: Final = 300
_MAX_SECONDS: Final = 10**12
_OUR_PREFIXES: Final = (KEY_PREFIX, "user:", "client:")
_OUR_NAMES: Final = frozenset({ANYONE.identity, "webhook"})
_MAX_IDENTITY: Final = 256


class ClaimRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for times, scopes and names in the claims of a verified token, and how they become a caller."""

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

    def expires_at(self, claims: Mapping[str, Any]) -> float:
        """Return when a token expires, in seconds since the epoch, with the leeway."""
        return _seconds(claims, "exp", -math.inf) + self.leeway

    def admit(self, claims: dict[str, Any], now: float) -> Admitted:
        """Return the caller that the claims name.

        Raises:
            Refusal: The token is expired or not valid yet, or its identity or scopes do not fit.
        """
        if self.expires_at(claims) <= now:
            raise _invalid("The token has expired.")
        if max(_seconds(claims, "nbf", now), _seconds(claims, "iat", now)) > now + self.leeway:
            raise _invalid("The token is not valid yet.")
        identity = self._identity(claims)
        scopes = _words(claims.get("scope")) + _words(claims.get("scp"))
        if not set(self.scopes) <= set(scopes):
            raise Refusal("The token lacks a scope that is needed.", status=403, error="insufficient_scope")
        profiles = self._profiles(claims, scopes)
        return Admitted(identity=identity, claims=claims, profile=next(iter(profiles), None), profiles=profiles[1:])

    def _identity(self, claims: Mapping[str, Any]) -> str:
        identity: object = claims.get(self.identity_claim)
        if not isinstance(identity, str) or not 0 < len(identity) <= _MAX_IDENTITY or not identity.isprintable():
            raise _invalid(
                f"The token does not say who it is for: the claim '{self.identity_claim}' must be a short text."
            )
        read = unicodedata.normalize("NFKC", identity).strip().casefold()  # as a person reads it
        if read.startswith(_OUR_PREFIXES) or read in _OUR_NAMES:
            # A person who chooses a name at the issuer must not become the owner of a key, the local user, or somebody
            # who decides about approvals.
            raise _invalid(f"The claim '{self.identity_claim}' of the token is a reserved name.")
        return identity

    def _profiles(self, claims: Mapping[str, Any], scopes: Sequence[str]) -> tuple[str, ...]:
        """Return the profiles that a token fits: the first is its own, the others can be chosen by path."""
        values = scopes if self.profile_claim is None else _texts(claims.get(self.profile_claim))
        fitting = tuple(profile for value, profile in self.profiles.items() if value == ANY_TOKEN or value in values)
        if self.profiles and not fitting:
            # Without a refusal the yard's own profile would apply, which may allow more than any of these.
            raise Refusal("The token fits none of the profiles.", status=403, error="insufficient_scope")
        return fitting


def _invalid(message: str) -> Refusal:
    return Refusal(message, error="invalid_token")


def _seconds(claims: Mapping[str, Any], name: str, default: float) -> float:
    value: object = claims.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_SECONDS:
        raise _invalid(f"The claim '{name}' of the token must be a time.")
    return value


def _words(value: object) -> list[str]:
    """Return scopes, which some issuers write as one string and some as a list."""
    return value.split() if isinstance(value, str) else _texts(value)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [item for item in cast("list[object]", value) if isinstance(item, str)] if isinstance(value, list) else []


_CACHE_SECONDS: Final = 300.0
_MAX_CACHED: Final = 4096


class TokenCache:
    """Caches the callers of verified tokens, by the hashes of the tokens, for some minutes and up to a number."""

    def __init__(self, size: int = _MAX_CACHED) -> None:
        self._size = size
        self._entries: dict[bytes, tuple[Admitted, float, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, token: str, now: float) -> Admitted | None:
        """Return the caller of a token, if it is cached and has not expired."""
        key = _hash(token)
        entry = self._entries.get(key)
        if entry is None:
            return None
        admitted, since, until = entry
        # A clock that was set back must not make a token live longer.
        if since <= now < until:
            return admitted
        del self._entries[key]
        return None

    def add(self, token: str, admitted: Admitted, *, now: float, end: float) -> None:
        """Cache the caller of a token until it expires."""
        while len(self._entries) >= self._size:
            del self._entries[next(iter(self._entries))]
        self._entries[_hash(token)] = (admitted, now, min(end, now + _CACHE_SECONDS))

    def clear(self) -> None:
        """Remove every entry."""
        self._entries.clear()


def _hash(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


_MAX_CHARACTERS: Final = 16 * 1024
_NOT_INSTALLED: Final = "Tokens of an issuer need packages that are not installed: run pip install 'callyard[oauth]'."


class Tokens:
    """Admits callers with a JWT that the issuer signed for this audience; its scopes or a claim choose the profile.

    Without `jwks` the metadata of the issuer name its keys. `profiles` maps scopes, or values of the `profile_claim`,
    to profiles. The first match is used, `*` matches every token, and a token without a match is refused.
    """

    def __init__(
        self,
        issuer: str,
        audience: str | Sequence[str],
        *,
        jwks: str | Mapping[str, Any] | None = None,
        scopes: Sequence[str] = (),
        algorithms: Sequence[str] = (),
        identity_claim: str = "sub",
        profile_claim: str | None = None,
        profiles: Mapping[str, str] | None = None,
        leeway: float = 30,
        deadline: float = 5,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        audiences = (audience,) if isinstance(audience, str) else tuple(audience)
        if not audiences or not all(audiences):
            raise ValueError("Tokens need an 'audience': the name of this server in their claim 'aud'.")
        self._issuer = issuer
        self._wall = wall
        self._rules = ClaimRules(
            scopes=tuple(scopes),
            identity_claim=identity_claim,
            profile_claim=profile_claim,
            profiles=dict(profiles or {}),
            leeway=leeway,
        )
        self._cache = TokenCache()
        self._verifier = _verifier()(
            issuer,
            audiences,
            jwks=jwks,
            algorithms=tuple(algorithms),
            deadline=deadline,
            changed=self._cache.clear,
            clock=clock,
        )

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:  # noqa: ARG002 - the interface of `Authenticator`
        """Return the caller of the token in `Authorization`.

        Raises:
            Refusal: There is none, it is not valid, or its scopes are not enough.
            IssuerUnreachableError: The keys of the issuer cannot be fetched.
        """
        try:
            token = _token_in(authorization)
            return self._cache.find(token, self._wall()) or await self._check(token)
        except Refusal as refusal:
            # Clients read from any refusal which scopes to request.
            refusal.scopes = self._rules.scopes
            raise

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        """Return the RFC 9728 metadata of a resource."""
        document: dict[str, Any] = {
            "resource": resource,
            "authorization_servers": [self._issuer],
            "bearer_methods_supported": ["header"],
        }
        if self._rules.scopes:
            document["scopes_supported"] = list(self._rules.scopes)
        return document

    async def _check(self, token: str) -> Admitted:
        if len(token) > _MAX_CHARACTERS:
            raise Refusal("The token is too long.", error="invalid_token")
        claims = await self._verifier.claims(token)
        now = self._wall()
        admitted = self._rules.admit(claims, now)
        self._cache.add(token, admitted, now=now, end=self._rules.expires_at(claims))
        return admitted


def _token_in(authorization: str | None) -> str:
    token = bearer_of(authorization)
    if token is None:
        raise Refusal("An access token is needed, as 'Authorization: Bearer TOKEN'.")
    return token


def _verifier() -> "type[Verifier]":
    try:
        from callyard.transports.auth.jwks import Verifier  # noqa: PLC0415 - it loads PyJWT
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"jwt", "cryptography"}:
            raise
        raise ImportError(_NOT_INSTALLED) from None
    if find_spec("httpx2") is None:  # which is imported with the first fetch
        raise ImportError(_NOT_INSTALLED)
    return Verifier


class AnyOf:
    """Tries authenticators in turn, those of tokens last, so that a key never waits for an issuer."""

    def __init__(self, authenticators: Iterable[Authenticator]) -> None:
        self._authenticators = sorted(authenticators, key=lambda authenticator: isinstance(authenticator, Tokens))
        if not self._authenticators:
            raise ValueError("Without authenticators nobody could come in: add one.")
        if sum(isinstance(authenticator, Tokens) for authenticator in self._authenticators) > 1:
            # The same name may be another person at another issuer, and they would share their sessions.
            raise ValueError("Only one issuer of tokens can be trusted at a time.")

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        """Return the caller from the first authenticator that admits one.

        Raises:
            Refusal: None does.
            IssuerUnreachableError: None does, and one cannot check tokens now.
        """
        return await _first(authenticator.admit(authorization, api_key) for authenticator in self._authenticators)

    async def admit_request(self, path: str, headers: Mapping[str, str]) -> Admitted:
        """Return the caller of a request from the first authenticator that admits one.

        Raises:
            Refusal: None does.
            IssuerUnreachableError: None does, and one cannot check tokens now.
        """
        return await _first(admit_request(authenticator, path, headers) for authenticator in self._authenticators)

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        """Return the metadata of the first authenticator that has any."""
        documents = (authenticator.protected_resource(resource) for authenticator in self._authenticators)
        return next((document for document in documents if document is not None), None)


async def _first(attempts: Iterable[Awaitable[Admitted]]) -> Admitted:
    refusals: list[Refusal] = []
    for attempt in attempts:
        try:
            return await attempt
        except Refusal as refusal:
            refusals.append(refusal)
    # the last one, unless it only says that there were no credentials and another says more
    last = refusals[-1]
    chosen = next((refusal for refusal in reversed(refusals) if refusal.error), last)
    raise Refusal(chosen.message, status=chosen.status, error=chosen.error, scopes=last.scopes)
