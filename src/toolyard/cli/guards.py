"""Guards from settings: what '[auth]' says, as what stands at the door."""

from collections.abc import Iterator

from toolyard.cli.exits import CommandError
from toolyard.config import Authentication, Config
from toolyard.transports.auth import AnyOf, ApiKey, ApiKeys, Guard, Tokens

__all__ = ["make_guard"]


def make_guard(config: Config) -> Guard | None:
    """Return who decides who comes in, or nothing if nothing is said about it.

    Raises:
        CommandError: What is said admits nobody, or cannot be.
    """
    if not config.given("auth"):
        return None
    try:
        guards = list(_guards(config.settings.auth))
    except (ImportError, ValueError) as error:
        raise CommandError(str(error)) from error
    if not guards:
        raise CommandError("The section '[auth]' lets nobody in: it needs 'api_keys', or 'issuer' and 'audience'.")
    return guards[0] if len(guards) == 1 else AnyOf(guards)


def _guards(auth: Authentication) -> Iterator[Guard]:
    if auth.api_keys:
        yield ApiKeys(ApiKey(key.name, key.digest, key.profile) for key in auth.api_keys)
    if auth.issuer is not None:
        yield Tokens(
            auth.issuer,
            auth.audience,
            jwks=auth.jwks,
            scopes=auth.scopes,
            identity_claim=auth.identity_claim,
            profile_claim=auth.profile_claim,
            profiles=auth.profiles,
        )
    elif _about_tokens(auth):
        raise ValueError("Tokens need an 'issuer' in '[auth]': whose they are.")


def _about_tokens(auth: Authentication) -> bool:
    return bool(auth.audience or auth.jwks or auth.scopes or auth.profile_claim or auth.profiles)
