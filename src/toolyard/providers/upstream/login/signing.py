"""Signing in: from an upstream's address to a token, by a person in a browser or by the client itself; renewing and revoking."""

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from toolyard.providers.upstream.login.asking import Asker, opened_asker
from toolyard.providers.upstream.login.challenge import parameter_of, wants_more
from toolyard.providers.upstream.login.discovery import Found, discover
from toolyard.providers.upstream.login.papers import Client, Kept, ServerPaper, Token, joined_scopes
from toolyard.providers.upstream.login.redirect import Redirect, opened_redirect
from toolyard.providers.upstream.login.registration import client_of, given_client
from toolyard.providers.upstream.login.troubles import LoginError
from toolyard.providers.upstream.settings import Login, UpstreamSettings

__all__ = ["obtain", "refresh", "revoke", "sign_in"]

_OFFLINE: Final = "offline_access"
_UNAUTHORIZED: Final = 401
_NAMES: Final = ("email", "preferred_username", "name", "sub")


async def sign_in(name: str, settings: UpstreamSettings, kept: Kept | None, *, show: Callable[[str], None], seconds: float) -> Kept:
    """Have a person sign in at an upstream and return what to keep; `show` is given the address that a browser is to open.

    Raises:
        LoginError: It did not work.
    """
    login = settings.login or Login()
    if login.grant == "client_credentials":
        return await obtain(name, settings, kept.challenge if kept is not None else "", before=kept)
    url = settings.url or ""
    async with opened_asker(name, url) as asker:
        found = await _find(asker, settings, kept)
        server = found.server
        _check_proof(server)
        scope = _scope(login, found, kept)
        known = kept.client if kept is not None else None
        async with opened_redirect(login.redirect_port, kept=known.redirect_uri if known is not None else None) as redirect:
            client = await client_of(asker, login, server, kept=known, redirect_uri=redirect.uri, scope=scope)
            verifier = secrets.token_urlsafe(48)
            fields = {"redirect_uri": redirect.uri, "resource": found.resource, **({"scope": scope} if scope else {})}
            show(asker.address(server.authorization_endpoint or "", client, verifier=verifier, state=redirect.state, **fields))
            code = await _code(redirect, server, seconds)
        answer = await asker.token(
            server.token_endpoint,
            client,
            grant_type="authorization_code",
            code=code,
            code_verifier=verifier,
            redirect_uri=redirect.uri,
            resource=found.resource,
        )
    return _kept(url, found, client, answer, asked=scope)


async def obtain(name: str, settings: UpstreamSettings, challenge: str, *, before: Kept | None) -> Kept:
    """Get a token for the client itself, without a person.

    Raises:
        LoginError: It did not work.
    """
    login = settings.login or Login()
    url = settings.url or ""
    async with opened_asker(name, url) as asker:
        refused = Kept(url=url, challenge=challenge) if before is None else msgspec.structs.replace(before, challenge=challenge)
        found = await _find(asker, settings, refused)
        client = given_client(login, found.server)
        if client is None:
            raise LoginError(f"'{name}' signs in as a client: its 'login' needs a 'client_id' and a 'client_secret' or 'private_key'.")
        scope = _scope(login, found, refused)
        fields = {"resource": found.resource, **({"scope": scope} if scope else {})}
        answer = await asker.token(found.server.token_endpoint, client, key=login.private_key, grant_type="client_credentials", **fields)
    return _kept(url, found, client, answer, asked=scope)


async def refresh(name: str, kept: Kept, login: Login) -> Kept:
    """Renew a token and return what to keep; what the server does not say stays as it was.

    Raises:
        LoginError: It did not work.
    """
    token, client = kept.token, _with_secret(kept.client, login)
    if token is None or client is None or token.refresh_token is None:
        raise LoginError(f"The login at '{name}' cannot be renewed.")
    async with opened_asker(name, kept.url) as asker:
        fields = {"refresh_token": token.refresh_token, "resource": kept.resource}
        key = login.private_key if client.method == "private_key_jwt" else None
        answer = await asker.token(kept.token_endpoint, client, key=key, grant_type="refresh_token", **fields)
    fresh = _token(answer, token.scope)
    if fresh.refresh_token is None:
        fresh = msgspec.structs.replace(fresh, refresh_token=token.refresh_token)
    return msgspec.structs.replace(kept, token=fresh, challenge="")


async def revoke(name: str, kept: Kept, login: Login) -> bool:
    """Have the authorization server forget a login, and return whether it has a way to.

    Raises:
        LoginError: It has, and it did not work.
    """
    token, client = kept.token, _with_secret(kept.client, login)
    if token is None or client is None or kept.revocation_endpoint is None:
        return False
    async with opened_asker(name, kept.url) as asker:
        await asker.revoke(kept.revocation_endpoint, client, token.refresh_token or token.access_token)
    return True


async def _find(asker: Asker, settings: UpstreamSettings, kept: Kept | None) -> Found:
    """Ask the upstream how it wants to be signed in at; what it said when it last refused us counts if it says nothing now."""
    method = "GET" if settings.carrier == "sse" else "POST"
    status, challenge = await asker.challenge_of(settings.url or "", settings.headers, method=method)
    before = kept.challenge if kept is not None else ""
    refused = status == _UNAUTHORIZED or bool(before)
    return await discover(asker, settings.url or "", challenge or before, refused=refused)


def _scope(login: Login, found: Found, kept: Kept | None) -> str | None:
    """Return what to ask for: what the settings or else the upstream says; if more is wanted than was granted, that on top."""
    scope = " ".join(login.scopes) or found.scope
    if kept is not None and wants_more(kept.challenge):
        granted = kept.token.scope if kept.token is not None else None
        scope = joined_scopes(granted, scope, parameter_of(kept.challenge, "scope"))
    may_stay = login.grant == "authorization_code" and _OFFLINE in (found.server.scopes_supported or ())
    return joined_scopes(scope, _OFFLINE) if scope and may_stay else scope


def _check_proof(server: ServerPaper) -> None:
    if server.authorization_endpoint is None:
        raise LoginError(f"'{server.issuer}' has no page to sign in on.")
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise LoginError(f"'{server.issuer}' does not know PKCE with 'S256', without which a login can be stolen.")


async def _code(redirect: Redirect, server: ServerPaper, seconds: float) -> str:
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


def _kept(url: str, found: Found, client: Client, answer: Mapping[str, Any], *, asked: str | None) -> Kept:
    return Kept(
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
    access, kind, renewing, scope, lasting = (
        answer.get(name) for name in ("access_token", "token_type", "refresh_token", "scope", "expires_in")
    )
    if not isinstance(access, str) or not access.isascii() or not access.isprintable() or not access:
        raise LoginError("The authorization server answered without a token.")
    if isinstance(kind, str) and kind.lower() != "bearer":
        raise LoginError(f"The authorization server gave a token of the kind '{kind[:40]}', which is not known here.")
    now = time.time()
    return Token(
        access_token=access,
        refresh_token=renewing if isinstance(renewing, str) and renewing else None,
        scope=scope if isinstance(scope, str) else asked,
        expires=None if lasting is None else now + float(lasting),  # the library took it for a number, too
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
