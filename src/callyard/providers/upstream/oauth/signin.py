"""Sign-in at an upstream with OAuth: in a browser, as a client, or with cross-app access; renewal and revocation."""

import asyncio
import re
import secrets
import time
from base64 import urlsafe_b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import msgspec

from callyard._internal.tasks import close_server
from callyard.providers.upstream.oauth.servers import (
    Discovered,
    OAuthHttp,
    ServerMetadata,
    choose_client,
    configured_client,
    discover,
    fetch_server,
    known_server,
    open_http,
)
from callyard.providers.upstream.oauth.vault import (
    Client,
    IdentityAssertion,
    LoginError,
    StoredLogin,
    Token,
    challenge_parameter,
    join_scopes,
    needs_more_scope,
)
from callyard.providers.upstream.settings import Identity, Login, UpstreamSettings

__all__ = ["obtain", "refresh", "revoke", "sign_in"]

_HOST: Final = "127.0.0.1"
_PATH: Final = "/callback"
_HEAD_BYTES: Final = 16 * 1024
_REQUEST_TIMEOUT_S: Final = 10.0
_PAGE: Final = "<!doctype html><meta charset=utf-8><title>Callyard</title><p>{}</p>"
_DONE: Final = "You are signed in. You can close this page."
_INVALID: Final = "This is not the redirect that Callyard waits for."


class _RedirectListener:
    """A loopback server that waits for the browser's redirect with the right state."""

    def __init__(self) -> None:
        self.state = secrets.token_urlsafe(32)
        self.uri = ""
        self.parameters: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection in a task."""
        task = self._connections[writer] = asyncio.create_task(self._serve(reader, writer))
        task.add_done_callback(lambda _: self._connections.pop(writer))

    async def close(self) -> None:
        """Close the connections; browsers open some ahead and send nothing on them."""
        connections = dict(self._connections)
        for writer in connections:
            writer.close()
        await asyncio.gather(*connections.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; one without the right state is refused, and the wait goes on."""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                parameters = self._parse(await reader.readuntil(b"\r\n\r\n"))
                status, text = ("200 OK", _DONE) if parameters is not None else ("400 Bad Request", _INVALID)
                writer.write(_response(status, _PAGE.format(text)))
                await writer.drain()
                if parameters is not None and not self.parameters.done():
                    self.parameters.set_result(parameters)
        writer.close()

    def _parse(self, head: bytes) -> Mapping[str, str] | None:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        query = parse_qs(target.query, keep_blank_values=True)
        parameters = {name: values[0] for name, values in query.items() if len(values) == 1}
        if (method, target.path) != ("GET", _PATH) or len(parameters) != len(query):
            return None
        return parameters if secrets.compare_digest(parameters.get("state", "").encode(), self.state.encode()) else None


@asynccontextmanager
async def _listen_for_redirect(port: int, *, registered: str | None) -> AsyncGenerator[_RedirectListener]:
    """Listen on a port; 0 means that of a registered redirect URI if it is free, or else any.

    Raises:
        LoginError: The port is not free.
    """
    redirect = _RedirectListener()
    server = await _start_server(redirect, port, registered)
    try:
        redirect.uri = f"http://{_HOST}:{server.sockets[0].getsockname()[1]}{_PATH}"
        yield redirect
    finally:
        await close_server(server)
        await redirect.close()


async def _start_server(redirect: _RedirectListener, port: int, registered: str | None) -> asyncio.Server:
    if not port and registered is not None:
        with suppress(OSError, ValueError):
            return await asyncio.start_server(redirect.accept, _HOST, urlsplit(registered).port, limit=_HEAD_BYTES)
    try:
        return await asyncio.start_server(redirect.accept, _HOST, port, limit=_HEAD_BYTES)
    except OSError as error:
        raise LoginError(f"The port {port} for the browser's redirect cannot be used: {error.strerror}.") from error


def _response(status: str, page: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(page.encode())}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    )
    return f"{head}{page}".encode()


ShowUrl = Callable[[str], None]


async def _authorize(
    http: OAuthHttp,
    login: Login,
    server: ServerMetadata,
    *,
    stored: Client | None,
    fields: Mapping[str, str],
    show: ShowUrl,
    seconds: float,
) -> tuple[Client, Mapping[str, Any]]:
    """Run the authorization code flow with PKCE, and return our client and the token response.

    Raises:
        LoginError: It failed.
    """
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise LoginError(f"'{server.issuer}' does not support PKCE with 'S256', without which a login can be stolen.")
    if server.authorization_endpoint is None:
        raise LoginError(f"'{server.issuer}' has no page to sign in on.")
    async with _listen_for_redirect(login.redirect_port, registered=stored and stored.redirect_uri) as redirect:
        client = await choose_client(
            http, login, server, stored=stored, redirect_uri=redirect.uri, scope=fields.get("scope")
        )
        verifier = secrets.token_urlsafe(48)
        sent = {"redirect_uri": redirect.uri, "state": redirect.state, **fields}
        show(http.authorization_url(server.authorization_endpoint, client, verifier=verifier, **sent))
        code = await _authorization_code(redirect, server, seconds)
    proof = {"code": code, "code_verifier": verifier, "redirect_uri": redirect.uri}
    others = {name: value for name, value in fields.items() if name != "scope"}
    return client, await http.token(server.token_endpoint, client, grant_type="authorization_code", **proof, **others)


async def _authorization_code(redirect: _RedirectListener, server: ServerMetadata, seconds: float) -> str:
    """Return the code of the redirect, if it comes in time and from the right issuer."""
    try:
        parameters = await asyncio.wait_for(redirect.parameters, seconds)
    except TimeoutError:
        raise LoginError(f"Nobody signed in within {seconds:g} seconds.") from None
    issuer = parameters.get("iss")
    if issuer != server.issuer and (issuer is not None or server.authorization_response_iss_parameter_supported):
        raise LoginError(f"The browser did not come back from '{server.issuer}', so its code was not used.")
    if "error" in parameters:
        description = parameters.get("error_description", "")[:200].removesuffix(".")
        reason = f"{parameters['error'][:80]}{': ' if description else ''}{description}"
        raise LoginError(f"'{server.issuer}' refused the login ({reason}).")
    if not parameters.get("code"):
        raise LoginError(f"The browser came back from '{server.issuer}' without a code.")
    return parameters["code"]


SaveLogin = Callable[[StoredLogin], Awaitable[None]]
"""Stores what must not be lost, whatever fails later."""
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - the name of a grant type
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a token type
_ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"
_OPENID: Final = "openid"
_OFFLINE: Final = "offline_access"


async def _sign_in_at_provider(
    http: OAuthHttp, identity: Identity, *, port: int, show: ShowUrl, seconds: float
) -> IdentityAssertion:
    server = await fetch_server(http, identity.issuer)
    fields = {"scope": join_scopes(_OPENID, _OFFLINE if _OFFLINE in (server.scopes_supported or ()) else None)}
    login = Login(client_id=identity.client_id, client_secret=identity.client_secret, redirect_port=port)
    _, response = await _authorize(http, login, server, stored=None, fields=fields, show=show, seconds=seconds)
    return _identity_assertion(response, identity, previous=None)


async def _obtain_grant(
    http: OAuthHttp, identity: Identity, stored: StoredLogin, *, fields: Mapping[str, str], save: SaveLogin
) -> tuple[str, IdentityAssertion]:
    """Exchange an identity assertion for a grant (ID-JAG) at one authorization server; return both.

    Raises:
        LoginError: The identity provider refuses.
    """
    assertion = stored.identity_assertion
    if identity.id_token is not None:
        assertion = IdentityAssertion(id_token=identity.id_token)
    if assertion is None:
        raise LoginError(f"Nobody is signed in at '{identity.issuer}'.")
    server = await fetch_server(http, identity.issuer)
    try:
        return await _exchange(http, identity, server, id_token=assertion.id_token, **fields), assertion
    except LoginError as error:
        if error.is_transient or assertion.refresh_token is None:
            raise
    # An id token is valid for minutes and the login for days, so a refused one is renewed first.
    renewal = {"grant_type": "refresh_token", "refresh_token": assertion.refresh_token}
    renewed = await _request_token(http, identity, server, **renewal)
    assertion = _identity_assertion(renewed, identity, previous=assertion)
    # at once, because the old refresh token may be invalid now, whatever fails later
    await save(msgspec.structs.replace(stored, identity_assertion=assertion))
    return await _exchange(http, identity, server, id_token=assertion.id_token, **fields), assertion


async def _exchange(
    http: OAuthHttp, identity: Identity, server: ServerMetadata, *, id_token: str, **fields: str
) -> str:
    types = {"grant_type": _TOKEN_EXCHANGE, "requested_token_type": _ID_JAG, "subject_token_type": _ID_TOKEN}
    response = await _request_token(http, identity, server, subject_token=id_token, **types, **fields)
    grant = response.get("access_token")
    if not isinstance(grant, str) or response.get("issued_token_type") != _ID_JAG:
        raise LoginError(f"'{identity.issuer}' did not issue the identity assertion grant that was requested.")
    return grant


async def _request_token(
    http: OAuthHttp, identity: Identity, server: ServerMetadata, **fields: str
) -> Mapping[str, Any]:
    client = configured_client(Login(client_id=identity.client_id, client_secret=identity.client_secret), server)
    assert client is not None  # noqa: S101 - an identity has a client id
    return await http.token(server.token_endpoint, client, **fields)


def _identity_assertion(
    response: Mapping[str, Any], identity: Identity, *, previous: IdentityAssertion | None
) -> IdentityAssertion:
    id_token, refresh_token = response.get("id_token"), response.get("refresh_token")
    if not isinstance(id_token, str):
        raise LoginError(f"'{identity.issuer}' does not say who signed in: it issued no id token.")
    if not isinstance(refresh_token, str):
        refresh_token = previous and previous.refresh_token
    return IdentityAssertion(id_token=id_token, refresh_token=refresh_token)


_NAME_CLAIMS: Final = ("email", "preferred_username", "name", "sub")


async def _save_nothing(_: StoredLogin) -> None:
    """Store nothing, for callers that have no vault."""


async def sign_in(
    name: str,
    settings: UpstreamSettings,
    stored: StoredLogin | None,
    *,
    show: ShowUrl,
    seconds: float,
    save: SaveLogin = _save_nothing,
) -> StoredLogin:
    """Have a person sign in at an upstream, where one is needed, and return the login to store.

    Raises:
        LoginError: It failed.
    """
    login = settings.login or Login()
    url = settings.url or ""
    stored = stored or StoredLogin(url=url)
    async with open_http(name, url, login) as http:
        if login.identity is not None and login.identity.id_token is None:
            assertion = await _sign_in_at_provider(
                http, login.identity, port=login.redirect_port, show=show, seconds=seconds
            )
            stored = msgspec.structs.replace(stored, identity_assertion=assertion)
        if login.grant == "authorization_code":
            discovered, fields = await _discover(http, settings, stored)
            await _pin_server(http.name, login, discovered, stored=stored, save=save)
            client, response = await _authorize(
                http, login, discovered.server, stored=stored.client, fields=fields, show=show, seconds=seconds
            )
            return _new_login(url, discovered, client, response, requested=fields.get("scope"))
    return await obtain(name, settings, stored.challenge, stored=stored, save=save)


async def obtain(
    name: str,
    settings: UpstreamSettings,
    challenge: str,
    *,
    stored: StoredLogin | None,
    save: SaveLogin = _save_nothing,
) -> StoredLogin:
    """Get a token without a person: with client credentials, or with an identity assertion.

    Raises:
        LoginError: It failed.
    """
    login = settings.login or Login()
    url = settings.url or ""
    stored = stored or StoredLogin(url=url)
    async with open_http(name, url, login) as http:
        discovered, fields = await _discover(http, settings, msgspec.structs.replace(stored, challenge=challenge))
        pinned = await _pin_server(http.name, login, discovered, stored=stored, save=save)
        client = configured_client(login, discovered.server)
        if client is None:
            needs = "a 'client_id' and a 'client_secret' or 'private_key'"
            raise LoginError(f"'{name}' signs in as a client: its 'login' needs {needs}.")
        grant, assertion = {"grant_type": "client_credentials"}, stored.identity_assertion
        if login.identity is not None:
            exchanged = {"audience": discovered.server.issuer, **fields}
            jag, assertion = await _obtain_grant(http, login.identity, pinned, fields=exchanged, save=save)
            grant = {"grant_type": _JWT_BEARER, "assertion": jag}
        response = await http.token(discovered.server.token_endpoint, client, key=login.private_key, **grant, **fields)
    made = _new_login(url, discovered, client, response, requested=fields.get("scope"))
    if assertion is None:
        return made
    return msgspec.structs.replace(made, identity_assertion=assertion, user=_user_name(assertion.id_token))


async def refresh(name: str, stored: StoredLogin, login: Login) -> StoredLogin:
    """Renew a token, and return the login to store.

    Raises:
        LoginError: It failed.
    """
    token, client = stored.token, _with_secret(stored.client, login)
    if token is None or client is None or token.refresh_token is None:
        raise LoginError(f"The login at '{name}' cannot be renewed.")
    async with open_http(name, stored.url, login) as http:
        resource = {"resource": stored.resource} if login.token_url is None else {}
        fields = {"refresh_token": token.refresh_token, **resource}
        key = login.private_key if client.method == "private_key_jwt" else None
        response = await http.token(stored.token_endpoint, client, key=key, grant_type="refresh_token", **fields)
    renewed = _parse_token(response, token.scope)
    if renewed.refresh_token is None:
        renewed = msgspec.structs.replace(renewed, refresh_token=token.refresh_token)
    return msgspec.structs.replace(stored, token=renewed, challenge="")


async def revoke(name: str, stored: StoredLogin, login: Login) -> bool:
    """Revoke a login, and return whether the authorization server can do that.

    Raises:
        LoginError: It can, and it failed.
    """
    token, client = stored.token, _with_secret(stored.client, login)
    if token is None or client is None or stored.revocation_endpoint is None:
        return False
    async with open_http(name, stored.url, login) as http:
        await http.revoke(stored.revocation_endpoint, client, token.refresh_token or token.access_token)
    return True


async def _discover(
    http: OAuthHttp, settings: UpstreamSettings, stored: StoredLogin
) -> tuple[Discovered, dict[str, str]]:
    """Return the upstream's authorization server and the fields of a request to it.

    The challenge of an earlier refusal counts if the upstream sends none now.
    """
    login = settings.login or Login()
    if login.token_url is not None:
        known = known_server(http, login, login.token_url)
        scope = _scope_to_request(login, known, stored)
        return known, {"scope": scope} if scope else {}  # such a server knows no 'resource'
    method = "GET" if settings.carrier == "sse" else "POST"
    status, challenge = await http.fetch_challenge(settings.url or "", settings.headers, method=method)
    was_refused = status == HTTPStatus.UNAUTHORIZED or bool(stored.challenge)
    discovered = await discover(http, settings.url or "", challenge or stored.challenge, was_refused=was_refused)
    issuer = discovered.server.issuer
    if login.issuer not in {None, issuer}:
        asks = f"'{http.name}' asks for a login at '{issuer[:200]}'"
        raise LoginError(f"{asks}, but its 'login' trusts '{login.issuer}' alone.")
    scope = _scope_to_request(login, discovered, stored)
    return discovered, {"resource": discovered.resource, **({"scope": scope} if scope else {})}


async def _pin_server(
    name: str, login: Login, discovered: Discovered, *, stored: StoredLogin, save: SaveLogin
) -> StoredLogin:
    """Store the first authorization server before it is shown the configured secret, and refuse every other.

    The upstream names the server, so that it could otherwise have the secret sent wherever it likes.
    """
    issuer = discovered.server.issuer
    if login.client_secret is None or login.issuer is not None:
        return stored
    first = stored.issuer or (stored.client.issuer if stored.client else issuer)
    if first != issuer:
        asked = f"'{name}' asks for a login at '{issuer[:200]}' now, and first asked for one at '{first[:200]}'"
        remedy = f"run 'callyard logout {name}' and sign in again, or set 'issuer' in its 'login'."
        raise LoginError(f"{asked}, which alone gets its 'client_secret'. If that is right, {remedy}")
    if not stored.issuer:
        stored = msgspec.structs.replace(stored, issuer=issuer)
        await save(stored)
    return stored


def _scope_to_request(login: Login, discovered: Discovered, stored: StoredLogin) -> str | None:
    """Return the scope of the settings or of the upstream, on top of the granted one if the upstream asked for more."""
    scope = " ".join(login.scopes) or discovered.scope
    if needs_more_scope(stored.challenge):
        scope = join_scopes(stored.token and stored.token.scope, scope, challenge_parameter(stored.challenge, "scope"))
    wants_refresh = login.grant == "authorization_code" and _OFFLINE in (discovered.server.scopes_supported or ())
    return join_scopes(scope, _OFFLINE) if scope and wants_refresh else scope


def _new_login(
    url: str, discovered: Discovered, client: Client, response: Mapping[str, Any], *, requested: str | None
) -> StoredLogin:
    return StoredLogin(
        url=url,
        resource=discovered.resource,
        token_endpoint=discovered.server.token_endpoint,
        revocation_endpoint=discovered.server.revocation_endpoint,
        client=client if client.redirect_uri is not None else msgspec.structs.replace(client, client_secret=None),
        token=_parse_token(response, requested),
        user=_user_name(response.get("id_token")),
        issuer=discovered.server.issuer,
    )


def _with_secret(client: Client | None, login: Login) -> Client | None:
    """Return a client with its secret: that of a configured client stays in the settings and is not stored."""
    if client is None or client.client_id != login.client_id:
        return client
    return msgspec.structs.replace(client, client_secret=login.client_secret)


def _parse_token(response: Mapping[str, Any], requested: str | None) -> Token:
    names = ("access_token", "token_type", "refresh_token", "scope", "expires_in")
    access_token, token_type, refresh_token, scope, lifetime = map(response.get, names)
    if not isinstance(access_token, str) or not re.fullmatch("[ -~]+", access_token):
        raise LoginError("The authorization server answered without a token.", is_transient=True)
    if isinstance(token_type, str) and token_type.lower() != "bearer":
        raise LoginError(f"The authorization server issued a token of the unsupported type '{token_type[:40]}'.")
    now = time.time()
    return Token(
        access_token=access_token,
        refresh_token=refresh_token if isinstance(refresh_token, str) and refresh_token else None,
        scope=scope if isinstance(scope, str) else requested,
        expires=None if lifetime is None else now + float(lifetime),  # the library has checked that it is a number
        issued=now,
    )


def _user_name(id_token: object) -> str:
    """Return the user name in an id token, unverified: it came from the server over TLS, and is only shown."""
    if not isinstance(id_token, str):
        return ""
    payload = id_token.split(".")[1:2]
    try:
        claims: Any = msgspec.json.decode(urlsafe_b64decode(f"{payload[0]}===")) if payload else {}
    except (ValueError, msgspec.DecodeError):
        return ""
    names = map(cast("dict[str, Any]", claims).get, _NAME_CLAIMS) if isinstance(claims, dict) else ()
    return next((name[:200] for name in names if isinstance(name, str) and name), "")
