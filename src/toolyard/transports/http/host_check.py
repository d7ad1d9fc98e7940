"""The checks before a request is read: the host and the origin, the credentials, and headers that are there twice.

A page in a browser can reach a local server under a host name of its own (DNS rebinding). So `Host` and `Origin` are checked by
default.
"""

import logging
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from toolyard._internal.logfmt import log_value
from toolyard.config.settings import Serving
from toolyard.dispatch.call import SHARED, Caller
from toolyard.model.profile import Profile
from toolyard.transports.auth import Authenticator, Refusal
from toolyard.transports.auth.authenticator import is_loopback
from toolyard.transports.http.capacity import Throttle
from toolyard.transports.http.request import Headers, RefusedError, Request
from toolyard.yard import Yard

__all__ = ["METADATA_PATH", "EndpointUrl", "HostCheck", "check_duplicates", "endpoint_url_of", "find_profile", "first_duplicate"]


METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_SINGLE: Final = frozenset({b"host", b"origin", b"authorization", b"x-api-key", b"mcp-session-id", b"content-type", b"content-length"}) | {
    b"transfer-encoding",
    b"expect",
    b"content-encoding",
}
_MAX_CHECKED: Final = 1000
_QUIET_SECONDS: Final = 1.0
_log = logging.getLogger(__name__)
_PORT: Final = re.compile(r":[0-9]+\Z")


class EndpointUrl(msgspec.Struct, frozen=True):
    """The URL of an endpoint as its client knows it."""

    base: str
    path: str

    @property
    def resource(self) -> str:
        """Return the whole URL."""
        return self.base + self.path

    @property
    def metadata(self) -> str:
        """Return the URL of the endpoint's metadata, which is below the base: the rest of the host may be another's."""
        return f"{self.base}{METADATA_PATH}{self.path}"


def endpoint_url_of(request: Request, path: str, serving: Serving) -> EndpointUrl:
    """Return the URL of the endpoint at a path, from the settings or from the request."""
    if serving.public_url is not None:
        return EndpointUrl(serving.public_url.rstrip("/"), path)
    host = request.headers.get(b"host", b"localhost").decode("latin-1")
    return EndpointUrl(f"{request.scheme}://{host}{request.root}", path)


class HostCheck:
    """Checks the host, the origin and the credentials of requests."""

    def __init__(self, serving: Serving, authenticator: Authenticator | None, *, host: str | None) -> None:
        self._authenticator = authenticator
        self._hosts = frozenset(name.lower() for name in serving.allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in serving.allowed_origins)
        self._is_local = host is None or is_loopback(host)
        self._own_names = _LOCAL_NAMES if host is None else _LOCAL_NAMES | {host.lower()}
        self._checked: set[tuple[bytes | None, bytes | None]] = set()
        """Pairs of host and origin that passed, so that each is checked once."""
        self._throttle = Throttle(_QUIET_SECONDS)

    def check(self, headers: Headers) -> None:
        """Check the headers `Host` and `Origin`.

        Raises:
            RefusedError: 421 or 403.
        """
        key = (headers.get(b"host"), headers.get(b"origin"))
        if key in self._checked:
            return
        host, origin = (None if text is None else text.decode("latin-1").lower() for text in key)
        if not self._allows_host(host):
            raise RefusedError(421, "This server is not known by that name. Allow it with 'allowed_hosts'.")
        if origin is not None and not self._allows_origin(origin, host):
            raise RefusedError(403, "This page may not use the server. Allow it with 'allowed_origins'.")
        if len(self._checked) < _MAX_CHECKED:
            self._checked.add(key)

    async def authenticate(self, yard: Yard, headers: Headers, url: EndpointUrl) -> tuple[Caller, frozenset[str] | None]:
        """Return the caller that the credentials name, and the profiles that it may choose by path; None is any.

        Raises:
            RefusedError: 401, 403, 404 or 503.
        """
        if self._authenticator is None:
            return SHARED, None
        from toolyard.transports.auth import IssuerUnreachableError  # noqa: PLC0415 - only a server with authentication needs it

        try:
            admitted = await self._authenticator.admit(_text(headers, b"authorization"), _text(headers, b"x-api-key"))
        except Refusal as refusal:
            self._log_refusal(refusal)
            metadata = None if self._authenticator.protected_resource(url.resource) is None else url.metadata
            challenge = (b"www-authenticate", refusal.challenge(metadata).encode("latin-1", "replace"))
            raise RefusedError(refusal.status, refusal.message, (challenge,)) from None
        except IssuerUnreachableError as error:
            retry = (b"retry-after", b"%d" % max(1, round(error.retry_after)))
            raise RefusedError(503, error.message, (retry,)) from None
        profile = None if admitted.profile is None else find_profile(yard, admitted.profile)
        own = yard.profile.name if admitted.profile is None else admitted.profile
        caller = Caller(identity=admitted.identity, claims=admitted.claims, profile=profile)
        return caller, frozenset((own, *admitted.profiles))

    def _log_refusal(self, refusal: "Refusal") -> None:
        """Log wrong credentials; a request without any is how clients ask for the way to log in."""
        if refusal.error and (count := self._throttle.count()):
            reason = log_value(refusal.message)
            _log.warning("credentials_refused status=%d error=%s times=%d reason=%s", refusal.status, refusal.error, count, reason)

    def protected_resource(self, url: EndpointUrl) -> dict[str, Any] | None:
        """Return the RFC 9728 metadata of an endpoint, if there is an issuer."""
        return None if self._authenticator is None else self._authenticator.protected_resource(url.resource)

    def _allows_host(self, host: str | None) -> bool:
        if host is None or "*" in self._hosts:
            return host is not None
        name = _without_port(host)
        return (
            name in self._own_names
            or name in self._hosts
            or host in self._hosts
            or (not self._is_local and not self._hosts and self._authenticator is not None)
        )

    def _allows_origin(self, origin: str, host: str | None) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        try:
            netloc = urlsplit(origin).netloc
        except ValueError:
            return False
        name = _without_port(netloc)
        return bool(netloc) and (
            name in self._hosts or (self._is_local and name in self._own_names) or (not self._is_local and netloc == host)
        )


def find_profile(yard: Yard, name: str) -> Profile:
    """Return a profile by its name.

    Raises:
        RefusedError: 404 if there is none.
    """
    try:
        return yard.profile_of(name)
    except KeyError:
        raise RefusedError(404, "There is nothing here.") from None


def check_duplicates(pairs: list[tuple[bytes, bytes]]) -> None:
    """Check that no header that decides who speaks to whom is there twice: one reader would take the first, another the last.

    Raises:
        RefusedError: 400.
    """
    duplicate = first_duplicate(pairs, _SINGLE.__contains__)
    if duplicate is not None:
        raise RefusedError(400, f"The header '{duplicate}' is there twice.")


def first_duplicate(pairs: list[tuple[bytes, bytes]], matters: Callable[[bytes], bool]) -> str | None:
    """Return the first header that matters and is there twice."""
    seen: set[bytes] = set()
    for name, _ in pairs:
        if name in seen and matters(name):
            return name.decode("latin-1")
        seen.add(name)
    return None


def _without_port(host: str) -> str:
    """Return a host without its port; a malformed host stays as it is, so that it matches nothing."""
    return _PORT.sub("", host) if host.startswith("[") or host.count(":") == 1 else host


def _text(headers: Headers, name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")
