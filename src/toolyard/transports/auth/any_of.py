"""Several guards at one door: who passes one of them is in."""

from collections.abc import Iterable
from typing import Any

from toolyard.transports.auth.guard import Admitted, Guard, Refusal
from toolyard.transports.auth.tokens import Tokens

__all__ = ["AnyOf"]


class AnyOf:
    """Asks its guards in turn, those of tokens last, so that a key never waits for an issuer."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._guards = sorted(guards, key=lambda guard: isinstance(guard, Tokens))
        if not self._guards:
            raise ValueError("Without guards nobody could come in: add one.")
        if sum(isinstance(guard, Tokens) for guard in self._guards) > 1:
            # What names a person at one issuer may name somebody else at another, and they would share their sessions.
            raise ValueError("Only one issuer of tokens can be trusted at a time.")

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        """Return whom the first guard admits that admits anyone.

        Raises:
            Refusal: None does.
            IssuerUnreachableError: None does, and one could not decide.
        """
        refusals: list[Refusal] = []
        for guard in self._guards:
            try:
                return await guard.admit(authorization, api_key)
            except Refusal as refusal:
                refusals.append(refusal)
        raise _most_telling(refusals)

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        """Return the document of the first guard that has one."""
        return next((found for guard in self._guards if (found := guard.protected_resource(resource)) is not None), None)


def _most_telling(refusals: list[Refusal]) -> Refusal:
    """Return the last refusal, unless it only says that nothing came and another knows better."""
    last = refusals[-1]
    told = [refusal for refusal in refusals if refusal.error]
    if last.error or not told:
        return last
    return Refusal(told[-1].message, status=told[-1].status, error=told[-1].error, scopes=last.scopes)
