"""What a request must pass before it is read: the host and the origin, the credentials, and how much is open already.

A page in a browser can reach a local server, also under a host name of its own (DNS rebinding). So `Host` and `Origin`
are checked by default: only pages of the server itself may use it. Requests in work and connections are bounded in all
and for one identity. Callers without credentials have no identity to count by; for them only the total is bounded.
"""

import logging
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard._internal.addresses import is_loopback, origin_of
from callyard._internal.logfmt import log_value
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, Caller
from callyard.model.profile import Profile
from callyard.transports.auth import (
    Admitted,
    Authenticator,
    IssuerUnreachableError,
    Refusal,
    ReplaceableAuthenticator,
    admit_request,
)
from callyard.transports.http.request import Headers, RefusedError, Release, Request
from callyard.wire.headers import PARAM, ROUTING
from callyard.wire.messages import HEADER_MISMATCH, Fault
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.transports.http.protocol import Connection

__all__ = [
    "METADATA_PATH",
    "AccessCheck",
    "Admissions",
    "Connections",
    "Requests",
    "Throttle",
    "caller_of",
    "check_duplicates",
    "check_routing_duplicates",
    "find_profile",
    "url_of",
]


METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_SINGLE: Final = frozenset(
    {
        *(b"host", b"origin", b"authorization", b"x-api-key", b"mcp-session-id", b"content-type", b"content-length"),
        *(b"transfer-encoding", b"expect", b"content-encoding"),
    }
)
_MAX_CHECKED: Final = 1000
_MAX_LOGGED_ORIGINS: Final = 100
_ORIGIN_CHARACTERS: Final = 200
_CREDENTIALS_QUIET_S: Final = 1.0
_QUIET_S: Final = 10.0
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


def url_of(request: Request, path: str, serving: Serving) -> str:
    """Return the URL of a path as the client knows it, from the settings or from the request.

    It is below the path at which the application is mounted: the rest of the host may be another's.
    """
    if serving.public_url is not None:
        return serving.public_url.rstrip("/") + path
    host = request.headers.get(b"host", b"localhost").decode("latin-1")
    return f"{request.scheme}://{host}{request.root}{path}"


class AccessCheck:
    """Checks the host, the origin and the credentials of requests."""

    def __init__(self, serving: Serving, authenticator: Authenticator | None, *, host: str | None) -> None:
        self._serving = serving
        self._authenticator = authenticator
        self._hosts = frozenset(name.lower() for name in serving.allowed_hosts)
        self._origins = frozenset(_normal_origin(origin) for origin in serving.allowed_origins)
        self._listed_origins = serving.allowed_origins
        self._public_origin = "" if serving.public_url is None else origin_of(serving.public_url)
        self._is_local = host is None or is_loopback(host)
        public_host = _without_port(self._public_origin.partition("://")[2])
        self._own_names = _LOCAL_NAMES | {name for name in (public_host, (host or "").lower()) if name}
        self._checked: set[tuple[bytes | None, bytes | None, str]] = set()
        """Hosts, origins and schemes that passed together, so that each is checked once."""
        self._logged_origins: set[str] = set()
        self._throttle = Throttle(_CREDENTIALS_QUIET_S)

    def check(self, headers: Headers, scheme: str = "http") -> None:
        """Check the headers `Host` and `Origin` of a request that came by a scheme.

        Raises:
            RefusedError: 421 or 403.
        """
        key = (headers.get(b"host"), headers.get(b"origin"), scheme)
        if key in self._checked:
            return
        host, origin = (None if text is None else text.decode("latin-1").lower() for text in key[:2])
        if not self._allows_host(host):
            raise RefusedError(421, "This server is not known by that name. Allow it with 'allowed_hosts'.")
        if origin is not None and not self._allows_origin(origin, f"{scheme}://{host}"):
            raise self._origin_refusal(origin)
        if len(self._checked) < _MAX_CHECKED:
            self._checked.add(key)

    async def admit(self, request: Request, path: str) -> Admitted | None:
        """Return who the credentials of a request to the endpoint at a path name; None if none are needed.

        Raises:
            RefusedError: 401, 403 or 503.
        """
        if self._authenticator is None:
            return None
        try:
            return await self._ask(self._authenticator, request)
        except Refusal as refusal:
            # a request without any credentials is how clients ask for the way to log in
            if refusal.error and (count := self._throttle.count()):
                facts = refusal.status, refusal.error, count, log_value(refusal.message)
                _log.warning("credentials_refused status=%d error=%s times=%d reason=%s", *facts)
            metadata: str | None = None
            if self._authenticator.protected_resource(url_of(request, path, self._serving)) is not None:
                metadata = url_of(request, METADATA_PATH + path, self._serving)
            challenge = (b"www-authenticate", refusal.challenge(metadata).encode("latin-1", "replace"))
            raise RefusedError(refusal.status, refusal.message, (challenge,)) from None
        except IssuerUnreachableError as error:
            retry = (b"retry-after", b"%d" % max(1, round(error.retry_after)))
            raise RefusedError(503, error.message, (retry,)) from None

    async def still_admits(self, request: Request, admitted: Admitted) -> bool:
        """Return whether the credentials of a request are worth the same as when it was admitted."""
        try:
            return self._authenticator is None or await self._ask(self._authenticator, request) == admitted
        except Refusal:
            return False

    def _ask(self, authenticator: Authenticator, request: Request) -> Awaitable[Admitted]:
        texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
        return admit_request(authenticator, request.path, texts)

    def protected_resource(self, url: str) -> dict[str, Any] | None:
        """Return the RFC 9728 metadata of an endpoint, if there is an issuer."""
        return None if self._authenticator is None else self._authenticator.protected_resource(url)

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

    def _allows_origin(self, origin: str, own: str) -> bool:
        """Return whether a page may use the server: one of its own, or one whose origin is listed.

        `null` is what files and sandboxed frames send. It names nobody, so only `null` itself allows it.
        """
        if _normal_origin(origin) in self._origins:
            return True
        parsed = origin_of(origin)
        if not parsed or parsed != origin.rstrip("/") or parsed.startswith("file:"):
            return False
        return "*" in self._origins or parsed == (self._public_origin or origin_of(own))

    def _origin_refusal(self, origin: str) -> RefusedError:
        """Return the refusal of a page, which names the line of the settings that would allow it; logs each once."""
        if not origin_of(origin) or len(origin) > _ORIGIN_CHARACTERS or not origin.isprintable():
            return RefusedError(403, "A page without an address of its own may not use this server.")
        line = f"allowed_origins = {msgspec.json.encode([*self._listed_origins, origin]).decode()}"
        if origin not in self._logged_origins and len(self._logged_origins) < _MAX_LOGGED_ORIGINS:
            self._logged_origins.add(origin)
            _log.warning("origin_refused origin=%s section=[serve] add=%s", log_value(origin), log_value(line))
        advice = f"To allow it, set this in the section '[serve]' of the settings: {line}"
        return RefusedError(403, f"A page of '{origin}' may not use this server. {advice}")


class Admissions:
    """The requests in work that came with credentials; each ends when its credentials are no longer accepted."""

    def __init__(self, access_check: AccessCheck, authenticator: Authenticator | None) -> None:
        self._access_check = access_check
        self._entries: dict[Request, tuple[Admitted, Callable[[], None]]] = {}
        if isinstance(authenticator, ReplaceableAuthenticator):
            authenticator.subscribe(self._recheck)

    def add(self, request: Request, admitted: Admitted, *, end: Callable[[], None]) -> None:
        """Add a request; `end` ends its response."""
        self._entries[request] = (admitted, end)

    def remove(self, request: Request) -> None:
        """Remove a request that has its response, if it is here."""
        self._entries.pop(request, None)

    async def _recheck(self, prefix: str) -> None:
        for request, (admitted, end) in tuple(self._entries.items()):
            if admitted.identity.startswith(prefix) and not await self._access_check.still_admits(request, admitted):
                _log.warning("credentials_revoked identity=%s", log_value(admitted.identity))
                end()


def caller_of(yard: Yard, admitted: Admitted) -> tuple[Caller, frozenset[str]]:
    """Return an admitted caller, and the profiles that it may choose by path.

    Raises:
        RefusedError: 404 if its profile does not exist.
    """
    profile = None if admitted.profile is None else find_profile(yard, admitted.profile)
    caller = Caller(identity=admitted.identity, claims=admitted.claims, profile=profile)
    return caller, frozenset((admitted.profile or yard.profile.name, *admitted.profiles))


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
    """Check that no header that decides about access is there twice.

    One reader would take the first value, another the last.

    Raises:
        RefusedError: 400.
    """
    duplicate = _first_duplicate(pairs, _SINGLE.__contains__)
    if duplicate is not None:
        raise RefusedError(400, f"The header '{duplicate}' is there twice.")


def check_routing_duplicates(pairs: list[tuple[bytes, bytes]]) -> None:
    """Check that no header by which requests are routed is there twice.

    Raises:
        Fault: One is.
    """
    duplicate = _first_duplicate(pairs, lambda name: name in ROUTING or name.startswith(PARAM))
    if duplicate is not None:
        raise Fault(HEADER_MISMATCH, f"The header '{duplicate}' is there twice.")


def _first_duplicate(pairs: list[tuple[bytes, bytes]], matters: Callable[[bytes], bool]) -> str | None:
    counts = Counter(name for name, _ in pairs)
    return next((name.decode("latin-1") for name, count in counts.items() if count > 1 and matters(name)), None)


def _normal_origin(origin: str) -> str:
    return origin_of(origin) or origin.lower().rstrip("/")


def _without_port(host: str) -> str:
    """Return a host without its port; a malformed host stays as it is, so that it matches nothing."""
    return _PORT.sub("", host) if host.startswith("[") or host.count(":") == 1 else host


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
        if identity != ANYONE.identity and not self._by_identity.add(identity):
            raise self._refusal("These credentials have too many requests in work.", identity)
        self._running += 1
        return partial(self._leave, identity)

    def _leave(self, identity: str) -> None:
        self._running -= 1
        if identity != ANYONE.identity:
            self._by_identity.remove(identity)

    def _refusal(self, sentence: str, identity: str) -> RefusedError:
        if count := self._throttle.count():
            _log.warning("requests_refused identity=%s in_work=%d times=%d", log_value(identity), self._running, count)
        return RefusedError(503, sentence, ((b"retry-after", b"1"),))


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
                facts = len(self.all), len(self._strangers), count
                _log.warning("connections_refused open=%d strangers=%d times=%d", *facts)
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
        connection.is_admitted = True
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
                facts = _descriptors(), len(self.all), count, error
                _log.error("descriptors_exhausted limit=%d connections=%d times=%d error=%s", *facts)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft, 2 * _RESERVED_DESCRIPTORS) if soft != resource.RLIM_INFINITY else 1 << 30
