"""Vouching: an identity provider says who somebody is, and the authorization server of an upstream takes its word.

The first half is an exchange of tokens (RFC 8693): for what it knows of a person, the identity provider gives an assertion that is
good for one server and one upstream. The second half (RFC 7523), where that becomes a token, is like any other request for one.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from toolyard.providers.upstream.login.asking import Asker
from toolyard.providers.upstream.login.browser import Show, have_person_sign_in
from toolyard.providers.upstream.login.discovery import server_of
from toolyard.providers.upstream.login.papers import ServerPaper, Vouched, joined_scopes
from toolyard.providers.upstream.login.registration import given_client
from toolyard.providers.upstream.login.troubles import LoginError
from toolyard.providers.upstream.settings import Identity, Login

__all__ = ["JWT_BEARER", "Keep", "sign_in_at", "vouch"]

Keep = Callable[[Vouched], Awaitable[None]]
"""What is given what an identity provider renewed, to keep it whatever comes of the rest: the old one may be good no more."""

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_TOKEN: Final = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind of token
_ASSERTION: Final = "urn:ietf:params:oauth:token-type:id-jag"
_OPENID: Final = "openid"
_OFFLINE: Final = "offline_access"


async def sign_in_at(asker: Asker, identity: Identity, *, port: int, show: Show, seconds: float) -> Vouched:
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
    asker: Asker, identity: Identity, *, vouched: Vouched | None, audience: str, wanted: Mapping[str, str], keep: Keep | None
) -> tuple[str, Vouched]:
    """Return an assertion for one authorization server, and what the identity provider says of whom it is about.

    Raises:
        LoginError: It gives none.
    """
    known = Vouched(id_token=identity.id_token) if identity.id_token is not None else vouched
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


async def _exchange(asker: Asker, identity: Identity, *, server: ServerPaper, known: Vouched, **wanted: str) -> str:
    kinds = {"grant_type": _EXCHANGE, "requested_token_type": _ASSERTION, "subject_token_type": _ID_TOKEN}
    answer = await _token(asker, identity, server=server, subject_token=known.id_token, **kinds, **wanted)
    assertion = answer.get("access_token")
    if not isinstance(assertion, str) or answer.get("issued_token_type") != _ASSERTION:
        raise LoginError(f"'{identity.issuer}' gave something else than the assertion that it was asked for.")
    return assertion


async def _renewed(asker: Asker, identity: Identity, *, server: ServerPaper, known: Vouched) -> Vouched:
    answer = await _token(asker, identity, server=server, grant_type="refresh_token", refresh_token=known.refresh_token or "")
    return _vouched(answer, identity, before=known)


async def _token(asker: Asker, identity: Identity, *, server: ServerPaper, **fields: str) -> Mapping[str, Any]:
    client = given_client(Login(client_id=identity.client_id, client_secret=identity.client_secret), server)
    assert client is not None  # noqa: S101 - it has an id
    return await asker.token(server.token_endpoint, client, **fields)


def _vouched(answer: Mapping[str, Any], identity: Identity, *, before: Vouched | None) -> Vouched:
    id_token, renewing = answer.get("id_token"), answer.get("refresh_token")
    if not isinstance(id_token, str):
        raise LoginError(f"'{identity.issuer}' does not say who signed in: it gave no id token.")
    kept = before.refresh_token if before is not None else None
    return Vouched(id_token=id_token, refresh_token=renewing if isinstance(renewing, str) else kept)
