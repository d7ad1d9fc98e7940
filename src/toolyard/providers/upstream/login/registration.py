"""Registration: who we are to an authorization server: a client that was registered for us, a document, or one it registers now."""

import time
from typing import Any, Final

from toolyard.providers.upstream.login.asking import Asker
from toolyard.providers.upstream.login.papers import Client, ServerPaper
from toolyard.providers.upstream.login.troubles import LoginError
from toolyard.providers.upstream.settings import Login

__all__ = ["client_of", "given_client"]

_NONE: Final = "none"
_WITH_SECRET: Final = ("client_secret_basic", "client_secret_post")


def given_client(login: Login, server: ServerPaper) -> Client | None:
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
    asker: Asker, login: Login, server: ServerPaper, *, kept: Client | None, redirect_uri: str, scope: str | None
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


def _registered(answer: Any, wished: str, server: ServerPaper, redirect_uri: str) -> Client:
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
