"""Tokens: callers that an OAuth 2.1 issuer vouches for.

PyJWT is imported when the first `Tokens` is made, because a yard without an issuer need not have it.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from toolyard.store import Clock
from toolyard.transports.auth.claims import Expectation
from toolyard.transports.auth.guard import Admitted, Refusal, bearer_of
from toolyard.transports.auth.remembered import Remembered

if TYPE_CHECKING:
    from toolyard.transports.auth.verifier import Verifier

__all__ = ["Tokens"]

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
        from toolyard.transports.auth.verifier import Verifier  # noqa: PLC0415 - an optional package, and a slow one
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"jwt", "cryptography"}:
            raise
        raise ImportError("Tokens of an issuer need packages that are not installed: run pip install 'toolyard[oauth]'.") from None
    return Verifier
