"""Signing in gives a token, and gives nothing away on the way."""

import asyncio
import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import pytest
from authority import Authority, SignIn, browse, id_token, query_of
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.oauth.credentials import SignedIn
from toolyard.providers.upstream.oauth.metadata import IdentityAssertion, LoginError, StoredLogin, Token
from toolyard.providers.upstream.oauth.signin import obtain, refresh, revoke, sign_in
from toolyard.providers.upstream.oauth.vault import Vault
from toolyard.providers.upstream.settings import Identity, Login, UpstreamSettings


def pem(key: Any) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


async def test_a_person_signs_in_with_proof_state_and_resource(authority: Authority, signed: SignIn) -> None:
    authority.given = {"id_token": id_token({"sub": "7", "email": "ada@example.com"})}

    kept = await signed()

    asked = authority.asked("/authorize")[0]
    assert asked["code_challenge_method"] == "S256"
    assert asked["resource"] == authority.asked("/token")[0]["resource"] == authority.url
    assert asked["redirect_uri"].startswith("http://127.0.0.1:")
    wish: Any = authority.asked("/register")[0]
    assert wish["redirect_uris"] == [asked["redirect_uri"]]
    assert kept.who == "ada@example.com"
    assert kept.token is not None
    assert (kept.token.scope, kept.token.is_over) == ("read", False)


@pytest.mark.parametrize("said", ["nonsense", "a.b.c", id_token([]), id_token({"sub": 5}), 7])
async def test_an_id_token_that_says_nothing_is_no_matter(authority: Authority, signed: SignIn, said: object) -> None:
    authority.given = {"id_token": said}

    assert (await signed()).who == ""


async def test_a_registration_is_used_again_on_the_same_port(authority: Authority, signed: SignIn) -> None:
    kept = await signed()
    again = await signed(kept)

    assert len(authority.asked("/register")) == 1
    assert again.client == kept.client


async def test_a_registration_that_ran_out_or_is_of_another_server_is_not_shown(authority: Authority, signed: SignIn) -> None:
    authority.publish(token_endpoint_auth_methods_supported=["client_secret_post"])
    authority.registered = {"client_secret": "s", "client_secret_expires_at": 5}
    await signed(await signed())
    assert len(authority.asked("/register")) == 2

    authority.registered = {"client_secret": "s"}
    kept = await signed()
    other = f"{authority.origin}/other"
    authority.papers["/.well-known/oauth-protected-resource/mcp"]["authorization_servers"] = [other]
    authority.papers["/.well-known/oauth-authorization-server/other"] = authority.server_paper(issuer=other)
    authority.registered = {}
    moved = await signed(kept)

    assert moved.client is not None
    assert moved.client.issuer == other
    assert authority.asked("/authorize")[-1]["client_id"] == moved.client.client_id == "client-4"


@pytest.mark.parametrize(
    ("methods", "shown"),
    [
        (["client_secret_basic"], {"basic_id": "me:1", "basic_secret": "s/ö"}),
        (["client_secret_post"], {"client_id": "me:1", "client_secret": "s/ö"}),
        (None, {"basic_id": "me:1", "basic_secret": "s/ö"}),
    ],
)
async def test_a_client_of_the_settings_shows_its_secret_as_the_server_wants_it(
    authority: Authority, signed: SignIn, methods: list[str] | None, shown: dict[str, str]
) -> None:
    authority.publish(token_endpoint_auth_methods_supported=methods)

    kept = await signed(client_id="me:1", client_secret="s/ö")  # noqa: S106 - no secret

    assert not authority.asked("/register")
    assert shown.items() <= authority.asked("/token")[0].items()
    assert "s/ö" not in str(kept.client and kept.client.client_secret)

    login = Login(client_id="me:1", client_secret="s/ö")  # noqa: S106 - no secret
    await refresh("shop", kept, login)
    assert shown.items() <= authority.asked("/token")[1].items()


async def test_a_document_stands_for_us_where_that_is_understood(authority: Authority, signed: SignIn) -> None:
    document = "https://me.example/client.json"
    await signed(client_metadata_url=document)
    assert authority.asked("/authorize")[-1]["client_id"] == "client-1"

    authority.publish(client_id_metadata_document_supported=True)
    await signed(client_metadata_url=document)
    assert authority.asked("/authorize")[-1]["client_id"] == document


async def test_scopes_of_the_settings_come_first_and_staying_signed_in_is_asked_for_where_it_can_be(
    authority: Authority, signed: SignIn
) -> None:
    authority.publish(scopes_supported=["offline_access"])

    await signed(scopes=("write",))

    assert authority.asked("/authorize")[0]["scope"] == "write offline_access"


async def test_more_is_asked_for_if_more_was_wanted(authority: Authority, signed: SignIn) -> None:
    kept = StoredLogin(
        url=authority.url,
        token=Token(access_token="a", scope="one two"),  # noqa: S106 - no secret
        challenge='Bearer error="insufficient_scope", scope="three two"',
    )

    await signed(kept)

    assert authority.asked("/authorize")[0]["scope"] == "one two read three"


@pytest.mark.parametrize(
    ("paper", "why"),
    [
        ({"code_challenge_methods_supported": None}, "does not know PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, "does not know PKCE"),
        ({"authorization_endpoint": None}, "has no page to sign in on"),
        ({"authorization_endpoint": "http://evil.example/authorize"}, "not safe"),
        ({"authorization_endpoint": "file:///bin/sh"}, "not safe"),
        ({"registration_endpoint": None}, "registers no clients"),
        ({"registration_endpoint": "http://evil.example/register"}, "not safe"),
        ({"registration_endpoint": "{origin}/nowhere"}, "did not register us, but answered with status 404"),
        ({"token_endpoint": "http://evil.example/token"}, "not safe"),
        ({"token_endpoint": "{origin}/nowhere"}, "without a token|gave no token"),
    ],
)
async def test_a_server_that_cannot_be_signed_in_at_safely_is_refused(
    authority: Authority, signed: SignIn, paper: dict[str, Any], why: str
) -> None:
    filled = {name: value.replace("{origin}", authority.origin) if isinstance(value, str) else value for name, value in paper.items()}
    authority.publish(**filled)

    with pytest.raises(LoginError, match=why):
        await signed()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"client_id": 5}, "by which id"),
        ({"token_endpoint_auth_method": "tls_client_auth"}, "not known here"),
        ({"token_endpoint_auth_method": "client_secret_post"}, "not known here"),
    ],
)
async def test_a_registration_that_is_no_use_is_refused(authority: Authority, signed: SignIn, answer: dict[str, Any], why: str) -> None:
    authority.registered = answer

    with pytest.raises(LoginError, match=why):
        await signed()


async def test_what_a_server_says_against_a_registration_is_told(authority: Authority, signed: SignIn) -> None:
    authority.papers["/no"] = {"error": "x", "error_description": "Not you."}
    authority.statuses["/none"] = 400
    authority.publish(registration_endpoint=f"{authority.origin}/none")
    with pytest.raises(LoginError, match="status 400"):
        await signed()

    authority.papers["/page"] = b"<html>"
    authority.publish(registration_endpoint=f"{authority.origin}/page")
    with pytest.raises(LoginError, match="status 200"):
        await signed()


@pytest.mark.parametrize(
    ("paper", "brought", "why"),
    [
        ({}, {"iss": "https://evil.example"}, "and did not"),
        ({}, {"iss": "{origin}/"}, "and did not"),
        ({"authorization_response_iss_parameter_supported": True}, {}, "and did not"),
        ({}, {"error": "access_denied", "code": ""}, r"access_denied\)"),
        ({}, {"error": "access_denied", "error_description": "Not today."}, "access_denied: Not today"),
        ({}, {"error": "access_denied", "iss": "https://evil.example"}, "and did not"),
        ({}, {"code": ""}, "without a code"),
    ],
)
async def test_a_browser_that_comes_back_from_somewhere_else_or_with_nothing_ends_the_login(
    authority: Authority, signed: SignIn, paper: dict[str, Any], brought: dict[str, str], why: str
) -> None:
    authority.publish(**paper)
    authority.redirected = {name: value.replace("{origin}", authority.origin) for name, value in brought.items()}

    with pytest.raises(LoginError, match=why):
        await signed()

    assert not authority.asked("/token")


async def test_the_issuer_may_be_named_where_the_browser_comes_back(authority: Authority, signed: SignIn) -> None:
    authority.publish(authorization_response_iss_parameter_supported=True)
    authority.redirected = {"iss": authority.origin}

    assert (await signed()).token is not None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"access_token": None}, "without a token"),
        ({"access_token": "a\nb"}, "without a token"),
        ({"expires_in": "soon"}, "gave no token"),
        ({"token_type": "mac"}, "of the kind 'mac'"),
        ({"error": "invalid_client", "error_description": "Who?"}, "invalid_client: Who"),
    ],
)
async def test_an_answer_without_a_token_of_use_is_refused(authority: Authority, signed: SignIn, given: dict[str, Any], why: str) -> None:
    authority.given = given

    with pytest.raises(LoginError, match=why):
        await signed()


@pytest.mark.parametrize(("without_mcp_headers", "ends"), [("60", True), (60, True), (None, False)])
async def test_a_token_runs_out_when_it_says_so(authority: Authority, signed: SignIn, without_mcp_headers: object, ends: bool) -> None:  # noqa: FBT001 - a row
    authority.given = {"expires_in": without_mcp_headers, "scope": None, "refresh_token": None}

    token = (await signed()).token

    assert token is not None
    assert (token.expires is not None, token.scope, token.refresh_token) == (ends, "read", None)


def fetched(address: str) -> int:
    """Return the status of a page."""
    try:
        with urlopen(address, timeout=10) as response:  # noqa: S310 - our own server
            return response.status
    except HTTPError as error:
        return error.code


async def test_whoever_brings_another_state_is_sent_away_and_the_wait_goes_on(authority: Authority) -> None:
    shown: asyncio.Queue[str] = asyncio.Queue()
    settings = UpstreamSettings(url=authority.url)
    login = asyncio.create_task(sign_in("shop", settings, None, show=shown.put_nowait, seconds=10))
    address = await shown.get()
    asked = query_of(address)
    back, state = asked["redirect_uri"], asked["state"]

    for wrong in (
        f"{back}?code=stolen&state=other",
        f"{back}?code=stolen",
        f"{back}?code=a&code=b&state={state}",
        f"{back.replace('callback', 'other')}?code=stolen&state={state}",
    ):
        assert await asyncio.to_thread(fetched, wrong) == 400
    port = int(back.rpartition(":")[2].partition("/")[0])
    for junk in (b"", b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(junk)
        writer.write_eof()
        with suppress(ConnectionResetError):  # of what was not read any more
            assert await reader.read() == b""
        writer.close()
    thread = browse(address)

    assert (await login).token is not None
    thread.join()
    assert authority.asked("/token")[0]["code"] != "stolen"


async def test_nobody_is_waited_for_for_ever(authority: Authority) -> None:
    with pytest.raises(LoginError, match=r"within 0\.01 seconds"):
        await sign_in("shop", UpstreamSettings(url=authority.url), None, show=lambda _: None, seconds=0.01)


async def test_a_port_that_is_taken_is_told(authority: Authority, signed: SignIn) -> None:
    port = int(authority.origin.rpartition(":")[2])

    with pytest.raises(LoginError, match=f"The port {port}"):
        await signed(redirect_port=port)


async def test_a_client_signs_in_without_a_person(authority: Authority, signed: SignIn) -> None:
    kept = await signed(grant="client_credentials", client_id="me", client_secret="s")  # noqa: S106 - no secret

    asked = authority.asked("/token")[0]
    assert (asked["grant_type"], asked["scope"], asked["resource"]) == ("client_credentials", "read", authority.url)
    assert kept.token is not None


async def test_a_client_proves_with_its_key_who_it_is(authority: Authority, signed: SignIn) -> None:
    await signed(grant="client_credentials", client_id="me", private_key=pem(ec.generate_private_key(ec.SECP256R1())))

    assertion = authority.asked("/token")[0]["client_assertion"]
    claims = json.loads(base64.urlsafe_b64decode(assertion.split(".")[1] + "==="))
    assert (claims["aud"], claims["iss"], claims["sub"]) == (authority.origin, "me", "me")


async def test_a_key_of_rsa_signs_in_its_own_way(authority: Authority, signed: SignIn) -> None:
    kept = await signed(grant="client_credentials", client_id="me", private_key=pem(rsa.generate_private_key(65537, 2048)))

    head = authority.asked("/token")[0]["client_assertion"].split(".")[0]
    assert json.loads(base64.urlsafe_b64decode(head + "==="))["alg"] == "RS256"
    assert kept.client is not None
    assert kept.client.method == "private_key_jwt"


async def test_a_client_without_an_id_or_with_nonsense_for_a_key_cannot_sign_in(signed: SignIn) -> None:
    with pytest.raises(LoginError, match="needs a 'client_id'"):
        await signed(grant="client_credentials")
    with pytest.raises(LoginError, match="no key that is known"):
        await signed(grant="client_credentials", client_id="me", private_key="nonsense")


async def test_a_token_is_renewed_and_keeps_what_the_server_does_not_say(authority: Authority, signed: SignIn) -> None:
    kept = await signed()
    authority.given = {"refresh_token": None, "scope": None}

    fresh = await refresh("shop", kept, Login())

    assert kept.token is not None
    assert fresh.token is not None
    assert fresh.token.access_token != kept.token.access_token
    assert (fresh.token.refresh_token, fresh.token.scope) == (kept.token.refresh_token, kept.token.scope)
    with pytest.raises(LoginError, match="cannot be renewed"):
        await refresh("shop", StoredLogin(url=authority.url), Login())


async def test_a_login_is_revoked_where_that_can_be(authority: Authority, signed: SignIn) -> None:
    kept = await signed()

    assert await revoke("shop", kept, Login())
    assert kept.token is not None
    assert authority.asked("/revoke")[0]["token"] == kept.token.refresh_token
    assert not await revoke("shop", StoredLogin(url=authority.url), Login())

    authority.statuses["/revoke"] = 400
    with pytest.raises(LoginError, match="did not revoke"):
        await revoke("shop", kept, Login())


async def test_a_server_that_is_gone_gives_no_token_for_now(authority: Authority, signed: SignIn) -> None:
    authority.publish(token_endpoint="http://127.0.0.1:9/token")  # noqa: S106 - an address

    with pytest.raises(LoginError, match="cannot be asked") as caught:
        await signed()

    assert caught.value.passing


async def test_an_upstream_of_the_legacy_kind_is_asked_as_it_is_used(authority: Authority) -> None:
    settings = UpstreamSettings(url=authority.url, transport="sse", headers={"X-Api": "1"})

    with pytest.raises(LoginError, match="Nobody"):
        await sign_in("shop", settings, None, show=lambda _: None, seconds=0.01)

    assert authority.seen[0][0] == "GET /mcp"


def test_nothing_that_is_secret_is_shown() -> None:
    assert "secret" not in repr(StoredLogin(url="u", token=Token(access_token="secret", refresh_token="secret")))  # noqa: S106 - the word


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
    assert caught.value.kind == "unavailable"
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


def test_nothing_that_is_secret_is_shown_in_vouching() -> None:
    kept = StoredLogin(url="u", vouched=IdentityAssertion(id_token="secret", refresh_token="secret"))  # noqa: S106 - the word

    assert "secret" not in f"{kept} {Identity(issuer='i', client_id='c', client_secret='secret', id_token='secret')}"  # noqa: S106 - the word
