"""The browser: a person signs in there, and we get tokens for the code that it brings back."""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from toolyard.providers.upstream.login.asking import Asker
from toolyard.providers.upstream.login.papers import Client, ServerPaper
from toolyard.providers.upstream.login.redirect import Redirect, opened_redirect
from toolyard.providers.upstream.login.registration import client_of
from toolyard.providers.upstream.login.troubles import LoginError
from toolyard.providers.upstream.settings import Login

__all__ = ["Show", "have_person_sign_in"]

Show = Callable[[str], None]
"""What is given the address that a browser is to open."""


async def have_person_sign_in(
    asker: Asker, login: Login, server: ServerPaper, *, known: Client | None, wanted: Mapping[str, str], show: Show, seconds: float
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
