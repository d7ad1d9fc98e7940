"""Authenticators: who is admitted, how others are refused, the checks that all of them need, and API keys.

An API key has 256 random bits, so nobody can find it by its digest, however fast the hash is. A slow hash is for
passwords that people choose; here it would only slow down every request.
"""

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, runtime_checkable
from urllib.parse import quote, urlsplit

import msgspec

from callyard._internal.addresses import is_loopback
from callyard._internal.logfmt import is_identifier

__all__ = [
    "KEY_PREFIX",
    "Admitted",
    "ApiKey",
    "ApiKeys",
    "Authenticator",
    "ErrorCode",
    "FetchError",
    "IssuerUnreachableError",
    "Refusal",
    "ReplaceableAuthenticator",
    "RequestAuthenticator",
    "admit_request",
    "bearer_of",
    "check_exposure",
    "check_url",
    "digest_of",
    "new_key",
]


class FetchError(Exception):
    """A document of an issuer cannot be fetched: a word for the log, and the end of a sentence for people."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


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

    def __init__(
        self, message: str, *, status: Literal[401, 403] = 401, error: ErrorCode = "", scopes: Iterable[str] = ()
    ) -> None:
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


@runtime_checkable
class RequestAuthenticator(Authenticator, Protocol):
    """An authenticator that gets more of a request than its two usual headers."""

    async def admit_request(self, path: str, headers: Mapping[str, str]) -> Admitted:
        """Return the caller of a request from its path and its headers, with names in lower case; instead of `admit`.

        Raises:
            Refusal: The credentials are missing, wrong or not enough.
            IssuerUnreachableError: They cannot be checked now.
        """
        ...


async def admit_request(authenticator: Authenticator, path: str, headers: Mapping[str, str]) -> Admitted:
    """Return the caller of a request, from as much of it as the authenticator takes.

    Raises:
        Refusal: The credentials are missing, wrong or not enough.
        IssuerUnreachableError: They cannot be checked now.
    """
    if isinstance(authenticator, RequestAuthenticator):
        return await authenticator.admit_request(path, headers)
    return await authenticator.admit(headers.get("authorization"), headers.get("x-api-key"))


class ReplaceableAuthenticator:
    """Forwards to an authenticator that can be replaced while the server runs."""

    def __init__(self, current: Authenticator) -> None:
        self.current: Authenticator | None = current
        """The authenticator in use; without one, everybody is refused."""
        self._subscribers: list[Callable[[str], Awaitable[None]]] = []

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        """Return the caller from the current authenticator.

        Raises:
            Refusal: It refuses the credentials, or there is none.
            IssuerUnreachableError: They cannot be checked now.
        """
        while True:
            current = self.current
            if current is None:
                raise Refusal("The server accepts no credentials.", error="invalid_token")
            admitted = await current.admit(authorization, api_key)
            if self.current is current:  # it may have been replaced while it waited for an issuer
                return admitted

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        """Return the metadata of the current authenticator."""
        return None if self.current is None else self.current.protected_resource(resource)

    def subscribe(self, recheck: Callable[[str], Awaitable[None]]) -> None:
        """Call a function after each replacement; it ends what the new authenticator would refuse.

        It gets the prefix of the identities whose credentials may have changed.
        """
        self._subscribers.append(recheck)

    async def replace(self, authenticator: Authenticator | None, *, only_keys: bool) -> None:
        """Use another authenticator, or refuse everybody; with `only_keys`, tokens are checked as before."""
        self.current = authenticator
        for recheck in self._subscribers:
            await recheck(KEY_PREFIX if only_keys else "")


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
    if authenticator is None and host is not None and not is_loopback(host):
        raise ValueError(
            f"'{host}' can be reached from other machines, and without authentication it is not served: "
            "add an '[auth]' section with 'api_keys' (made with 'callyard key NAME') or with 'issuer' and 'audience', "
            "or serve '127.0.0.1'."
        )


_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


def new_key() -> str:
    """Return a new random key, to be shown once."""
    return f"cy_{secrets.token_urlsafe(32)}"


def digest_of(key: str) -> str:
    """Return the digest of a key, which is all that is stored."""
    return f"sha256:{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"


class ApiKey(msgspec.Struct, frozen=True):
    """The name and the digest of a key, its profile, and the other profiles that its owner may choose by path."""

    name: str
    digest: str
    profile: str | None = None
    profiles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_identifier(self.name):
            raise ValueError("The name of an API key must be one plain word.")
        if _DIGEST.match(self.digest) is None:
            # The value is not repeated, because it may be the key itself.
            raise ValueError(
                f"The digest of the API key '{self.name}' must be 'sha256:' and 64 hexadecimal digits in small letters."
            )


class ApiKeys:
    """Admits callers with one of these keys.

    Two keys of one name are one caller, so that a key can be replaced without a gap.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = [
            (key.digest, Admitted(identity=f"{KEY_PREFIX}{key.name}", profile=key.profile, profiles=key.profiles))
            for key in keys
        ]
        if not self._keys:
            raise ValueError("Without API keys nobody could come in: add one.")
        if len({digest for digest, _ in self._keys}) < len(self._keys):
            raise ValueError("Two API keys have the same digest.")
        owners: dict[str, Admitted] = {}
        for _, admitted in self._keys:
            if owners.setdefault(admitted.identity, admitted) != admitted:
                name = admitted.identity.removeprefix(KEY_PREFIX)
                raise ValueError(f"The API keys named '{name}' must have the same profiles.")

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        """Return the owner of the key in `X-API-Key`, or in `Authorization` as Bearer.

        Raises:
            Refusal: There is none, or it is unknown.
        """
        key = (api_key or "").strip() or bearer_of(authorization)
        if not key:
            raise Refusal("An API key is needed, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'.")
        digest = digest_of(key)
        # All are compared, so that the time does not depend on which one matches.
        matches = [admitted for stored, admitted in self._keys if hmac.compare_digest(stored, digest)]
        if not matches:
            raise Refusal("The API key is not known.", error="invalid_token")
        return matches[0]

    def protected_resource(self, resource: str) -> dict[str, Any] | None:  # noqa: ARG002 - the interface of `Authenticator`
        """Return None: keys have no issuer."""
        return None
