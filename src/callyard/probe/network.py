"""The steps of a probe before MCP: the name, the connection, TLS, and what the server says about signing in.

No redirect is followed, and no metadata is fetched from a host that is nearer to us than the server itself.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from callyard._internal.addresses import Reach, origin_of, reach_of
from callyard.probe.codes import ProbeCodeName
from callyard.probe.report import shown
from callyard.providers.upstream.http.client import Address, HeaderError, tls_context
from callyard.providers.upstream.http.fetch import Response, fetch
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.oauth.vault import challenge_parameter

__all__ = [
    "NetworkError",
    "SignIn",
    "ask_anonymously",
    "connect",
    "find_sign_in",
    "refuses",
    "resolve_host",
    "start_tls",
]

T = TypeVar("T")

_EXPIRED: Final = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""
_DAY: Final = 86400.0
_BYTES: Final = 256 * 1024
_REACHES: Final[Sequence[Reach]] = ("public", "private", "loopback")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_REFUSING: Final = frozenset({401, 403})
_OVERLOADED: Final = frozenset({429, 503})


class NetworkError(Exception):
    """A step failed: its code and a sentence."""

    def __init__(self, code: ProbeCodeName, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code: ProbeCodeName = code
        self.message = message
        self.retry_after = retry_after


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host.

    Raises:
        NetworkError: `dns`: it has none.
    """
    with suppress(ValueError):
        return [str(ip_address(host))]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NetworkError("dns", f"The host '{shown(host)}' has no address.") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def connect(addresses: Sequence[str], port: int) -> asyncio.StreamWriter:
    """Return a connection to the first address that accepts one.

    Raises:
        NetworkError: `refused` or `unreachable`.
    """
    refused = False
    reason = "no address answers"
    for address in addresses:
        try:
            return (await asyncio.open_connection(address, port))[1]
        except ConnectionRefusedError:
            refused = True
        except OSError as error:
            reason = (error.strerror or str(error)).removesuffix(".")
    if refused:
        raise NetworkError("refused", f"Port {port} refuses connections.")
    raise NetworkError("unreachable", f"There is no way to port {port}: {reason}.")


async def start_tls(writer: asyncio.StreamWriter, host: str) -> float | None:
    """Speak TLS on a connection, and return the days until the certificate ends.

    Raises:
        NetworkError: `tls_expired` or `tls_invalid`.
    """
    try:
        await writer.start_tls(tls_context(), server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            raise NetworkError("tls_expired", "The certificate has expired.") from None
        why = shown(error.verify_message).removesuffix(".")
        raise NetworkError("tls_invalid", f"The certificate is not accepted: {why}.") from None
    except OSError as error:
        why = shown(getattr(error, "reason", None) or str(error) or type(error).__name__)
        raise NetworkError("tls_invalid", f"The TLS handshake failed: {why}.") from None
    certificate: Any = writer.get_extra_info("peercert") or {}
    end = certificate.get("notAfter")
    return None if end is None else (ssl.cert_time_to_seconds(end) - time.time()) / _DAY


async def ask_anonymously(url: str, message: bytes, headers: Mapping[str, str]) -> Response:
    """Send a request without credentials, and return the response.

    Raises:
        NetworkError: It redirects, or the server has no room.
        LinkError: There is no answer.
    """
    response = await fetch(url, headers, method="POST", body=message, limit=_BYTES)
    if response.status in _OVERLOADED:
        wait = _retry_after(response.header(b"retry-after"))
        raise NetworkError("overloaded", f"The server answered with status {response.status}.", retry_after=wait)
    if response.status in _REDIRECTS:
        raise NetworkError("redirected", f"The server redirects to '{shown(response.header(b'location'))}'.")
    return response


def refuses(response: Response) -> bool:
    """Return whether a response asks for credentials."""
    return response.status in _REFUSING


def _retry_after(value: str) -> float | None:
    try:
        seconds = float(value) if value.isdecimal() else parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), _DAY)


class SignIn(NamedTuple):
    """What a server says about how to sign in: the authorization server, and what is wrong with that."""

    issuer: str
    problems: tuple[str, ...]


class _Resource(msgspec.Struct):
    authorization_servers: list[str] = []


class _Server(msgspec.Struct):
    issuer: str = ""
    token_endpoint: str = ""


async def find_sign_in(address: Address, url: str, challenge: str, *, most: int) -> SignIn:
    """Return how to sign in, by the metadata that a refusal names; at most so many requests."""
    if not challenge:
        return SignIn("", ("The refusal has no 'WWW-Authenticate', so no client can find out how to sign in.",))
    named = challenge_parameter(challenge, "resource_metadata")
    origin = origin_of(url)
    path = urlsplit(url).path.rstrip("/")
    reader = _MetadataReader(address, most)
    resource = await reader.read(named or f"{origin}/.well-known/oauth-protected-resource{path}", _Resource)
    if isinstance(resource, str):
        if named is None and "bearer" not in challenge.lower():
            return SignIn("", ())  # such as Basic, which needs no metadata
        return SignIn("", (f"The metadata of the resource cannot be used: {resource}",))
    issuer = next(iter(resource.authorization_servers), origin)
    server: _Server | str = "It was not asked for."
    for place in _metadata_urls(issuer):
        server = await reader.read(place, _Server)
        if not isinstance(server, str):
            break
    if isinstance(server, str):
        return SignIn(shown(issuer), (f"The metadata of the authorization server cannot be used: {server}",))
    if not server.token_endpoint:
        return SignIn(shown(issuer), ("The metadata of the authorization server names no token endpoint.",))
    return SignIn(shown(issuer), ())


def _metadata_urls(issuer: str) -> list[str]:
    origin, path = origin_of(issuer), urlsplit(issuer).path.rstrip("/")
    return [
        f"{origin}/.well-known/oauth-authorization-server{path}",
        f"{origin}{path}/.well-known/openid-configuration",
    ]


class _MetadataReader:
    """Fetches metadata within a number of requests, and from no host that is nearer than the server."""

    def __init__(self, address: Address, most: int) -> None:
        self._address = address
        self._left = most

    async def read(self, url: str, kind: type[T]) -> T | str:
        if self._left == 0:
            return "There were too many requests for it."
        self._left -= 1
        try:
            response = await fetch(url, {}, limit=_BYTES, resolve=self._resolve)
            if response.status != HTTPStatus.OK:
                return f"'{shown(url)}' answered with status {response.status}."
            return msgspec.json.decode(response.body, type=kind)
        except LinkError as error:
            return error.message
        except (HeaderError, msgspec.DecodeError, RecursionError):
            return f"'{shown(url)}' answered with something else."

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = await resolve_host(host, port)
            own = await resolve_host(self._address.host, self._address.port)
        except NetworkError as error:
            raise LinkError("unavailable", error.message) from None
        if _distance(addresses) > _distance(own):
            raise LinkError("refused", f"'{shown(host)}' is a private address, and the server is at none.")
        return addresses


def _distance(addresses: Sequence[str]) -> int:
    return max((_REACHES.index(reach_of(address)) for address in addresses), default=0)
