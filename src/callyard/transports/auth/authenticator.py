"""The interface of authenticators: who is admitted, how others are refused, and the checks that all of them need."""

from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from callyard._internal.addresses import is_loopback

__all__ = [
    "KEY_PREFIX",
    "Admitted",
    "Authenticator",
    "ErrorCode",
    "FetchError",
    "IssuerUnreachableError",
    "Refusal",
    "bearer_of",
    "check_exposure",
    "check_url",
]


class FetchError(Exception):
    """A document of an issuer cannot be fetched: a word for the log, and the end of a sentence for people."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def check_url(name: str, url: str) -> None:
    """Check that keys may be fetched from a URL, without repeating it, because it may hold a password.

    Raises:
        ValueError: It is no https URL (or http of this machine), or it holds a user, a query or a fragment.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        raise ValueError(f"The '{name}' is no address.") from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise ValueError(f"The '{name}' must be an https address; http is for addresses of this machine.")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"The '{name}' must not hold a user or a password.")
    if parts.fragment or (parts.query and name == "issuer"):
        raise ValueError(f"The '{name}' must end with its path.")


KEY_PREFIX: Final = "key:"
"""The prefix of the identity of every API key, so that no token can name the same caller."""
ErrorCode = Literal["", "invalid_request", "invalid_token", "insufficient_scope"]
"""The error codes of RFC 6750; empty if there were no credentials."""
_UNQUOTED: Final = " !#$%&'()*+,-./:;<=>?@[]^_`{|}~"


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of an authenticated caller, and the profile that the credentials choose, if any."""

    identity: str
    claims: dict[str, Any] = {}
    profile: str | None = None
    """Without one, the yard's own applies."""
    profiles: tuple[str, ...] = ()
    """The other profiles that the caller may choose by the path of a request."""

    def __repr__(self) -> str:
        """Return the identity, without the claims."""
        return f"<Admitted '{self.identity}'>"


class Refusal(Exception):  # noqa: N818 - an answer to a caller, not an error of the program
    """Credentials are missing, wrong or not enough; an HTTP 401 or 403."""

    def __init__(self, message: str, *, status: Literal[401, 403] = 401, error: ErrorCode = "", scopes: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.status: Literal[401, 403] = status
        self.error: ErrorCode = error
        self.scopes = tuple(scopes)

    def challenge(self, resource_metadata: str | None = None) -> str:
        """Return the value of `WWW-Authenticate`, with the URL of the RFC 9728 metadata if there is any."""
        fields = {"realm": "callyard"}
        if self.error:
            fields |= {"error": self.error, "error_description": self.message}
        if self.scopes:
            fields["scope"] = " ".join(self.scopes)
        if resource_metadata is not None:
            fields["resource_metadata"] = resource_metadata
        return "Bearer " + ", ".join(f'{name}="{quote(value, safe=_UNQUOTED)}"' for name, value in fields.items())


class IssuerUnreachableError(Exception):
    """The keys of the issuer cannot be fetched now, so no token can be checked; an HTTP 503."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class Authenticator(Protocol):
    """Authenticates HTTP requests."""

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        """Return the caller of a request from its headers `Authorization` and `X-API-Key`.

        Raises:
            Refusal: The credentials are missing, wrong or not enough.
            IssuerUnreachableError: They cannot be checked now.
        """
        ...

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        """Return the RFC 9728 metadata of the resource at a URL, or None if there is no issuer."""
        ...


def bearer_of(authorization: str | None) -> str | None:
    """Return the credentials in a header `Authorization`, or None if its scheme is not Bearer.

    Raises:
        Refusal: The scheme is Bearer, and not one word follows.
    """
    scheme, _, rest = (authorization or "").strip().partition(" ")
    if scheme.lower() != "bearer":
        return None
    credentials = rest.split()
    if len(credentials) != 1:
        raise Refusal("The header 'Authorization' must be 'Bearer' and one word.", error="invalid_request")
    return credentials[0]


def check_exposure(host: str | None, authenticator: Authenticator | None) -> None:
    """Check that a host may be served; None is a Unix socket, which is local.

    Raises:
        ValueError: Other machines can reach the host, and there is no authentication.
    """
    if authenticator is not None or host is None or is_loopback(host):
        return
    raise ValueError(
        f"'{host}' can be reached from other machines, and without authentication it is not served: "
        "add an '[auth]' section with 'api_keys' (made with 'callyard key NAME') or with 'issuer' and 'audience', "
        "or serve '127.0.0.1'."
    )
