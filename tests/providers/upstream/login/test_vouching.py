"""An identity provider says who somebody is, and the authorization server of an upstream takes its word."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from authority import Authority, SignIn, id_token

from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.oauth.credentials import SignedIn
from toolyard.providers.upstream.oauth.http import LoginError
from toolyard.providers.upstream.oauth.metadata import Kept, Vouched
from toolyard.providers.upstream.oauth.signin import obtain
from toolyard.providers.upstream.oauth.vault import Vault
from toolyard.providers.upstream.settings import Identity, Login, UpstreamSettings

ADA = id_token({"email": "ada@example.com"})
LATER = id_token({"email": "ada@example.com", "later": True})
REFUSED = 'Bearer error="invalid_token"'
MORE = 'Bearer error="insufficient_scope", scope="write"'


def login_at(issuer: str, *, given: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the settings of a login that an identity provider vouches for."""
    identity = Identity(issuer=issuer, client_id="us-there", id_token=given)
    return {"grant": "identity_assertion", "client_id": "us", "client_secret": "s", "identity": identity, **more}


async def test_an_id_token_becomes_an_assertion_and_that_a_token(authority: Authority, signed: SignIn) -> None:
    kept = await signed(**login_at(authority.vouch(ADA), given=ADA))

    [exchange] = authority.asked("/identity/token")
    [bearer] = authority.asked("/token")
    assert exchange == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "subject_token": ADA,
        "audience": authority.origin,
        "resource": authority.url,
        "scope": "read",
        "client_id": "us-there",
    }
    assert bearer == {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": f"assertion for {authority.origin}",
        "resource": authority.url,
        "scope": "read",
        "basic_id": "us",
        "basic_secret": "s",
    }
    assert kept.who == "ada@example.com"
    assert kept.token is not None
    assert kept.token.access_token in authority.tokens
    assert not authority.asked("/identity/authorize")


@pytest.mark.parametrize(("supported", "scope"), [(None, "openid"), (["offline_access"], "openid offline_access")])
async def test_without_an_id_token_a_person_signs_in_at_the_identity_provider(
    authority: Authority, signed: SignIn, supported: list[str] | None, scope: str
) -> None:
    authority.given = {"id_token": ADA}

    kept = await signed(**login_at(authority.vouch(ADA, scopes_supported=supported)))

    [page] = authority.asked("/identity/authorize")
    assert (page["client_id"], page["scope"], page["code_challenge_method"]) == ("us-there", scope, "S256")
    assert "resource" not in page
    assert not authority.asked("/authorize")
    assert kept.vouched is not None
    assert (kept.vouched.id_token, kept.who) == (ADA, "ada@example.com")
    assert kept.vouched.refresh_token in authority.refresh_tokens


async def test_an_identity_provider_at_which_a_login_can_be_stolen_is_refused(authority: Authority, signed: SignIn) -> None:
    issuer = authority.vouch(ADA, code_challenge_methods_supported=["plain"])

    with pytest.raises(LoginError, match="PKCE"):
        await signed(**login_at(issuer))

    assert not authority.asked("/identity/authorize")
    assert (await signed(**login_at(issuer, given=ADA))).token is not None  # nobody signs in there then


@pytest.mark.parametrize("given", [{"id_token": LATER}, {"id_token": LATER, "refresh_token": None}])
async def test_an_id_token_that_ran_out_is_renewed(authority: Authority, signed: SignIn, given: dict[str, Any]) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    kept = await signed(**login)
    authority.id_tokens = {LATER}
    authority.given = given

    again = await obtain("shop", UpstreamSettings(url=authority.url, login=Login(**login)), "", before=kept)

    assert kept.vouched is not None
    assert again.vouched is not None
    assert again.vouched.id_token == LATER
    assert (again.vouched.refresh_token == kept.vouched.refresh_token) is ("refresh_token" in given)
    assert [asked["grant_type"] for asked in authority.asked("/identity/token")][-3:-1] == [
        "urn:ietf:params:oauth:grant-type:token-exchange",
        "refresh_token",
    ]


async def test_whoever_is_not_vouched_for_shows_the_upstream_nothing(authority: Authority, signed: SignIn) -> None:
    with pytest.raises(LoginError, match="invalid_grant: The id token is not good"):
        await signed(**login_at(authority.vouch(), given=ADA))
    with pytest.raises(LoginError, match="does not say who signed in"):
        await signed(**login_at(authority.vouch()))
    authority.exchanged = {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
    with pytest.raises(LoginError, match="something else than the assertion"):
        await signed(**login_at(authority.vouch(ADA), given=ADA))
    settings = UpstreamSettings(url=authority.url, login=Login(**login_at(authority.vouch(ADA))))
    with pytest.raises(LoginError, match="Nobody is signed in at"):
        await obtain("shop", settings, "", before=None)

    assert not authority.asked("/token")


async def test_an_identity_provider_that_is_out_of_order_is_tried_again_later(authority: Authority, signed: SignIn) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    kept = await signed(**login)
    authority.statuses["/identity/token"] = 503

    with pytest.raises(LoginError) as caught:
        await obtain("shop", UpstreamSettings(url=authority.url, login=Login(**login)), "", before=kept)

    assert caught.value.passing
    assert len(authority.asked("/identity/token")) == 3


@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials"])
async def test_another_server_than_the_trusted_one_is_shown_nothing(authority: Authority, signed: SignIn, grant: str) -> None:
    client = {"grant": grant, "client_id": "us", "client_secret": "s"}

    with pytest.raises(LoginError, match=r"trusts 'https://ours\.example' alone"):
        await signed(issuer="https://ours.example", **client)
    assert not authority.asked("/token")
    assert not authority.asked("/authorize")

    assert (await signed(issuer=authority.origin, **client)).token is not None


def credentials_of(authority: Authority, folder: Path, login: dict[str, Any]) -> SignedIn:
    return SignedIn("shop", UpstreamSettings(url=authority.url, login=Login(**login)), folder)


async def lets_in_again(credentials: SignedIn) -> None:
    """See that a token that was refused is followed by another one."""
    first = credentials.ready()
    await credentials.renew(REFUSED)
    assert credentials.ready() != first


async def test_with_an_id_token_nobody_has_to_do_anything(authority: Authority, tmp_path: Path) -> None:
    credentials = credentials_of(authority, tmp_path, login_at(authority.vouch(ADA), given=ADA))
    await credentials.renew(authority.challenge)
    await lets_in_again(credentials)

    authority.id_tokens.clear()
    with pytest.raises(LinkError, match="invalid_grant"):
        await credentials.renew(REFUSED)


async def test_who_is_vouched_for_is_let_in_again_until_that_ends(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    credentials = credentials_of(authority, tmp_path, login)
    with pytest.raises(LinkError, match="toolyard login shop"):
        await credentials.renew(REFUSED)

    Vault(tmp_path, authority.url).write(await signed(**login))
    await credentials.renew("")
    await lets_in_again(credentials)

    authority.id_tokens.clear()
    authority.refresh_tokens.clear()
    with pytest.raises(LinkError, match="toolyard login shop"):
        await credentials.renew(REFUSED)


async def test_what_was_renewed_is_kept_though_the_rest_fails(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    vault = Vault(tmp_path, authority.url)
    vault.write(await signed(**login))
    credentials = credentials_of(authority, tmp_path, login)
    await credentials.renew("")
    authority.id_tokens, authority.given = {LATER}, {"id_token": LATER}
    authority.statuses["/token"] = 503

    with pytest.raises(LinkError) as caught:
        await credentials.renew(REFUSED)

    kept = vault.read()
    assert caught.value.trouble == "unavailable"
    assert kept is not None
    assert kept.vouched is not None
    assert kept.vouched.id_token == LATER
    assert kept.vouched.refresh_token in authority.refresh_tokens
    del authority.statuses["/token"]
    await lets_in_again(credentials)


async def test_more_than_was_granted_is_asked_for_once(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    Vault(tmp_path, authority.url).write(await signed(**login))
    credentials = credentials_of(authority, tmp_path, login)
    await credentials.renew("")

    await credentials.renew(MORE)
    assert authority.asked("/token")[-1]["scope"] == "read write"
    with pytest.raises(LinkError, match="toolyard login shop"):
        await credentials.renew(MORE)
    assert len(authority.asked("/token")) == 2


def test_an_identity_goes_with_its_grant_alone() -> None:
    identity = {"issuer": "https://idp.example", "client_id": "us"}
    for wrong in ({"grant": "identity_assertion"}, {"identity": identity}):
        with pytest.raises(msgspec.ValidationError, match="goes with a table 'identity'"):
            msgspec.convert(wrong, Login)


def test_nothing_that_is_secret_is_shown() -> None:
    kept = Kept(url="u", vouched=Vouched(id_token="secret", refresh_token="secret"))  # noqa: S106 - the word

    assert "secret" not in f"{kept} {Identity(issuer='i', client_id='c', client_secret='secret', id_token='secret')}"  # noqa: S106 - the word
