"""Discovery: from the address of an upstream to the authorization server it trusts (RFC 9728, RFC 8414)."""

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from toolyard.providers.upstream.oauth.http import OAuthHttp
from toolyard.providers.upstream.oauth.metadata import Client, LoginError, ResourceMetadata, ServerMetadata, parameter_of
from toolyard.providers.upstream.settings import Login

__all__ = ["Found", "client_of", "discover", "given_client", "server_of"]


_RESOURCE: Final = "/.well-known/oauth-protected-resource"
_OAUTH: Final = "/.well-known/oauth-authorization-server"
_OPENID: Final = "/.well-known/openid-configuration"
_PORTS: Final = {"http": 80, "https": 443}


class Found(NamedTuple):
    """Where to sign in, what for, and with which scopes."""

    server: ServerMetadata
    resource: str
    scope: str | None


async def discover(asker: OAuthHttp, url: str, challenge: str, *, refused: bool) -> Found:
    """Find the authorization server of an upstream, by the challenge it was refused with, if it was.

    Raises:
        LoginError: There is none, or it is not what it says it is.
    """
    paper = await _resource_paper(asker, url, parameter_of(challenge, "resource_metadata"))
    scope = parameter_of(challenge, "scope")
    if paper is None:
        return Found(await _older_server(asker, _origin(url), refused=refused), url.partition("#")[0], scope)
    if scope is None and paper.scopes_supported:
        scope = " ".join(paper.scopes_supported)
    issuer = (paper.authorization_servers or (_origin(url),))[0]
    return Found(await server_of(asker, issuer), paper.resource, scope)


async def server_of(asker: OAuthHttp, issuer: str) -> ServerMetadata:
    """Return what an authorization server says of itself.

    Raises:
        LoginError: It says nothing, or is not what it says it is.
    """
    for place in _places(issuer):
        server = await asker.paper(place, ServerMetadata)
        if server is not None:
            if server.issuer != issuer:
                raise LoginError(f"The server at '{issuer}' says that it is '{server.issuer[:200]}'; one of them is not who it seems.")
            return server
    raise LoginError(f"'{issuer}', where '{asker.name}' wants us to sign in, does not say how.")


async def _resource_paper(asker: OAuthHttp, url: str, named: str | None) -> ResourceMetadata | None:
    """Return what the upstream publishes of itself: where the challenge says, or else in the two usual places."""
    path = urlsplit(url).path.rstrip("/")
    usual = dict.fromkeys((f"{_origin(url)}{_RESOURCE}{path}", f"{_origin(url)}{_RESOURCE}"))
    for place in (named, *usual) if named else usual:
        paper = await asker.paper(place, ResourceMetadata)
        if paper is not None:
            if not _covers(paper.resource, url):
                raise LoginError(
                    f"'{asker.name}' says that it is '{paper.resource[:200]}', which is another server than the one that is called."
                )
            return paper
    return None


async def _older_server(asker: OAuthHttp, origin: str, *, refused: bool) -> ServerMetadata:
    """Return the server of an upstream that says nothing of one: as of the version of 2025-03-26 it is the upstream's own."""
    server = await asker.paper(f"{origin}{_OAUTH}", ServerMetadata)
    if server is None and not refused:
        raise LoginError(f"'{asker.name}' does not want anybody to sign in.")
    if server is None:
        return ServerMetadata(
            issuer=origin,
            authorization_endpoint=f"{origin}/authorize",
            token_endpoint=f"{origin}/token",
            registration_endpoint=f"{origin}/register",
            code_challenge_methods_supported=("S256",),
        )
    if server.issuer.removesuffix("/") != origin:
        raise LoginError(f"The server at '{origin}' says that it is '{server.issuer[:200]}'; one of them is not who it seems.")
    return server


def _places(issuer: str) -> Iterator[str]:
    """Return where a server may say what it is, as each of the standards wants it."""
    origin, path = _origin(issuer), urlsplit(issuer).path.rstrip("/")
    yield f"{origin}{_OAUTH}{path}"
    yield f"{origin}{_OPENID}{path}"
    if path:
        yield f"{origin}{path}{_OPENID}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _covers(resource: str, url: str) -> bool:
    """Return whether an address belongs to what a paper says it is about."""
    try:
        ours, theirs = urlsplit(url), urlsplit(resource)
        places = [(parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)) for parts in (ours, theirs)]
    except ValueError:
        return False
    return places[0] == places[1] and f"{ours.path.rstrip('/')}/".startswith(f"{theirs.path.rstrip('/')}/")


_NONE: Final = "none"
_WITH_SECRET: Final = ("client_secret_basic", "client_secret_post")


def given_client(login: Login, server: ServerMetadata) -> Client | None:
    """Return the client that the settings name, if they name one."""
    if login.client_id is None:
        return None
    known = server.token_endpoint_auth_methods_supported
    method = _NONE
    if login.private_key is not None:
        method = "private_key_jwt"
    elif login.client_secret is not None:
        method = next((way for way in _WITH_SECRET if known and way in known), _WITH_SECRET[0])
    return Client(client_id=login.client_id, client_secret=login.client_secret, method=method, issuer=server.issuer)


async def client_of(
    asker: OAuthHttp, login: Login, server: ServerMetadata, *, kept: Client | None, redirect_uri: str, scope: str | None
) -> Client:
    """Return who we are: as the settings say, by our document, as it was kept, or newly registered.

    Raises:
        LoginError: The server does not register clients, or not us.
    """
    given = given_client(login, server)
    if given is not None:
        return given
    if login.client_metadata_url is not None and server.client_id_metadata_document_supported:
        return Client(client_id=login.client_metadata_url, issuer=server.issuer)
    if kept is not None and (kept.issuer, kept.redirect_uri) == (server.issuer, redirect_uri) and not 0 < kept.expires < time.time():
        return kept
    if server.registration_endpoint is None:
        raise LoginError(
            f"'{server.issuer}' registers no clients on its own. Register one there, and name its 'client_id' in 'login' of '{asker.name}'."
        )
    known = server.token_endpoint_auth_methods_supported or _WITH_SECRET
    wish: dict[str, Any] = {
        "client_name": "Toolyard",
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": next((way for way in (_NONE, *_WITH_SECRET) if way in known), _NONE),
    }
    answer = await asker.register(server.registration_endpoint, {**wish, "scope": scope} if scope else wish)
    return _registered(answer, wish["token_endpoint_auth_method"], server, redirect_uri)


def _registered(answer: Any, wished: str, server: ServerMetadata, redirect_uri: str) -> Client:
    client_id, secret = answer.get("client_id"), answer.get("client_secret")
    expires = answer.get("client_secret_expires_at")
    method = answer.get("token_endpoint_auth_method") or (wished if secret else _NONE)
    if not isinstance(client_id, str) or not client_id:
        raise LoginError(f"'{server.issuer}' registered us, but does not say by which id.")
    if method not in (_NONE, *_WITH_SECRET) or (method != _NONE and not isinstance(secret, str)):
        raise LoginError(f"'{server.issuer}' registered us in a way that is not known here: '{str(method)[:40]}'.")
    return Client(
        client_id=client_id,
        client_secret=secret if isinstance(secret, str) else None,
        method=method,
        issuer=server.issuer,
        redirect_uri=redirect_uri,
        expires=float(expires) if isinstance(expires, int | float) else 0,
    )
