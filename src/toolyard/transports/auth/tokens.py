"""Tokens: callers that an OAuth 2.1 issuer vouches for.

PyJWT is imported when the first `Tokens` is made, because a yard without an issuer need not have it.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from toolyard.dispatch.call import ANYONE
from toolyard.state.store import Clock
from toolyard.transports.auth.authenticator import KEY_PREFIX, Admitted, Authenticator, Refusal, bearer_of

if TYPE_CHECKING:
    from toolyard.transports.auth.jwks import Verifier

__all__ = ["EVERYBODY", "AnyOf", "Expectation", "Remembered", "Tokens"]


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


_SECONDS: Final = 300.0
_TOKENS: Final = 4096


class Remembered:
    """Keeps whom tokens admitted, by their hashes, for some minutes, and forgets the oldest beyond a number."""

    def __init__(self, size: int = _TOKENS) -> None:
        self._size = size
        self._kept: dict[bytes, tuple[Admitted, float, float]] = {}

    def __len__(self) -> int:
        """Return how many tokens are kept."""
        return len(self._kept)

    def find(self, token: str, now: float) -> Admitted | None:
        """Return whom a token admitted, if it still does."""
        key = _hash(token)
        kept = self._kept.get(key)
        if kept is None:
            return None
        admitted, since, until = kept
        # A clock that was put back must not make a token live longer.
        if since <= now < until:
            return admitted
        del self._kept[key]
        return None

    def keep(self, token: str, admitted: Admitted, *, now: float, end: float) -> None:
        """Keep whom a token admits until its end."""
        while len(self._kept) >= self._size:
            del self._kept[next(iter(self._kept))]
        self._kept[_hash(token)] = (admitted, now, min(end, now + _SECONDS))

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()


def _hash(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


_MAX_CHARACTERS: Final = 16 * 1024


class Tokens:
    """Admits who brings a JWT that the issuer signed for this audience, and chooses the profile by its scopes or a claim.

    Without `jwks` the issuer is asked where its keys are. `profiles` says which scope, or which value of the `profile_claim`, gives
    which profile; the first that fits is taken, `*` fits everybody, and who fits none is refused.
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
            raise ValueError("Tokens need an 'audience': what they must be meant for.")
        self._issuer = issuer
        self._wall = wall
        self._expected = Expectation(
            scopes=tuple(scopes),
            identity_claim=identity_claim,
            profile_claim=profile_claim,
            profiles=dict(profiles or {}),
            leeway=leeway,
        )
        self._remembered = Remembered()
        self._verifier = _verifier()(
            issuer,
            audiences,
            jwks=jwks,
            algorithms=tuple(algorithms),
            deadline=deadline,
            changed=self._remembered.clear,
            clock=clock,
        )

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:  # noqa: ARG002 - the shape of a guard
        """Return whom the token in Authorization stands for.

        Raises:
            Refusal: There is none, or it is not valid, or it does not allow enough.
            IssuerUnreachableError: The keys of the issuer cannot be read.
        """
        try:
            token = _token_in(authorization)
            return self._remembered.find(token, self._wall()) or await self._check(token)
        except Refusal as refusal:
            # Clients read from any refusal which scopes to ask the issuer for.
            refusal.scopes = self._expected.scopes
            raise

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        """Return which issuer the resource trusts, as RFC 9728 writes it."""
        document: dict[str, Any] = {
            "resource": resource,
            "authorization_servers": [self._issuer],
            "bearer_methods_supported": ["header"],
        }
        if self._expected.scopes:
            document["scopes_supported"] = list(self._expected.scopes)
        return document

    async def _check(self, token: str) -> Admitted:
        if len(token) > _MAX_CHARACTERS:
            raise Refusal("The token is too long.", error="invalid_token")
        claims = await self._verifier.claims(token)
        now = self._wall()
        admitted = self._expected.admitted(claims, now)
        self._remembered.keep(token, admitted, now=now, end=self._expected.end_of(claims))
        return admitted


def _token_in(authorization: str | None) -> str:
    token = bearer_of(authorization)
    if token is None:
        raise Refusal("An access token is needed, as 'Authorization: Bearer TOKEN'.")
    return token


def _verifier() -> "type[Verifier]":
    try:
        from toolyard.transports.auth.jwks import Verifier  # noqa: PLC0415 - it loads PyJWT
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"jwt", "cryptography"}:
            raise
        raise ImportError("Tokens of an issuer need packages that are not installed: run pip install 'toolyard[oauth]'.") from None
    return Verifier


class AnyOf:
    """Asks its guards in turn, those of tokens last, so that a key never waits for an issuer."""

    def __init__(self, authenticators: Iterable[Authenticator]) -> None:
        self._authenticators = sorted(authenticators, key=lambda authenticator: isinstance(authenticator, Tokens))
        if not self._authenticators:
            raise ValueError("Without guards nobody could come in: add one.")
        if sum(isinstance(authenticator, Tokens) for authenticator in self._authenticators) > 1:
            # What names a person at one issuer may name somebody else at another, and they would share their sessions.
            raise ValueError("Only one issuer of tokens can be trusted at a time.")

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        """Return whom the first guard admits that admits anyone.

        Raises:
            Refusal: None does.
            IssuerUnreachableError: None does, and one could not decide.
        """
        refusals: list[Refusal] = []
        for authenticator in self._authenticators:
            try:
                return await authenticator.admit(authorization, api_key)
            except Refusal as refusal:
                refusals.append(refusal)
        raise _most_telling(refusals)

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        """Return the document of the first guard that has one."""
        return next(
            (found for authenticator in self._authenticators if (found := authenticator.protected_resource(resource)) is not None), None
        )


def _most_telling(refusals: list[Refusal]) -> Refusal:
    """Return the last refusal, unless it only says that nothing came and another knows better."""
    last = refusals[-1]
    told = [refusal for refusal in refusals if refusal.error]
    if last.error or not told:
        return last
    return Refusal(told[-1].message, status=told[-1].status, error=told[-1].error, scopes=last.scopes)
