"""The gate: who may speak to the server at all, before a word of the protocol is read.

A page in a browser can reach a server on this machine under a name of its own; so the name it is addressed by and the page that
speaks are looked at, by default.
"""

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE, Caller
from toolyard.transports.auth import Authenticator
from toolyard.transports.auth.authenticator import is_loopback
from toolyard.transports.http.asgi import Headers, Target
from toolyard.yard import Yard

__all__ = ["EndpointUrl", "HostCheck", "RefusedError", "check_once", "endpoint_asked_about", "endpoint_url_of", "first_twice"]


_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class EndpointUrl(msgspec.Struct, frozen=True):
    """The address of an endpoint: where the server is known, and the path there."""

    base: str
    path: str

    @property
    def resource(self) -> str:
        """Return the whole address."""
        return self.base + self.path

    @property
    def metadata(self) -> str:
        """Return where the endpoint's metadata lie: below the server's own address, because what is beside it may be another's."""
        return f"{self.base}{_WELL_KNOWN}{self.path}"


def endpoint_url_of(target: Target, path: str, serving: Serving) -> EndpointUrl:
    """Return the endpoint at a path, as whoever sent the request knows it."""
    if serving.public_url is not None:
        return EndpointUrl(serving.public_url.rstrip("/"), path)
    host = target.headers.get(b"host", b"localhost").decode("latin-1")
    return EndpointUrl(f"{target.scheme}://{host}{target.root}", path)


def endpoint_asked_about(target: Target, default: str) -> str | None:
    """Return the path of the endpoint whose metadata are asked for, or nothing if something else is."""
    path = target.path
    if target.method != "GET" or (path != _WELL_KNOWN and not path.startswith(f"{_WELL_KNOWN}/")):
        return None
    return path[len(_WELL_KNOWN) :] or default


_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_SINGLE: Final = frozenset({b"host", b"origin", b"authorization", b"x-api-key", b"mcp-session-id", b"content-type", b"content-length"})
_REMEMBERED: Final = 1000
_PORT: Final = re.compile(r":[0-9]+\Z")


class RefusedError(Exception):
    """A request is refused before it is read: the status, a sentence, and headers."""

    def __init__(self, status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class HostCheck:
    """Checks the host, the origin and the credentials of requests."""

    def __init__(self, serving: Serving, authenticator: Authenticator | None, *, host: str | None) -> None:
        self._authenticator = authenticator
        self._hosts = frozenset(name.lower() for name in serving.allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in serving.allowed_origins)
        self._is_local = host is None or is_loopback(host)
        self._own = _LOCAL if host is None else _LOCAL | {host.lower()}
        self._seen: set[tuple[bytes | None, bytes | None]] = set()

    def check(self, headers: Headers) -> None:
        """Check the name that the server is addressed by, and the page that speaks, if one does.

        Raises:
            RefusedError: 421 or 403.
        """
        key = (headers.get(b"host"), headers.get(b"origin"))
        if key in self._seen:
            return
        host, origin = (None if text is None else text.decode("latin-1").lower() for text in key)
        if not self._knows(host):
            raise RefusedError(421, "This server is not known by that name. Allow it with 'allowed_hosts'.")
        if origin is not None and not self._trusts(origin, host):
            raise RefusedError(403, "This page may not use the server. Allow it with 'allowed_origins'.")
        if len(self._seen) < _REMEMBERED:
            self._seen.add(key)

    async def caller(self, yard: Yard, headers: Headers, profile: str | None, place: EndpointUrl) -> Caller:
        """Return who calls, with the profile that holds for him: the one of his credentials, or else the one that is asked for.

        Raises:
            RefusedError: 401, 403, 404 or 503.
        """
        if self._authenticator is None:
            return ANYONE if profile is None else Caller(profile=_profile_of(yard, profile))
        from toolyard.transports.auth import IssuerUnreachableError, Refusal  # noqa: PLC0415 - only a server that asks needs it

        try:
            admitted = await self._authenticator.admit(_text(headers, b"authorization"), _text(headers, b"x-api-key"))
        except Refusal as refusal:
            metadata = None if self._authenticator.protected_resource(place.resource) is None else place.metadata
            challenge = (b"www-authenticate", refusal.challenge(metadata).encode("latin-1", "replace"))
            raise RefusedError(refusal.status, refusal.message, (challenge,)) from None
        except IssuerUnreachableError as error:
            retry = (b"retry-after", b"%d" % max(1, round(error.retry_after)))
            raise RefusedError(503, error.message, (retry,)) from None
        wanted = admitted.profile if admitted.profile is not None else profile
        if admitted.profile is not None and profile is not None and profile != admitted.profile:
            raise RefusedError(403, "These credentials are for another profile.")
        held = None if wanted is None else _profile_of(yard, wanted)
        return Caller(identity=admitted.identity, claims=admitted.claims, profile=held)

    def protected_resource(self, place: EndpointUrl) -> dict[str, Any] | None:
        """Return what a client needs to know to get credentials, if there is anything."""
        return None if self._authenticator is None else self._authenticator.protected_resource(place.resource)

    def _knows(self, host: str | None) -> bool:
        if host is None or "*" in self._hosts:
            return host is not None
        name = _without_port(host)
        return (
            name in self._own
            or name in self._hosts
            or host in self._hosts
            or (not self._is_local and not self._hosts and self._authenticator is not None)
        )

    def _trusts(self, origin: str, host: str | None) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        try:
            place = urlsplit(origin).netloc
        except ValueError:
            return False
        name = _without_port(place)
        return bool(place) and (name in self._hosts or (self._is_local and name in self._own) or (not self._is_local and place == host))


def check_once(pairs: list[tuple[bytes, bytes]]) -> None:
    """Check that nothing is said twice that decides who speaks to whom, since one reader would take the first and another the last.

    Raises:
        RefusedError: 400.
    """
    twice = first_twice(pairs, _SINGLE.__contains__)
    if twice is not None:
        raise RefusedError(400, f"The header '{twice}' is there twice.")


def first_twice(pairs: list[tuple[bytes, bytes]], matters: Callable[[bytes], bool]) -> str | None:
    """Return the first header that matters and is there twice, if there is one."""
    seen: set[bytes] = set()
    for name, _ in pairs:
        if name in seen and matters(name):
            return name.decode("latin-1")
        seen.add(name)
    return None


def _without_port(host: str) -> str:
    """Return a host without its port; what has something else behind its name is left as it is, and so is nobody's."""
    return _PORT.sub("", host) if host.startswith("[") or host.count(":") == 1 else host


def _profile_of(yard: Yard, name: str) -> Any:
    try:
        return yard.profile_of(name)
    except KeyError:
        raise RefusedError(404, "There is nothing here.") from None


def _text(headers: Headers, name: bytes) -> str | None:
    found = headers.get(name)
    return None if found is None else found.decode("latin-1")
