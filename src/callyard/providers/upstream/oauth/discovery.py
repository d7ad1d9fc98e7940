"""Discovery of an upstream's authorization server (RFC 9728, RFC 8414), and our registration as its client."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from callyard.providers.upstream.oauth.http import OAuthHttp
from callyard.providers.upstream.oauth.metadata import Client, LoginError, ResourceMetadata, ServerMetadata, challenge_parameter
from callyard.providers.upstream.settings import Login

__all__ = ["Discovered", "choose_client", "configured_client", "discover", "fetch_server"]

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
        return Discovered(await _fetch_own_server(http, _origin(url), was_refused=was_refused), url.partition("#")[0], scope)
    if scope is None and metadata.scopes_supported:
        scope = " ".join(metadata.scopes_supported)
    issuer = (metadata.authorization_servers or (_origin(url),))[0]
    return Discovered(await fetch_server(http, issuer), metadata.resource, scope)


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
                raise LoginError(f"The metadata of '{http.name}' is for '{metadata.resource[:200]}', which is another server.")
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


def _checked_issuer(server: ServerMetadata, expected: str, issuer: str) -> ServerMetadata:
    if issuer != expected:
        raise LoginError(f"The metadata at '{expected}' names another issuer, '{server.issuer[:200]}', and is not trusted.")
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
    http: OAuthHttp, login: Login, server: ServerMetadata, *, stored: Client | None, redirect_uri: str, scope: str | None
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
    if stored is not None and (stored.issuer, stored.redirect_uri) == (server.issuer, redirect_uri) and not stored.is_expired:
        return stored
    if server.registration_endpoint is None:
        raise LoginError(
            f"'{server.issuer}' does not register clients. Register one there, and put its 'client_id' into 'login' of '{http.name}'."
        )
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
        raise LoginError(f"'{server.issuer}' registered us with an unsupported authentication method, '{str(method)[:40]}'.")
    return Client(
        client_id=client_id,
        client_secret=secret if isinstance(secret, str) else None,
        method=method,
        issuer=server.issuer,
        redirect_uri=redirect_uri,
        expires=float(expires) if isinstance(expires, int | float) else 0,
    )
