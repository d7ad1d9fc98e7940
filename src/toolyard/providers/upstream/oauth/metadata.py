"""Papers: what servers publish of themselves, and what we keep of a login; as data."""

import re
import time
from typing import Final

import msgspec

__all__ = [
    "Client",
    "IdentityAssertion",
    "LoginError",
    "ResourceMetadata",
    "ServerMetadata",
    "StoredLogin",
    "Token",
    "joined_scopes",
    "parameter_of",
    "wants_more",
]


class ResourceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a server with something to protect publishes of itself (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What an authorization server publishes of itself (RFC 8414, or OpenID Connect Discovery)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are to an authorization server."""

    client_id: str
    issuer: str
    """The server that knows us by this id; no other is ever shown it."""
    client_secret: str | None = None
    method: str = "none"
    """How we prove at the token endpoint who we are."""
    redirect_uri: str | None = None
    """Where its browser is sent back to, if that was registered."""
    expires: float = 0
    """When the secret stops working, in seconds of the wall clock; 0 is never."""

    def __repr__(self) -> str:
        """Return whose it is, without the secret."""
        return f"<Client of {self.issuer}>"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What lets us in."""

    access_token: str
    refresh_token: str | None = None
    scope: str | None = None
    """What was granted, or else what was asked for."""
    expires: float | None = None
    """When it runs out, in seconds of the wall clock."""
    began: float = 0

    def __repr__(self) -> str:
        """Return that it is one, and nothing of it."""
        return "<Token>"

    @property
    def is_over(self) -> bool:
        """Return whether its time is over."""
        return self.expires is not None and time.time() >= self.expires


class IdentityAssertion(msgspec.Struct, frozen=True, kw_only=True):
    """What an identity provider says of somebody who signed in there."""

    id_token: str
    refresh_token: str | None = None

    def __repr__(self) -> str:
        """Return that it is one, and nothing of it."""
        return "<Vouched>"


class StoredLogin(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept of a login at one upstream."""

    url: str
    """The address it was made for; at another one it is worth nothing."""
    resource: str = ""
    token_endpoint: str = ""
    revocation_endpoint: str | None = None
    client: Client | None = None
    token: Token | None = None
    challenge: str = ""
    """With which words the upstream last refused us, for the next login."""
    who: str = ""
    """Who signed in, if that was said."""
    vouched: IdentityAssertion | None = None
    """What the identity provider says of them, if one is asked."""


def joined_scopes(*scopes: str | None) -> str:
    """Return all scopes of several lists, each once."""
    return " ".join(dict.fromkeys(word for scope in scopes if scope for word in scope.split()))


_PARAMETER: Final = r'(?:^|[\s,]){}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))'


_ESCAPED: Final = re.compile(r"\\(.)")


def parameter_of(challenge: str, name: str) -> str | None:
    """Return a parameter of a challenge, or nothing if it is not there."""
    found = re.search(_PARAMETER.format(re.escape(name)), challenge, re.IGNORECASE)
    if found is None:
        return None
    return found[2] if found[1] is None else _ESCAPED.sub(r"\1", found[1])


def wants_more(challenge: str) -> bool:
    """Return whether we are let in, but may not do this."""
    return parameter_of(challenge, "error") == "insufficient_scope"


class LoginError(Exception):
    """Signing in does not work: one sentence for people, and whether it may work later without anybody's help."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.passing = passing
