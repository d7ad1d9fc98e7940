"""What a request must pass before it is read: the host and the origin, the credentials, and how much is open already.

A page in a browser can reach a local server under a host name of its own (DNS rebinding). So `Host` and `Origin` are checked by
default. Requests in work and connections are bounded in all and for one identity. Callers without credentials have no identity to
count by; for them only the total is bounded.
"""

import logging
import os
import re
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from callyard._internal.addresses import is_loopback
from callyard._internal.logfmt import log_value
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, SHARED, Caller
from callyard.model.profile import Profile
from callyard.transports.auth import Authenticator, Refusal
from callyard.transports.http.request import Headers, RefusedError, Release, Request
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.transports.http.protocol import Connection

__all__ = [
    "METADATA_PATH",
    "AccessCheck",
    "Connections",
    "EndpointUrl",
    "Requests",
    "Throttle",
    "check_duplicates",
    "endpoint_url_of",
    "find_profile",
    "first_duplicate",
]


METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_SINGLE: Final = frozenset({b"host", b"origin", b"authorization", b"x-api-key", b"mcp-session-id", b"content-type", b"content-length"}) | {
    b"transfer-encoding",
    b"expect",
    b"content-encoding",
}
_MAX_CHECKED: Final = 1000
_CREDENTIALS_QUIET_S: Final = 1.0
_QUIET_S: Final = 10.0
_RETRY: Final = ((b"retry-after", b"1"),)
_RESERVED_DESCRIPTORS: Final = 64
"""Descriptors that connections leave to files, upstreams and tools."""
_log = logging.getLogger(__name__)
_PORT: Final = re.compile(r":[0-9]+\Z")


class Throttle:
    """Lets one of many equal log lines through in a while, so that strangers cannot fill the log."""

    def __init__(self, seconds: float = _QUIET_S) -> None:
        self._seconds = seconds
        self._next = 0.0
        self._count = 0

    def count(self) -> int:
        """Count an event; return how many there were since the last line, or 0 if it is too early for another."""
        self._count += 1
        now = time.monotonic()
        if now < self._next:
            return 0
        self._next = now + self._seconds
        count, self._count = self._count, 0
        return count


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


class AccessCheck:
    """Checks the host, the origin and the credentials of requests."""

    def __init__(self, serving: Serving, authenticator: Authenticator | None, *, host: str | None) -> None:
        self._authenticator = authenticator
        self._hosts = frozenset(name.lower() for name in serving.allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in serving.allowed_origins)
        self._is_local = host is None or is_loopback(host)
        self._own_names = _LOCAL_NAMES if host is None else _LOCAL_NAMES | {host.lower()}
        self._checked: set[tuple[bytes | None, bytes | None]] = set()
        """Pairs of host and origin that passed, so that each is checked once."""
        self._throttle = Throttle(_CREDENTIALS_QUIET_S)

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
        from callyard.transports.auth import IssuerUnreachableError  # noqa: PLC0415 - only a server with authentication needs it

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


class _Counts:
    """Counts by identity, up to a limit for each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    def add(self, identity: str) -> bool:
        """Count one more; return False if there are too many."""
        count = self._counts.get(identity, 0)
        if count >= self._limit:
            return False
        self._counts[identity] = count + 1
        return True

    def remove(self, identity: str) -> None:
        """Count one less."""
        self._counts[identity] -= 1
        if not self._counts[identity]:
            del self._counts[identity]


class Requests:
    """The requests in work."""

    def __init__(self, serving: Serving) -> None:
        self._limit = serving.requests
        self._running = 0
        self._by_identity = _Counts(serving.requests_per_identity)
        self._throttle = Throttle()

    def enter(self, identity: str) -> Release:
        """Count a request; return what is called at its end.

        Raises:
            RefusedError: 503 if there are too many.
        """
        if self._running >= self._limit:
            raise self._refusal("The server has too many requests in work.", "all")
        if identity == ANYONE.identity:
            self._running += 1
            return self._leave
        if not self._by_identity.add(identity):
            raise self._refusal("These credentials have too many requests in work.", identity)
        self._running += 1
        return partial(self._leave_as, identity)

    def _leave(self) -> None:
        self._running -= 1

    def _leave_as(self, identity: str) -> None:
        self._running -= 1
        self._by_identity.remove(identity)

    def _refusal(self, sentence: str, identity: str) -> RefusedError:
        if count := self._throttle.count():
            _log.warning("requests_refused identity=%s in_work=%d times=%d", log_value(identity), self._running, count)
        return RefusedError(503, sentence, _RETRY)


class Connections:
    """The connections of one server; one that never had an admitted request makes room for a new one."""

    def __init__(self, serving: Serving) -> None:
        self.all: dict[Connection, None] = {}
        self._strangers: dict[Connection, None] = {}
        """Those without an admitted request, the oldest first."""
        self._limit = min(serving.connections, _descriptors() - _RESERVED_DESCRIPTORS)
        self._by_identity = _Counts(serving.connections_per_identity)
        self._throttle = Throttle()
        self._descriptor_throttle = Throttle()

    def add(self, connection: "Connection") -> None:
        """Add a new connection; if there are too many, the oldest stranger is turned away, or else the new one."""
        self.all[connection] = None
        self._strangers[connection] = None
        if len(self.all) > self._limit:
            if count := self._throttle.count():
                _log.warning("connections_refused open=%d strangers=%d times=%d", len(self.all), len(self._strangers), count)
            stranger = next(iter(self._strangers))
            del self._strangers[stranger]
            stranger.turn_away()

    def remove(self, connection: "Connection") -> None:
        """Forget a closed connection."""
        self.all.pop(connection, None)
        self._strangers.pop(connection, None)
        if connection.identity is not None:
            self._by_identity.remove(connection.identity)
            connection.identity = None

    def admit(self, connection: "Connection", identity: str | None) -> bool:
        """Count a connection for the identity of its newest request; return False if it has too many."""
        self._strangers.pop(connection, None)
        if identity == connection.identity:
            return True
        if identity is not None and not self._by_identity.add(identity):
            if count := self._throttle.count():
                _log.warning("connections_refused identity=%s times=%d", log_value(identity), count)
            return False
        if connection.identity is not None:
            self._by_identity.remove(connection.identity)
        connection.identity = identity
        return True

    def check_descriptors(self, descriptor: int) -> None:
        """Log if the process has no file descriptors left, because event loops then drop new connections silently."""
        try:
            os.close(os.dup(descriptor))
        except OSError as error:
            if count := self._descriptor_throttle.count():
                _log.error("descriptors_exhausted limit=%d connections=%d times=%d error=%s", _descriptors(), len(self.all), count, error)


def _descriptors() -> int:
    """Return how many file descriptors the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft, 2 * _RESERVED_DESCRIPTORS) if soft != resource.RLIM_INFINITY else 1 << 30
