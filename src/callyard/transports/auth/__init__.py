"""Authentication over HTTP by API key or by the access token of an issuer; it knows no HTTP server.

Its files:

- `authenticator`: who is admitted, how others are refused, the checks that all of them need, and API keys
- `jwks`: the keys of an OAuth issuer: where they are, when they are fetched, and the check of signatures with them
- `tokens`: authentication by the access tokens of an OAuth 2.1 issuer, and by several authenticators in turn
"""

from callyard.transports.auth.authenticator import (
    Admitted,
    ApiKey,
    ApiKeys,
    Authenticator,
    IssuerUnreachableError,
    Refusal,
    ReplaceableAuthenticator,
    RequestAuthenticator,
    admit_request,
    check_exposure,
    digest_of,
    new_key,
)
from callyard.transports.auth.tokens import AnyOf, Tokens

__all__ = [
    "Admitted",
    "AnyOf",
    "ApiKey",
    "ApiKeys",
    "Authenticator",
    "IssuerUnreachableError",
    "Refusal",
    "ReplaceableAuthenticator",
    "RequestAuthenticator",
    "Tokens",
    "admit_request",
    "check_exposure",
    "digest_of",
    "new_key",
]
