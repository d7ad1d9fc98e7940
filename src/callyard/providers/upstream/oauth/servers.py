"""Authorization servers: safe and bounded requests to them, their discovery (RFC 9728, RFC 8414), and our registration.

It imports an HTTP client and an OAuth library, so it is loaded only to sign in or to renew.
"""

import asyncio
import re
import socket
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from callyard._internal.addresses import Reach, is_loopback, reach_of
from callyard.providers.upstream.http.client import tls_context
from callyard.providers.upstream.oauth.vault import Client, LoginError, challenge_parameter
from callyard.providers.upstream.settings import Login

__all__ = [
    "Discovered",
    "HostCheck",
    "OAuthHttp",
    "ServerMetadata",
    "choose_client",
    "configured_client",
    "discover",
    "fetch_server",
    "is_local",
    "known_server",
    "open_http",
    "resolve",
]

T = TypeVar("T")

# Imported by name, because the library has no types.
_OAuthClient: Final[Any] = import_module("authlib.integrations.httpx_client").AsyncOAuth2Client
_PrivateKeyJWT: Final[Any] = import_module("authlib.oauth2.rfc7523").PrivateKeyJWT
_prepare_grant_uri: Final[Any] = import_module("authlib.oauth2.rfc6749.parameters").prepare_grant_uri
_create_s256_code_challenge: Final[Any] = import_module("authlib.oauth2.rfc7636").create_s256_code_challenge
_RESPONSE_BYTES: Final = 1024 * 1024
_TIMEOUT_S: Final = 30.0
_FINAL: Final = re.compile(
    r"(?:invalid|incorrect|expired|unauthorized|unsupported)\w*|bad_refresh_token|bad_verification_code"
    r"|access_denied|\w+_required",
    re.IGNORECASE,
)
"""Error codes, of OAuth and of some servers, that no retry with the same credentials can cure."""
_HEADERS: Final = {"Accept-Encoding": "identity", "Accept": "application/json"}
_FORM: Final = {**_HEADERS, "Content-Type": "application/x-www-form-urlencoded"}
_KEYS: Final = ((RSAKey, "RS256"), (ECKey, "ES256"))


class _ResponseError(httpx2.TransportError):
    """A response is too long, or compressed although that was not allowed."""


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > _RESPONSE_BYTES:
                raise _ResponseError(f"Its response is longer than {_RESPONSE_BYTES} bytes.")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


Resolve = Callable[[str], Awaitable[Sequence[str]]]
_REACHES: Final[Sequence[Reach]] = ("public", "private", "loopback")


async def resolve(host: str) -> Sequence[str]:
    """Return the addresses of a host; none if it is unknown."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return [str(address[0]) for *_, address in found]


class HostCheck:
    """Says which hosts the metadata of an upstream may name: none nearer to us than the upstream itself.

    Otherwise a stranger could make us send requests to a router, or to a program of this machine. Hosts of the settings
    are trusted.
    """

    def __init__(self, name: str, url: str, login: Login, *, resolve: Resolve = resolve) -> None:
        issuers = (login.issuer, login.identity and login.identity.issuer, login.client_metadata_url)
        self._name = name
        self._own_host = _host_of(url)
        self._trusted = {self._own_host, *(_host_of(issuer) for issuer in issuers if issuer)}
        self._resolve = resolve
        self._own_distance: int | None = None

    async def check(self, host: str) -> None:
        """Check a host, just before it is connected to.

        Raises:
            LoginError: It is private or on this machine, and the upstream is not.
        """
        host = host.lower().removeprefix("[").removesuffix("]")
        if host in self._trusted:
            return
        if self._own_distance is None:
            self._own_distance = await self._distance(self._own_host)
        if await self._distance(host) > self._own_distance:
            asks = f"'{self._name}' asks for a login at '{host[:200]}', a private address, and is itself at none"
            raise LoginError(f"{asks}. If that is right, set 'issuer' in its 'login'.")

    async def _distance(self, host: str) -> int:
        """Return 0 for a public host, and more the nearer its nearest address is."""
        if is_local(f"http://{_bracketed(host)}/"):
            return _REACHES.index("loopback")
        return max((_REACHES.index(reach_of(address)) for address in await self._resolve(host)), default=0)


def _host_of(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Transport(httpx2.AsyncHTTPTransport):
    def __init__(self, host_check: HostCheck) -> None:
        super().__init__(verify=tls_context())
        self._host_check = host_check

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await self._host_check.check(request.url.host)
        response = await super().handle_async_request(request)
        if "content-encoding" in response.headers:
            await response.aclose()  # a small compressed body can become a large one
            raise _ResponseError("Its response is compressed, which was not asked for.")
        response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))
        return response


class OAuthHttp:
    """Sends requests to the authorization servers of one upstream."""

    def __init__(self, name: str, client: httpx2.AsyncClient, host_check: HostCheck, *, is_local: bool) -> None:
        self.name = name
        self._client = client
        self._host_check = host_check
        self._is_local = is_local

    def check(self, url: str) -> str:
        """Return a URL if secrets may be sent there: with TLS, or on this machine if the upstream is there, too.

        Raises:
            LoginError: It is not safe.
        """
        try:
            parts = urlsplit(url)
            is_private = parts.scheme == "https" or (parts.scheme == "http" and self._is_local and is_local(url))
            is_plain = bool(parts.hostname) and "@" not in parts.netloc and url.isprintable() and " " not in url
            if is_private and is_plain:
                return url
        except ValueError:
            pass
        place = _without_query(url)
        raise LoginError(f"'{self.name}' asks for a login at '{place}', which is not safe: only 'https' URLs are.")

    async def fetch_challenge(self, url: str, headers: Mapping[str, str], *, method: str) -> tuple[int, str]:
        """Return the status and the challenge of the upstream's response to an anonymous request.

        Raises:
            LoginError: It cannot be reached.
        """
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}' if method == "POST" else None
        sent = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
        try:
            async with self._client.stream(method, url, headers=sent, content=body) as response:
                return response.status_code, ", ".join(response.headers.get_list("www-authenticate"))
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise self._failure(url, error) from error

    async def fetch_metadata(self, url: str, kind: type[T]) -> T | None:
        """Return the metadata at a URL, or None if there is none.

        Raises:
            LoginError: The server fails, or the URL is not safe.
        """
        response = await self._send("GET", url)
        _raise_for_failure(response)
        if response.status_code != HTTPStatus.OK:
            return None
        try:
            return msgspec.json.decode(response.content, type=kind, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    async def register(self, url: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Register a client, and return the response.

        Raises:
            LoginError: It refuses.
        """
        response = await self._send("POST", url, json=dict(metadata))
        try:
            answer: Any = msgspec.json.decode(response.content)
        except (msgspec.DecodeError, RecursionError):
            answer = None
        if response.status_code not in {200, 201} or not isinstance(answer, dict):
            description = cast("dict[str, Any]", answer).get("error_description") if isinstance(answer, dict) else None
            reason = f": {str(description)[:200].removesuffix('.')}" if description else ""
            raise LoginError(f"'{_without_query(url)}' did not register us: status {response.status_code}{reason}.")
        return cast("dict[str, Any]", answer)

    async def token(self, url: str, client: Client, *, key: str | None = None, **fields: str) -> Mapping[str, Any]:
        """Return the response of a token endpoint to a request with these fields.

        Raises:
            LoginError: It refuses.
        """
        async with self._library(client, key) as library:
            return await self._send_with_library(url, library.fetch_token(self.check(url), headers=_FORM, **fields))

    async def revoke(self, url: str, client: Client, token: str) -> None:
        """Revoke a token.

        Raises:
            LoginError: The server refuses.
        """
        async with self._library(client, None) as library:
            response = await self._send_with_library(
                url, library.revoke_token(self.check(url), token=token, headers=_FORM)
            )
        if response.status_code != HTTPStatus.OK:
            raise LoginError(f"'{_without_query(url)}' did not revoke the token: status {response.status_code}.")

    def authorization_url(self, url: str, client: Client, *, verifier: str, **fields: str) -> str:
        """Return the URL at which a person signs in.

        Raises:
            LoginError: It is not safe.
        """
        pkce = {"code_challenge": _create_s256_code_challenge(verifier), "code_challenge_method": "S256"}
        return cast("str", _prepare_grant_uri(self.check(url), client.client_id, "code", **pkce, **fields))

    @asynccontextmanager
    async def _library(self, client: Client, key: str | None) -> AsyncGenerator[Any]:
        secret, algorithm = _import_key(key) if key else (client.client_secret, "")
        library: Any = _OAuthClient(
            client_id=client.client_id,
            client_secret=secret,
            token_endpoint_auth_method=client.method,
            revocation_endpoint_auth_method=client.method,
            transport=_Transport(self._host_check),
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
        library.register_client_auth_method(("client_secret_basic", _authenticate_basic))
        library.register_compliance_hook("access_token_response", _raise_for_failure)
        if key:
            library.register_client_auth_method(_PrivateKeyJWT(client.issuer, alg=algorithm))
        async with library:
            yield library

    async def _send_with_library(self, url: str, work: Any) -> Any:
        try:
            return await work
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise LoginError(self._failure(url, error).message, is_transient=True) from error
        except LoginError:
            raise
        except Exception as error:
            code = str(getattr(error, "error", "") or "no reason")[:80]
            description = str(getattr(error, "description", "") or "")[:200].removesuffix(".")
            reason = f"{code}: {description}" if description else code
            raise LoginError(
                f"'{_without_query(url)}' issued no token ({reason}).", is_transient=_FINAL.fullmatch(code) is None
            ) from error

    async def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        try:
            return await self._client.request(method, self.check(url), **options)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._failure(url, error) from error

    def _failure(self, url: str, error: Exception) -> LoginError:
        if isinstance(error, _ResponseError):
            return LoginError(f"'{_without_query(url)}' sent an unusable response. {error}")
        return LoginError(f"'{_without_query(url)}' cannot be reached: {type(error).__name__}.", is_transient=True)


@asynccontextmanager
async def open_http(name: str, url: str, login: Login, *, resolve: Resolve = resolve) -> AsyncGenerator[OAuthHttp]:
    """Open an HTTP client for the authorization servers of the upstream at a URL."""
    host_check = HostCheck(name, url, login, resolve=resolve)
    transport = _Transport(host_check)
    async with httpx2.AsyncClient(headers=_HEADERS, transport=transport, timeout=_TIMEOUT_S, trust_env=False) as client:
        yield OAuthHttp(name, client, host_check, is_local=is_local(url))


def is_local(url: str) -> bool:
    """Return whether a URL is on this machine; names below 'localhost' are, too (RFC 6761)."""
    host = urlsplit(url).hostname or ""
    return is_loopback(host) or host.endswith(".localhost")


def _without_query(url: str) -> str:
    """Return a URL for people, without its query, which may be secret."""
    return url.partition("?")[0][:200]


def _raise_for_failure(response: httpx2.Response) -> httpx2.Response:
    """Return a response unless its status says that the server fails or limits us."""
    status = response.status_code
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        raise LoginError(f"'{_without_query(str(response.url))}' answered with status {status}.", is_transient=True)
    return response


def _import_key(key: str) -> tuple[Any, str]:
    for kind, algorithm in _KEYS:
        try:
            return kind.import_key(key), algorithm
        except (JoseError, ValueError):
            continue
    raise LoginError("The 'private_key' of the login is not an RSA or EC key in PEM.")


def _authenticate_basic(client: Any, _method: str, uri: str, headers: Any, body: Any) -> tuple[str, Any, Any]:
    """Authenticate with `client_secret_basic`; both parts are escaped as RFC 6749 demands, which the library omits."""
    pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret or '', safe='')}"
    headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    return uri, headers, body


class ResourceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a protected resource (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of an authorization server (RFC 8414 or OpenID Connect Discovery)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_OAUTH: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"
_PORTS: Final = {"http": 80, "https": 443}


class Discovered(NamedTuple):
    """An authorization server, the resource to request there, and the scope that the upstream suggests."""

    server: ServerMetadata
    resource: str
    scope: str | None


async def discover(http: OAuthHttp, url: str, challenge: str, *, was_refused: bool) -> Discovered:
    """Find the authorization server of an upstream, with the challenge of its refusal if there is one.

    Raises:
        LoginError: There is none, or its metadata contradicts its address.
    """
    metadata = await _fetch_resource(http, url, challenge_parameter(challenge, "resource_metadata"))
    scope = challenge_parameter(challenge, "scope")
    if metadata is None:
        server = await _fetch_own_server(http, _origin(url), was_refused=was_refused)
        return Discovered(server, url.partition("#")[0], scope)
    if scope is None and metadata.scopes_supported:
        scope = " ".join(metadata.scopes_supported)
    issuer = (metadata.authorization_servers or (_origin(url),))[0]
    return Discovered(await fetch_server(http, issuer), metadata.resource, scope)


def known_server(http: OAuthHttp, login: Login, token_url: str) -> Discovered:
    """Return the authorization server whose addresses are known without asking it.

    Raises:
        LoginError: An address is not safe.
    """
    server = ServerMetadata(
        issuer=login.issuer or _origin(http.check(token_url)),
        token_endpoint=token_url,
        authorization_endpoint=login.authorization_url,
        code_challenge_methods_supported=("S256",),
    )
    return Discovered(server, "", None)


async def fetch_server(http: OAuthHttp, issuer: str) -> ServerMetadata:
    """Return the metadata of an authorization server.

    Raises:
        LoginError: It publishes none, or names another issuer.
    """
    for url in _metadata_urls(issuer):
        server = await http.fetch_metadata(url, ServerMetadata)
        if server is not None:
            return _checked_issuer(server, issuer, server.issuer)
    raise LoginError(f"'{issuer}', the authorization server of '{http.name}', publishes no metadata.")


async def _fetch_resource(http: OAuthHttp, url: str, challenged: str | None) -> ResourceMetadata | None:
    """Return the metadata of an upstream, from the URL in the challenge or the two well-known ones."""
    path = urlsplit(url).path.rstrip("/")
    well_known = dict.fromkeys((f"{_origin(url)}{_RESOURCE}{path}", f"{_origin(url)}{_RESOURCE}"))
    for metadata_url in (challenged, *well_known) if challenged else well_known:
        metadata = await http.fetch_metadata(metadata_url, ResourceMetadata)
        if metadata is not None:
            if not _covers(metadata.resource, url):
                resource = metadata.resource[:200]
                raise LoginError(f"The metadata of '{http.name}' is for '{resource}', which is another server.")
            return metadata
    return None


async def _fetch_own_server(http: OAuthHttp, origin: str, *, was_refused: bool) -> ServerMetadata:
    """Return the upstream itself as the authorization server, as version 2025-03-26 of MCP defines it."""
    server = await http.fetch_metadata(f"{origin}{_OAUTH}", ServerMetadata)
    if server is not None:
        return _checked_issuer(server, origin, server.issuer.removesuffix("/"))
    if not was_refused:
        raise LoginError(f"'{http.name}' does not require a login.")
    return ServerMetadata(
        issuer=origin,
        authorization_endpoint=f"{origin}/authorize",
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
        code_challenge_methods_supported=("S256",),
    )


def _checked_issuer(server: ServerMetadata, base: str, issuer: str) -> ServerMetadata:
    if issuer != base:
        raise LoginError(f"The metadata at '{base}' names another issuer, '{server.issuer[:200]}', and is not trusted.")
    return server


def _metadata_urls(issuer: str) -> Iterator[str]:
    """Return where the standards let a server publish its metadata."""
    origin, path = _origin(issuer), urlsplit(issuer).path.rstrip("/")
    yield f"{origin}{_OAUTH}{path}"
    yield f"{origin}{_OPENID}{path}"
    if path:
        yield f"{origin}{path}{_OPENID}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _covers(resource: str, url: str) -> bool:
    """Return whether a URL belongs to a resource: the same origin, and a path below it."""
    try:
        ours, theirs = urlsplit(url), urlsplit(resource)
        origins = [(parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)) for parts in (ours, theirs)]
    except ValueError:
        return False
    return origins[0] == origins[1] and f"{ours.path.rstrip('/')}/".startswith(f"{theirs.path.rstrip('/')}/")


_NONE: Final = "none"
_WITH_SECRET: Final = ("client_secret_basic", "client_secret_post")


def configured_client(login: Login, server: ServerMetadata) -> Client | None:
    """Return the client of the settings, if they have one."""
    if login.client_id is None:
        return None
    method = _NONE
    if login.private_key is not None:
        method = "private_key_jwt"
    elif login.client_secret is not None:
        supported = server.token_endpoint_auth_methods_supported or ()
        method = next((method for method in _WITH_SECRET if method in supported), _WITH_SECRET[0])
    return Client(client_id=login.client_id, client_secret=login.client_secret, method=method, issuer=server.issuer)


async def choose_client(
    http: OAuthHttp,
    login: Login,
    server: ServerMetadata,
    *,
    stored: Client | None,
    redirect_uri: str,
    scope: str | None,
) -> Client:
    """Return our client: from the settings, by its metadata document, as stored, or newly registered.

    Raises:
        LoginError: The server does not register clients, or refuses us.
    """
    configured = configured_client(login, server)
    if configured is not None:
        return configured
    if login.client_metadata_url is not None and server.client_id_metadata_document_supported:
        return Client(client_id=login.client_metadata_url, issuer=server.issuer)
    is_ours = stored is not None and (stored.issuer, stored.redirect_uri) == (server.issuer, redirect_uri)
    if stored is not None and is_ours and not stored.is_expired:
        return stored
    if server.registration_endpoint is None:
        advice = f"Register one there, and put its 'client_id' into 'login' of '{http.name}'."
        raise LoginError(f"'{server.issuer}' does not register clients. {advice}")
    supported = server.token_endpoint_auth_methods_supported or _WITH_SECRET
    method = next((method for method in (_NONE, *_WITH_SECRET) if method in supported), _NONE)
    metadata: dict[str, Any] = {
        "client_name": "Callyard",
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
    }
    response = await http.register(server.registration_endpoint, {**metadata, "scope": scope} if scope else metadata)
    return _registered_client(response, method, server, redirect_uri)


def _registered_client(response: Any, requested_method: str, server: ServerMetadata, redirect_uri: str) -> Client:
    client_id, secret = response.get("client_id"), response.get("client_secret")
    expires = response.get("client_secret_expires_at")
    method = response.get("token_endpoint_auth_method") or (requested_method if secret else _NONE)
    if not isinstance(client_id, str) or not client_id:
        raise LoginError(f"'{server.issuer}' registered us without a client id.")
    if method not in (_NONE, *_WITH_SECRET) or (method != _NONE and not isinstance(secret, str)):
        named = str(method)[:40]
        raise LoginError(f"'{server.issuer}' registered us with an unsupported authentication method, '{named}'.")
    return Client(
        client_id=client_id,
        client_secret=secret if isinstance(secret, str) else None,
        method=method,
        issuer=server.issuer,
        redirect_uri=redirect_uri,
        expires=float(expires) if isinstance(expires, int | float) else 0,
    )
