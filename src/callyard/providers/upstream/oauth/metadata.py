"""OAuth as data: published metadata, stored logins, challenges and the error of signing in; no I/O."""

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
    "challenge_parameter",
    "join_scopes",
    "needs_more_scope",
]


class ResourceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a protected resource (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an authorization server (RFC 8414 or OpenID Connect Discovery)."""

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
    """Our registration as a client of one authorization server."""

    client_id: str
    issuer: str
    """The authorization server of the registration; no other server gets the id."""
    client_secret: str | None = None
    method: str = "none"
    """The authentication method at the token endpoint."""
    redirect_uri: str | None = None
    """The registered redirect URI, if we registered ourselves."""
    expires: float = 0
    """When the secret expires, as a Unix time; 0 is never."""

    def __repr__(self) -> str:
        """Return the issuer, without the secret."""
        return f"<Client of {self.issuer}>"

    @property
    def is_expired(self) -> bool:
        """Return whether its secret has expired."""
        return 0 < self.expires < time.time()


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An access token, and the refresh token that came with it."""

    access_token: str
    refresh_token: str | None = None
    scope: str | None = None
    """The granted scope, or the requested one if the server names none."""
    expires: float | None = None
    """When it expires, as a Unix time."""
    issued: float = msgspec.field(default=0, name="began")
    """When it was issued, as a Unix time."""

    def __repr__(self) -> str:
        """Return the type alone, because the contents are secret."""
        return "<Token>"

    @property
    def is_expired(self) -> bool:
        """Return whether it has expired."""
        return self.expires is not None and time.time() >= self.expires


class IdentityAssertion(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of an identity provider that say who signed in there, for cross-app access."""

    id_token: str
    refresh_token: str | None = None

    def __repr__(self) -> str:
        """Return the type alone, because the contents are secret."""
        return "<IdentityAssertion>"


class StoredLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is stored of a login at one upstream."""

    url: str
    """The URL of the upstream; the login is used for no other."""
    resource: str = ""
    token_endpoint: str = ""
    revocation_endpoint: str | None = None
    client: Client | None = None
    token: Token | None = None
    challenge: str = ""
    """The challenge of the upstream's last refusal, for the next login."""
    user: str = msgspec.field(default="", name="who")
    """The name of the person who signed in, if the server gave one."""
    issuer: str = ""
    """The first authorization server that was shown the configured client; no other is."""
    identity_assertion: IdentityAssertion | None = msgspec.field(default=None, name="vouched")


def join_scopes(*scopes: str | None) -> str:
    """Return the union of several scopes."""
    return " ".join(dict.fromkeys(word for scope in scopes if scope for word in scope.split()))


_PARAMETER: Final = r'(?:^|[\s,]){}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))'
_ESCAPED: Final = re.compile(r"\\(.)")


def challenge_parameter(challenge: str, name: str) -> str | None:
    """Return a parameter of a `WWW-Authenticate` challenge."""
    match = re.search(_PARAMETER.format(re.escape(name)), challenge, re.IGNORECASE)
    if match is None:
        return None
    return match[2] if match[1] is None else _ESCAPED.sub(r"\1", match[1])


def needs_more_scope(challenge: str) -> bool:
    """Return whether a challenge accepts the token, but asks for more scope."""
    return challenge_parameter(challenge, "error") == "insufficient_scope"


class LoginError(Exception):
    """Signing in failed: a sentence for people, and whether a later attempt may succeed without one."""

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_transient = is_transient
