"""Guards: what stands at the door, whom it admits and how it refuses."""

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote, urlsplit

import msgspec

__all__ = [
    "KEY_PREFIX",
    "Admitted",
    "Authenticator",
    "Fault",
    "IssuerUnreachableError",
    "Refusal",
    "UnreadError",
    "bearer_of",
    "check_address",
    "check_exposure",
    "is_loopback",
]


class UnreadError(Exception):
    """What is at an address could not be had: a word for the log, and the end of a sentence for people."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached from this machine only; a name that is not 'localhost' is never looked up."""
    bare = host.removeprefix("[").removesuffix("]")
    if bare.lower() == "localhost":
        return True
    try:
        address = ip_address(bare)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def check_address(name: str, address: str) -> None:
    """Check that keys may be asked for at an address, without repeating it: it may hold a password.

    Raises:
        ValueError: It is no https address (or http of this machine), or it holds a user, a query or a fragment.
    """
    try:
        parts = urlsplit(address)
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
"""What the identity of every API key begins with, so that no token can name the same caller."""
Fault = Literal["", "invalid_request", "invalid_token", "insufficient_scope"]
"""What was wrong with the credentials, in the words of RFC 6750; empty if none came."""
_PLAIN: Final = " !#$%&'()*+,-./:;<=>?@[]^_`{|}~"


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """Who was let in, and which profile was chosen for them, if any."""

    identity: str
    claims: dict[str, Any] = {}
    profile: str | None = None

    def __repr__(self) -> str:
        """Return who it is, without what is claimed of them."""
        return f"<Admitted '{self.identity}'>"


class Refusal(Exception):  # noqa: N818 - an answer to a caller, not an error of the program
    """Why somebody was not let in, as HTTP says it."""

    def __init__(self, message: str, *, status: Literal[401, 403] = 401, error: Fault = "", scopes: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.status: Literal[401, 403] = status
        self.error: Fault = error
        self.scopes = tuple(scopes)

    def challenge(self, resource_metadata: str | None = None) -> str:
        """Return the value of WWW-Authenticate; the address is where the RFC 9728 document is served."""
        facts = {"realm": "toolyard"}
        if self.error:
            facts |= {"error": self.error, "error_description": self.message}
        if self.scopes:
            facts["scope"] = " ".join(self.scopes)
        if resource_metadata is not None:
            facts["resource_metadata"] = resource_metadata
        return "Bearer " + ", ".join(f'{name}="{quote(value, safe=_PLAIN)}"' for name, value in facts.items())


class IssuerUnreachableError(Exception):
    """The keys of the issuer cannot be had now, so nothing can be said about a token; HTTP calls this 503."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class Authenticator(Protocol):
    """Decides who comes in."""

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        """Return who is calling, by the values of the headers Authorization and X-API-Key.

        Raises:
            Refusal: The credentials are missing, wrong, or not enough.
            IssuerUnreachableError: It cannot be decided now.
        """
        ...

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        """Return the RFC 9728 document for the resource at that address, or nothing if there is none to serve."""
        ...


def bearer_of(authorization: str | None) -> str | None:
    """Return the credentials of the header Authorization, or nothing if it has none of the scheme Bearer.

    Raises:
        Refusal: The scheme is Bearer, and what follows is not one word.
    """
    scheme, _, rest = (authorization or "").strip().partition(" ")
    if scheme.lower() != "bearer":
        return None
    credentials = rest.split()
    if len(credentials) != 1:
        raise Refusal("The header 'Authorization' must be 'Bearer' and one word.", error="invalid_request")
    return credentials[0]


def check_exposure(host: str | None, authenticator: Authenticator | None) -> None:
    """Check that a host may be served with this guard; no host is a Unix socket, which is local.

    Raises:
        ValueError: Others can reach the host, and nothing guards it.
    """
    if authenticator is not None or host is None or is_loopback(host):
        return
    raise ValueError(
        f"'{host}' can be reached from other machines, and without authentication it is not served: "
        "add an '[auth]' section with 'api_keys' (made with 'toolyard key NAME') or with 'issuer' and 'audience', "
        "or serve '127.0.0.1'."
    )
