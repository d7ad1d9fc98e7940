"""Signing in: from an upstream's address to a token, with a person or without; renewing and revoking."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

import msgspec

from toolyard.providers.upstream.oauth.discovery import Found, client_of, discover, given_client, server_of
from toolyard.providers.upstream.oauth.http import OAuthHttp, open_http
from toolyard.providers.upstream.oauth.metadata import (
    Client,
    IdentityAssertion,
    LoginError,
    ServerMetadata,
    StoredLogin,
    Token,
    joined_scopes,
    parameter_of,
    wants_more,
)
from toolyard.providers.upstream.settings import Identity, Login, UpstreamSettings

__all__ = [
    "JWT_BEARER",
    "Keep",
    "Redirect",
    "Show",
    "have_person_sign_in",
    "obtain",
    "opened_redirect",
    "refresh",
    "revoke",
    "sign_in",
    "sign_in_at",
    "vouch",
]


_HOST: Final = "127.0.0.1"
_PATH: Final = "/callback"
_HEAD_BYTES: Final = 16 * 1024
_SECONDS: Final = 10.0
_PAGE: Final = "<!doctype html><meta charset=utf-8><title>Toolyard</title><p>{}</p>"
_DONE: Final = "Toolyard has what it needs. You can close this page and go back to the terminal."
_STRANGE: Final = "This is not what Toolyard waits for."


class Redirect:
    """Waits for a browser that brings the right state."""

    def __init__(self) -> None:
        self.state = secrets.token_urlsafe(32)
        self.uri = ""
        self._came: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    async def wait(self, seconds: float) -> Mapping[str, str]:
        """Return what the browser brought.

        Raises:
            LoginError: It did not come in time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._came
        except TimeoutError:
            raise LoginError(f"Nobody signed in within {seconds:g} seconds.") from None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; whatever does not bring the state is sent away, and the wait goes on."""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                brought = self._read(head)
                status, text = ("200 OK", _DONE) if brought is not None else ("400 Bad Request", _STRANGE)
                writer.write(_response(status, _PAGE.format(text)))
                await writer.drain()
                if brought is not None and not self._came.done():
                    self._came.set_result(brought)
        writer.close()

    def _read(self, head: bytes) -> Mapping[str, str] | None:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        found = parse_qs(target.query, keep_blank_values=True)
        single = {name: values[0] for name, values in found.items() if len(values) == 1}
        if (method, target.path) != ("GET", _PATH) or len(single) != len(found):
            return None
        return single if secrets.compare_digest(single.get("state", "").encode(), self.state.encode()) else None


@asynccontextmanager
async def opened_redirect(port: int, *, kept: str | None) -> AsyncGenerator[Redirect]:
    """Listen on a port, or on any: first on that of an address that was registered already.

    Raises:
        LoginError: The port is taken.
    """
    redirect = Redirect()
    server = await _listening(redirect, port, kept)
    try:
        redirect.uri = f"http://{_HOST}:{server.sockets[0].getsockname()[1]}{_PATH}"
        yield redirect
    finally:
        server.close()
        await server.wait_closed()


async def _listening(redirect: Redirect, port: int, kept: str | None) -> asyncio.Server:
    if not port and kept is not None:
        with suppress(OSError, ValueError):
            return await asyncio.start_server(redirect.serve, _HOST, urlsplit(kept).port, limit=_HEAD_BYTES)
    try:
        return await asyncio.start_server(redirect.serve, _HOST, port, limit=_HEAD_BYTES)
    except OSError as error:
        raise LoginError(f"The port {port}, to which the browser is to come back, cannot be used: {error.strerror}.") from error


def _response(status: str, page: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(page.encode())}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    )
    return f"{head}{page}".encode()


Show = Callable[[str], None]
"""What is given the address that a browser is to open."""


async def have_person_sign_in(
    asker: OAuthHttp, login: Login, server: ServerMetadata, *, known: Client | None, wanted: Mapping[str, str], show: Show, seconds: float
) -> tuple[Client, Mapping[str, Any]]:
    """Have a person sign in at a server, for what is wanted, and return who we are there and what its token endpoint answers.

    Raises:
        LoginError: It did not work.
    """
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise LoginError(f"'{server.issuer}' does not know PKCE with 'S256', without which a login can be stolen.")
    if server.authorization_endpoint is None:
        raise LoginError(f"'{server.issuer}' has no page to sign in on.")
    async with opened_redirect(login.redirect_port, kept=known.redirect_uri if known is not None else None) as redirect:
        client = await client_of(asker, login, server, kept=known, redirect_uri=redirect.uri, scope=wanted.get("scope"))
        verifier = secrets.token_urlsafe(48)
        fields = {"redirect_uri": redirect.uri, **wanted}
        show(asker.address(server.authorization_endpoint, client, verifier=verifier, state=redirect.state, **fields))
        code = await _code(redirect, server, seconds)
    proof = {"code": code, "code_verifier": verifier, "redirect_uri": redirect.uri}
    more = {name: value for name, value in wanted.items() if name != "scope"}
    return client, await asker.token(server.token_endpoint, client, grant_type="authorization_code", **proof, **more)


async def _code(redirect: Redirect, server: ServerMetadata, seconds: float) -> str:
    """Return the code that the browser brings, if it is from the server that it was sent to."""
    brought = await redirect.wait(seconds)
    issuer = brought.get("iss")
    if issuer != server.issuer and (issuer is not None or server.authorization_response_iss_parameter_supported):
        raise LoginError(f"The browser was to come back from '{server.issuer}', and did not; nothing was given away.")
    if "error" in brought:
        said = brought.get("error_description", "")[:200].removesuffix(".")
        raise LoginError(f"'{server.issuer}' let nobody sign in ({brought['error'][:80]}{': ' if said else ''}{said}).")
    if not brought.get("code"):
        raise LoginError(f"The browser came back from '{server.issuer}' without a code.")
    return brought["code"]


Keep = Callable[[IdentityAssertion], Awaitable[None]]
"""What is given what an identity provider renewed, to keep it whatever comes of the rest: the old one may be good no more."""
JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind of token
_ASSERTION: Final = "urn:ietf:params:oauth:token-type:id-jag"
_OPENID: Final = "openid"
_OFFLINE: Final = "offline_access"


async def sign_in_at(asker: OAuthHttp, identity: Identity, *, port: int, show: Show, seconds: float) -> IdentityAssertion:
    """Have a person sign in at an identity provider.

    Raises:
        LoginError: It did not work.
    """
    server = await server_of(asker, identity.issuer)
    may_stay = _OFFLINE in (server.scopes_supported or ())
    wanted = {"scope": joined_scopes(_OPENID, _OFFLINE if may_stay else None)}
    login = Login(client_id=identity.client_id, client_secret=identity.client_secret, redirect_port=port)
    _, answer = await have_person_sign_in(asker, login, server, known=None, wanted=wanted, show=show, seconds=seconds)
    return _vouched(answer, identity, before=None)


async def vouch(
    asker: OAuthHttp, identity: Identity, *, vouched: IdentityAssertion | None, audience: str, wanted: Mapping[str, str], keep: Keep | None
) -> tuple[str, IdentityAssertion]:
    """Return an assertion for one authorization server, and what the identity provider says of whom it is about.

    Raises:
        LoginError: It gives none.
    """
    known = IdentityAssertion(id_token=identity.id_token) if identity.id_token is not None else vouched
    if known is None:
        raise LoginError(f"Nobody is signed in at '{identity.issuer}'.")
    server = await server_of(asker, identity.issuer)
    try:
        return await _exchange(asker, identity, server=server, known=known, audience=audience, **wanted), known
    except LoginError as error:
        if error.passing or known.refresh_token is None:
            raise
    known = await _renewed(asker, identity, server=server, known=known)  # an id token lasts for minutes, and a login for days
    if keep is not None:
        await keep(known)
    return await _exchange(asker, identity, server=server, known=known, audience=audience, **wanted), known


async def _exchange(asker: OAuthHttp, identity: Identity, *, server: ServerMetadata, known: IdentityAssertion, **wanted: str) -> str:
    kinds = {"grant_type": _EXCHANGE, "requested_token_type": _ASSERTION, "subject_token_type": _ID_TOKEN}
    answer = await _request_token(asker, identity, server=server, subject_token=known.id_token, **kinds, **wanted)
    assertion = answer.get("access_token")
    if not isinstance(assertion, str) or answer.get("issued_token_type") != _ASSERTION:
        raise LoginError(f"'{identity.issuer}' gave something else than the assertion that it was asked for.")
    return assertion


async def _renewed(asker: OAuthHttp, identity: Identity, *, server: ServerMetadata, known: IdentityAssertion) -> IdentityAssertion:
    answer = await _request_token(asker, identity, server=server, grant_type="refresh_token", refresh_token=known.refresh_token or "")
    return _vouched(answer, identity, before=known)


async def _request_token(asker: OAuthHttp, identity: Identity, *, server: ServerMetadata, **fields: str) -> Mapping[str, Any]:
    client = given_client(Login(client_id=identity.client_id, client_secret=identity.client_secret), server)
    assert client is not None  # noqa: S101 - it has an id
    return await asker.token(server.token_endpoint, client, **fields)


def _vouched(answer: Mapping[str, Any], identity: Identity, *, before: IdentityAssertion | None) -> IdentityAssertion:
    id_token, renewing = answer.get("id_token"), answer.get("refresh_token")
    if not isinstance(id_token, str):
        raise LoginError(f"'{identity.issuer}' does not say who signed in: it gave no id token.")
    kept = before.refresh_token if before is not None else None
    return IdentityAssertion(id_token=id_token, refresh_token=renewing if isinstance(renewing, str) else kept)


_UNAUTHORIZED: Final = 401
_NAMES: Final = ("email", "preferred_username", "name", "sub")


async def sign_in(name: str, settings: UpstreamSettings, kept: StoredLogin | None, *, show: Show, seconds: float) -> StoredLogin:
    """Have a person sign in at an upstream, if it takes one, and return what to keep; `show` is given what a browser is to open.

    Raises:
        LoginError: It did not work.
    """
    login = settings.login or Login()
    url = settings.url or ""
    if login.identity is not None and login.identity.id_token is None:
        async with open_http(name, url) as asker:
            vouched = await sign_in_at(asker, login.identity, port=login.redirect_port, show=show, seconds=seconds)
        kept = msgspec.structs.replace(kept or StoredLogin(url=url), vouched=vouched)
    if login.grant != "authorization_code":
        return await obtain(name, settings, kept.challenge if kept is not None else "", before=kept)
    async with open_http(name, url) as asker:
        found = await _find(asker, settings, kept)
        scope = _scope(login, found, kept)
        known = kept.client if kept is not None else None
        wanted = _wanted(found, scope)
        client, answer = await have_person_sign_in(asker, login, found.server, known=known, wanted=wanted, show=show, seconds=seconds)
    return _kept(url, found, client, answer, asked=scope)


async def obtain(
    name: str, settings: UpstreamSettings, challenge: str, *, before: StoredLogin | None, keep: Keep | None = None
) -> StoredLogin:
    """Get a token without a person: for the client itself, or for somebody whom the identity provider vouches for.

    Raises:
        LoginError: It did not work.
    """
    login = settings.login or Login()
    url = settings.url or ""
    async with open_http(name, url) as asker:
        refused = StoredLogin(url=url, challenge=challenge) if before is None else msgspec.structs.replace(before, challenge=challenge)
        found = await _find(asker, settings, refused)
        client = given_client(login, found.server)
        if client is None:
            raise LoginError(f"'{name}' signs in as a client: its 'login' needs a 'client_id' and a 'client_secret' or 'private_key'.")
        scope = _scope(login, found, refused)
        wanted, vouched = _wanted(found, scope), refused.vouched
        proof = {"grant_type": "client_credentials"}
        if login.identity is not None:
            assertion, vouched = await vouch(asker, login.identity, vouched=vouched, audience=found.server.issuer, wanted=wanted, keep=keep)
            proof = {"grant_type": JWT_BEARER, "assertion": assertion}
        answer = await asker.token(found.server.token_endpoint, client, key=login.private_key, **proof, **wanted)
    made = _kept(url, found, client, answer, asked=scope)
    return made if vouched is None else msgspec.structs.replace(made, vouched=vouched, who=_who(vouched.id_token))


async def refresh(name: str, kept: StoredLogin, login: Login) -> StoredLogin:
    """Renew a token and return what to keep; what the server does not say stays as it was.

    Raises:
        LoginError: It did not work.
    """
    token, client = kept.token, _with_secret(kept.client, login)
    if token is None or client is None or token.refresh_token is None:
        raise LoginError(f"The login at '{name}' cannot be renewed.")
    async with open_http(name, kept.url) as asker:
        fields = {"refresh_token": token.refresh_token, "resource": kept.resource}
        key = login.private_key if client.method == "private_key_jwt" else None
        answer = await asker.token(kept.token_endpoint, client, key=key, grant_type="refresh_token", **fields)
    fresh = _token(answer, token.scope)
    if fresh.refresh_token is None:
        fresh = msgspec.structs.replace(fresh, refresh_token=token.refresh_token)
    return msgspec.structs.replace(kept, token=fresh, challenge="")


async def revoke(name: str, kept: StoredLogin, login: Login) -> bool:
    """Have the authorization server forget a login, and return whether it has a way to.

    Raises:
        LoginError: It has, and it did not work.
    """
    token, client = kept.token, _with_secret(kept.client, login)
    if token is None or client is None or kept.revocation_endpoint is None:
        return False
    async with open_http(name, kept.url) as asker:
        await asker.revoke(kept.revocation_endpoint, client, token.refresh_token or token.access_token)
    return True


async def _find(asker: OAuthHttp, settings: UpstreamSettings, kept: StoredLogin | None) -> Found:
    """Ask the upstream how it wants to be signed in at; what it said when it last refused us counts if it says nothing now."""
    method = "GET" if settings.carrier == "sse" else "POST"
    status, challenge = await asker.challenge_of(settings.url or "", settings.headers, method=method)
    before = kept.challenge if kept is not None else ""
    refused = status == _UNAUTHORIZED or bool(before)
    found = await discover(asker, settings.url or "", challenge or before, refused=refused)
    trusted = settings.login.issuer if settings.login is not None else None
    if trusted not in {None, found.server.issuer}:
        raise LoginError(f"'{asker.name}' wants a login at '{found.server.issuer[:200]}', but its 'login' trusts '{trusted}' alone.")
    return found


def _wanted(found: Found, scope: str | None) -> dict[str, str]:
    return {"resource": found.resource, **({"scope": scope} if scope else {})}


def _scope(login: Login, found: Found, kept: StoredLogin | None) -> str | None:
    """Return what to ask for: what the settings or else the upstream says; if more is wanted than was granted, that on top."""
    scope = " ".join(login.scopes) or found.scope
    if kept is not None and wants_more(kept.challenge):
        granted = kept.token.scope if kept.token is not None else None
        scope = joined_scopes(granted, scope, parameter_of(kept.challenge, "scope"))
    may_stay = login.grant == "authorization_code" and _OFFLINE in (found.server.scopes_supported or ())
    return joined_scopes(scope, _OFFLINE) if scope and may_stay else scope


def _kept(url: str, found: Found, client: Client, answer: Mapping[str, Any], *, asked: str | None) -> StoredLogin:
    return StoredLogin(
        url=url,
        resource=found.resource,
        token_endpoint=found.server.token_endpoint,
        revocation_endpoint=found.server.revocation_endpoint,
        client=client if client.redirect_uri is not None else msgspec.structs.replace(client, client_secret=None),
        token=_token(answer, asked),
        who=_who(answer.get("id_token")),
    )


def _with_secret(client: Client | None, login: Login) -> Client | None:
    """Return a client with its secret: that of a client of the settings is not kept anywhere else."""
    if client is None or client.client_id != login.client_id:
        return client
    return msgspec.structs.replace(client, client_secret=login.client_secret)


def _token(answer: Mapping[str, Any], asked: str | None) -> Token:
    access, kind, renewing, scope, without_mcp_headers = (
        answer.get(name) for name in ("access_token", "token_type", "refresh_token", "scope", "expires_in")
    )
    if not isinstance(access, str) or not access.isascii() or not access.isprintable() or not access:
        raise LoginError("The authorization server answered without a token.", passing=True)
    if isinstance(kind, str) and kind.lower() != "bearer":
        raise LoginError(f"The authorization server gave a token of the kind '{kind[:40]}', which is not known here.")
    now = time.time()
    return Token(
        access_token=access,
        refresh_token=renewing if isinstance(renewing, str) and renewing else None,
        scope=scope if isinstance(scope, str) else asked,
        expires=None if without_mcp_headers is None else now + float(without_mcp_headers),  # the library took it for a number, too
        began=now,
    )


def _who(id_token: object) -> str:
    """Return the name in an id token, to be shown and believed for nothing else: it came straight from the server."""
    if not isinstance(id_token, str):
        return ""
    from base64 import urlsafe_b64decode  # noqa: PLC0415 - few servers say who it is

    part = id_token.split(".")[1:2]
    try:
        claims: Any = msgspec.json.decode(urlsafe_b64decode(f"{part[0]}===")) if part else {}
    except (ValueError, msgspec.DecodeError):
        return ""
    known = cast("dict[str, Any]", claims) if isinstance(claims, dict) else {}
    names = (known.get(name) for name in _NAMES)
    return next((name[:200] for name in names if isinstance(name, str) and name), "")
