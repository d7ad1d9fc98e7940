"""Signing in: from an upstream's address to a token, with a person or without; renewing and revoking."""

import time
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from toolyard.providers.upstream.login.asking import Asker, opened_asker
from toolyard.providers.upstream.login.browser import Show, have_person_sign_in
from toolyard.providers.upstream.login.challenge import parameter_of, wants_more
from toolyard.providers.upstream.login.discovery import Found, discover
from toolyard.providers.upstream.login.papers import Client, Kept, Token, joined_scopes
from toolyard.providers.upstream.login.registration import given_client
from toolyard.providers.upstream.login.troubles import LoginError
from toolyard.providers.upstream.login.vouching import JWT_BEARER, Keep, sign_in_at, vouch
from toolyard.providers.upstream.settings import Login, UpstreamSettings

__all__ = ["obtain", "refresh", "revoke", "sign_in"]

_OFFLINE: Final = "offline_access"
_UNAUTHORIZED: Final = 401
_NAMES: Final = ("email", "preferred_username", "name", "sub")


async def sign_in(name: str, settings: UpstreamSettings, kept: Kept | None, *, show: Show, seconds: float) -> Kept:
    """Have a person sign in at an upstream, if it takes one, and return what to keep; `show` is given what a browser is to open.

    Raises:
        LoginError: It did not work.
    """
    login = settings.login or Login()
    url = settings.url or ""
    if login.identity is not None and login.identity.id_token is None:
        async with opened_asker(name, url) as asker:
            vouched = await sign_in_at(asker, login.identity, port=login.redirect_port, show=show, seconds=seconds)
        kept = msgspec.structs.replace(kept or Kept(url=url), vouched=vouched)
    if login.grant != "authorization_code":
        return await obtain(name, settings, kept.challenge if kept is not None else "", before=kept)
    async with opened_asker(name, url) as asker:
        found = await _find(asker, settings, kept)
        scope = _scope(login, found, kept)
        known = kept.client if kept is not None else None
        wanted = _wanted(found, scope)
        client, answer = await have_person_sign_in(asker, login, found.server, known=known, wanted=wanted, show=show, seconds=seconds)
    return _kept(url, found, client, answer, asked=scope)


async def obtain(name: str, settings: UpstreamSettings, challenge: str, *, before: Kept | None, keep: Keep | None = None) -> Kept:
    """Get a token without a person: for the client itself, or for somebody whom the identity provider vouches for.

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
        wanted, vouched = _wanted(found, scope), refused.vouched
        proof = {"grant_type": "client_credentials"}
        if login.identity is not None:
            assertion, vouched = await vouch(asker, login.identity, vouched=vouched, audience=found.server.issuer, wanted=wanted, keep=keep)
            proof = {"grant_type": JWT_BEARER, "assertion": assertion}
        answer = await asker.token(found.server.token_endpoint, client, key=login.private_key, **proof, **wanted)
    made = _kept(url, found, client, answer, asked=scope)
    return made if vouched is None else msgspec.structs.replace(made, vouched=vouched, who=_who(vouched.id_token))


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
    found = await discover(asker, settings.url or "", challenge or before, refused=refused)
    trusted = settings.login.issuer if settings.login is not None else None
    if trusted not in {None, found.server.issuer}:
        raise LoginError(f"'{asker.name}' wants a login at '{found.server.issuer[:200]}', but its 'login' trusts '{trusted}' alone.")
    return found


def _wanted(found: Found, scope: str | None) -> dict[str, str]:
    return {"resource": found.resource, **({"scope": scope} if scope else {})}


def _scope(login: Login, found: Found, kept: Kept | None) -> str | None:
    """Return what to ask for: what the settings or else the upstream says; if more is wanted than was granted, that on top."""
    scope = " ".join(login.scopes) or found.scope
    if kept is not None and wants_more(kept.challenge):
        granted = kept.token.scope if kept.token is not None else None
        scope = joined_scopes(granted, scope, parameter_of(kept.challenge, "scope"))
    may_stay = login.grant == "authorization_code" and _OFFLINE in (found.server.scopes_supported or ())
    return joined_scopes(scope, _OFFLINE) if scope and may_stay else scope


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
        raise LoginError("The authorization server answered without a token.", passing=True)
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
