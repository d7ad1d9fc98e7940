"""The verifier: from a token to claims that its issuer has signed.

It loads PyJWT, so only those who check tokens import it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolyard.store import Clock
from toolyard.transports.auth.address import check_address
from toolyard.transports.auth.guard import Refusal
from toolyard.transports.auth.issuer import FixedKeys, Issuer
from toolyard.transports.auth.signature import ALGORITHMS, KeySet, claims_of, header_of

__all__ = ["Verifier"]


class Verifier:
    """Checks signature, issuer and audience of tokens; their times and scopes are for others to judge."""

    def __init__(
        self,
        issuer: str,
        audience: Sequence[str],
        *,
        jwks: str | Mapping[str, Any] | None,
        algorithms: Sequence[str],
        deadline: float,
        changed: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        check_address("issuer", issuer)
        self._issuer = issuer
        self._audience = tuple(audience)
        self._algorithms = tuple(algorithms) or ALGORITHMS
        wrong = [name for name in self._algorithms if name not in ALGORITHMS]
        if wrong:
            raise ValueError(f"The algorithm '{wrong[0]}' cannot be used: choose among {', '.join(ALGORITHMS)}.")
        if jwks is None or isinstance(jwks, str):
            if jwks is not None:
                check_address("jwks", jwks)
            self._source = Issuer(issuer, jwks, algorithms=self._algorithms, deadline=deadline, changed=changed, clock=clock)
        else:
            self._source = FixedKeys(_usable(dict(jwks), self._algorithms))

    async def claims(self, token: str) -> dict[str, Any]:
        """Return what the token claims.

        Raises:
            Refusal: It is not signed by the issuer for this audience.
            IssuerUnreachableError: The keys of the issuer cannot be read.
        """
        algorithm, kid = header_of(token)
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise Refusal("The token is signed with an algorithm that is not allowed.", error="invalid_token")
        keys = await self._source.keys()
        found = self._check(token, keys, algorithm=algorithm, kid=kid)
        if found is None and (kid is None or not keys.find(algorithm, kid)):
            newer = await self._source.newer_than(keys)
            found = None if newer is None else self._check(token, newer, algorithm=algorithm, kid=kid)
        if found is None:
            raise Refusal("The token is not signed with a key of the issuer.", error="invalid_token")
        return found

    def _check(self, token: str, keys: KeySet, *, algorithm: str, kid: str | None) -> dict[str, Any] | None:
        return claims_of(token, keys.find(algorithm, kid), issuer=self._issuer, audience=self._audience)


def _usable(document: dict[str, Any], algorithms: Sequence[str]) -> KeySet:
    keys = KeySet(document, algorithms)
    if not len(keys):
        raise ValueError("The 'jwks' has no public key that fits one of the algorithms.")
    return keys
