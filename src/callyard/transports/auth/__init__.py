"""Authentication over HTTP by API key or by the access token of an issuer; it knows no HTTP server."""

from callyard.transports.auth.api_keys import ApiKey, ApiKeys, digest_of, new_key
from callyard.transports.auth.authenticator import Admitted, Authenticator, IssuerUnreachableError, Refusal, check_exposure
from callyard.transports.auth.tokens import AnyOf, Tokens

__all__ = [
    "Admitted",
    "AnyOf",
    "ApiKey",
    "ApiKeys",
    "Authenticator",
    "IssuerUnreachableError",
    "Refusal",
    "Tokens",
    "check_exposure",
    "digest_of",
    "new_key",
]
