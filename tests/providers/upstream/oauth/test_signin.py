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

from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.oauth.credentials import OAuthCredentials
from callyard.providers.upstream.oauth.signin import obtain, refresh, revoke, sign_in
from callyard.providers.upstream.oauth.vault import IdentityAssertion, LoginError, StoredLogin, Token, Vault
from callyard.providers.upstream.settings import Identity, Login, UpstreamSettings


def pem(key: Any) -> str:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()


async def test_a_person_signs_in_with_pkce_state_and_resource(authority: Authority, log_in: SignIn) -> None:
    authority.given = {"id_token": id_token({"sub": "7", "email": "ada@example.com"})}

    stored = await log_in()

    asked = authority.asked("/authorize")[0]
    assert asked["code_challenge_method"] == "S256"
    assert asked["resource"] == authority.asked("/token")[0]["resource"] == authority.url
    assert asked["redirect_uri"].startswith("http://127.0.0.1:")
    registered: Any = authority.asked("/register")[0]
    assert registered["redirect_uris"] == [asked["redirect_uri"]]
    assert stored.user == "ada@example.com"
    assert stored.token is not None
    assert (stored.token.scope, stored.token.is_expired) == ("read", False)


@pytest.mark.parametrize("said", ["nonsense", "a.b.c", id_token([]), id_token({"sub": 5}), 7])
async def test_an_unreadable_id_token_is_ignored(authority: Authority, log_in: SignIn, said: object) -> None:
    authority.given = {"id_token": said}

    assert (await log_in()).user == ""


async def test_a_registration_is_used_again_on_the_same_port(authority: Authority, log_in: SignIn) -> None:
    stored = await log_in()
    again = await log_in(stored)

    assert len(authority.asked("/register")) == 1
    assert again.client == stored.client


async def test_a_registration_that_expired_or_belongs_to_another_server_is_not_used(
    authority: Authority, log_in: SignIn
) -> None:
    authority.publish(token_endpoint_auth_methods_supported=["client_secret_post"])
    authority.registered = {"client_secret": "s", "client_secret_expires_at": 5}
    await log_in(await log_in())
    assert len(authority.asked("/register")) == 2

    authority.registered = {"client_secret": "s"}
    stored = await log_in()
    other = f"{authority.origin}/other"
    authority.metadata["/.well-known/oauth-protected-resource/mcp"]["authorization_servers"] = [other]
    authority.metadata["/.well-known/oauth-authorization-server/other"] = authority.server_metadata(issuer=other)
    authority.registered = {}
    moved = await log_in(stored)

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
async def test_a_configured_client_authenticates_as_the_server_supports(
    authority: Authority, log_in: SignIn, methods: list[str] | None, shown: dict[str, str]
) -> None:
    authority.publish(token_endpoint_auth_methods_supported=methods)

    stored = await log_in(client_id="me:1", client_secret="s/ö")  # noqa: S106 - no secret

    assert not authority.asked("/register")
    assert shown.items() <= authority.asked("/token")[0].items()
    assert "s/ö" not in str(stored.client and stored.client.client_secret)

    login = Login(client_id="me:1", client_secret="s/ö")  # noqa: S106 - no secret
    await refresh("shop", stored, login)
    assert shown.items() <= authority.asked("/token")[1].items()


async def test_a_client_metadata_document_is_used_where_supported(authority: Authority, log_in: SignIn) -> None:
    document = "https://me.example/client.json"
    await log_in(client_metadata_url=document)
    assert authority.asked("/authorize")[-1]["client_id"] == "client-1"

    authority.publish(client_id_metadata_document_supported=True)
    await log_in(client_metadata_url=document)
    assert authority.asked("/authorize")[-1]["client_id"] == document


async def test_configured_scopes_come_first_and_offline_access_is_requested_where_supported(
    authority: Authority, log_in: SignIn
) -> None:
    authority.publish(scopes_supported=["offline_access"])

    await log_in(scopes=("write",))

    assert authority.asked("/authorize")[0]["scope"] == "write offline_access"


async def test_a_scope_that_was_missing_is_requested(authority: Authority, log_in: SignIn) -> None:
    stored = StoredLogin(
        url=authority.url,
        token=Token(access_token="a", scope="one two"),  # noqa: S106 - no secret
        challenge='Bearer error="insufficient_scope", scope="three two"',
    )

    await log_in(stored)

    assert authority.asked("/authorize")[0]["scope"] == "one two read three"


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"code_challenge_methods_supported": None}, "does not support PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, "does not support PKCE"),
        ({"authorization_endpoint": None}, "has no page to sign in on"),
        ({"authorization_endpoint": "http://evil.example/authorize"}, "not safe"),
        ({"authorization_endpoint": "file:///bin/sh"}, "not safe"),
        ({"registration_endpoint": None}, "does not register clients"),
        ({"registration_endpoint": "http://evil.example/register"}, "not safe"),
        ({"registration_endpoint": "{origin}/nowhere"}, "did not register us: status 404"),
        ({"token_endpoint": "http://evil.example/token"}, "not safe"),
        ({"token_endpoint": "{origin}/nowhere"}, "without a token|issued no token"),
    ],
)
async def test_an_unsafe_authorization_server_is_refused(
    authority: Authority, log_in: SignIn, metadata: dict[str, Any], why: str
) -> None:
    filled = {
        name: value.replace("{origin}", authority.origin) if isinstance(value, str) else value
        for name, value in metadata.items()
    }
    authority.publish(**filled)

    with pytest.raises(LoginError, match=why):
        await log_in()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"client_id": 5}, "without a client id"),
        ({"token_endpoint_auth_method": "tls_client_auth"}, "unsupported authentication method"),
        ({"token_endpoint_auth_method": "client_secret_post"}, "unsupported authentication method"),
    ],
)
async def test_an_unusable_registration_is_refused(
    authority: Authority, log_in: SignIn, answer: dict[str, Any], why: str
) -> None:
    authority.registered = answer

    with pytest.raises(LoginError, match=why):
        await log_in()


async def test_a_refused_registration_reports_its_status(authority: Authority, log_in: SignIn) -> None:
    authority.metadata["/no"] = {"error": "x", "error_description": "Not you."}
    authority.statuses["/none"] = 400
    authority.publish(registration_endpoint=f"{authority.origin}/none")
    with pytest.raises(LoginError, match="status 400"):
        await log_in()

    authority.metadata["/page"] = b"<html>"
    authority.publish(registration_endpoint=f"{authority.origin}/page")
    with pytest.raises(LoginError, match="status 200"):
        await log_in()


@pytest.mark.parametrize(
    ("metadata", "brought", "why"),
    [
        ({}, {"iss": "https://evil.example"}, "did not come back"),
        ({}, {"iss": "{origin}/"}, "did not come back"),
        ({"authorization_response_iss_parameter_supported": True}, {}, "did not come back"),
        ({}, {"error": "access_denied", "code": ""}, r"access_denied\)"),
        ({}, {"error": "access_denied", "error_description": "Not today."}, "access_denied: Not today"),
        ({}, {"error": "access_denied", "iss": "https://evil.example"}, "did not come back"),
        ({}, {"code": ""}, "without a code"),
    ],
)
async def test_a_redirect_from_another_issuer_or_without_a_code_ends_the_login(
    authority: Authority, log_in: SignIn, metadata: dict[str, Any], brought: dict[str, str], why: str
) -> None:
    authority.publish(**metadata)
    authority.redirected = {name: value.replace("{origin}", authority.origin) for name, value in brought.items()}

    with pytest.raises(LoginError, match=why):
        await log_in()

    assert not authority.asked("/token")


async def test_a_redirect_may_name_the_issuer(authority: Authority, log_in: SignIn) -> None:
    authority.publish(authorization_response_iss_parameter_supported=True)
    authority.redirected = {"iss": authority.origin}

    assert (await log_in()).token is not None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"access_token": None}, "without a token"),
        ({"access_token": "a\nb"}, "without a token"),
        ({"expires_in": "soon"}, "issued no token"),
        ({"token_type": "mac"}, "unsupported type 'mac'"),
        ({"error": "invalid_client", "error_description": "Who?"}, "invalid_client: Who"),
    ],
)
async def test_a_response_without_a_usable_token_is_refused(
    authority: Authority, log_in: SignIn, given: dict[str, Any], why: str
) -> None:
    authority.given = given

    with pytest.raises(LoginError, match=why):
        await log_in()


@pytest.mark.parametrize(("lifetime", "ends"), [("60", True), (60, True), (None, False)])
async def test_a_token_expires_after_its_lifetime(
    authority: Authority,
    log_in: SignIn,
    lifetime: object,
    ends: bool,  # noqa: FBT001 - a row
) -> None:
    authority.given = {"expires_in": lifetime, "scope": None, "refresh_token": None}

    token = (await log_in()).token

    assert token is not None
    assert (token.expires is not None, token.scope, token.refresh_token) == (ends, "read", None)


def fetched(address: str) -> int:
    """Return the status of a page."""
    try:
        with urlopen(address, timeout=60) as response:  # noqa: S310 - our own server
            return response.status
    except HTTPError as error:
        return error.code


async def test_a_redirect_with_another_state_is_refused_and_the_wait_goes_on(authority: Authority) -> None:
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


async def test_a_connection_that_a_browser_opened_ahead_ends_with_the_login(authority: Authority) -> None:
    shown: asyncio.Queue[str] = asyncio.Queue()
    others = asyncio.all_tasks()
    login = asyncio.create_task(
        sign_in("shop", UpstreamSettings(url=authority.url), None, show=shown.put_nowait, seconds=60)
    )
    address = await shown.get()
    port = int(query_of(address)["redirect_uri"].rpartition(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    thread = browse(address)
    await login
    left = asyncio.all_tasks() - others
    thread.join()

    assert await reader.read() == b""
    assert not left
    writer.close()


async def test_the_wait_for_a_person_times_out(authority: Authority) -> None:
    with pytest.raises(LoginError, match=r"within 0\.01 seconds"):
        await sign_in("shop", UpstreamSettings(url=authority.url), None, show=lambda _: None, seconds=0.01)


async def test_a_redirect_port_in_use_is_reported(authority: Authority, log_in: SignIn) -> None:
    port = int(authority.origin.rpartition(":")[2])

    with pytest.raises(LoginError, match=f"The port {port}"):
        await log_in(redirect_port=port)


async def test_a_client_signs_in_without_a_person(authority: Authority, log_in: SignIn) -> None:
    stored = await log_in(grant="client_credentials", client_id="me", client_secret="s")  # noqa: S106 - no secret

    asked = authority.asked("/token")[0]
    assert (asked["grant_type"], asked["scope"], asked["resource"]) == ("client_credentials", "read", authority.url)
    assert stored.token is not None


async def test_a_client_authenticates_with_its_private_key(authority: Authority, log_in: SignIn) -> None:
    await log_in(grant="client_credentials", client_id="me", private_key=pem(ec.generate_private_key(ec.SECP256R1())))

    assertion = authority.asked("/token")[0]["client_assertion"]
    claims = json.loads(base64.urlsafe_b64decode(assertion.split(".")[1] + "==="))
    assert (claims["aud"], claims["iss"], claims["sub"]) == (authority.origin, "me", "me")


async def test_an_rsa_key_signs_with_its_own_algorithm(authority: Authority, log_in: SignIn) -> None:
    stored = await log_in(
        grant="client_credentials", client_id="me", private_key=pem(rsa.generate_private_key(65537, 2048))
    )

    head = authority.asked("/token")[0]["client_assertion"].split(".")[0]
    assert json.loads(base64.urlsafe_b64decode(head + "==="))["alg"] == "RS256"
    assert stored.client is not None
    assert stored.client.method == "private_key_jwt"


async def test_a_client_without_an_id_or_with_an_invalid_key_cannot_sign_in(log_in: SignIn) -> None:
    with pytest.raises(LoginError, match="needs a 'client_id'"):
        await log_in(grant="client_credentials")
    with pytest.raises(LoginError, match="not an RSA or EC key"):
        await log_in(grant="client_credentials", client_id="me", private_key="nonsense")


async def test_a_renewed_token_keeps_what_the_server_omits(authority: Authority, log_in: SignIn) -> None:
    stored = await log_in()
    authority.given = {"refresh_token": None, "scope": None}

    fresh = await refresh("shop", stored, Login())

    assert stored.token is not None
    assert fresh.token is not None
    assert fresh.token.access_token != stored.token.access_token
    assert (fresh.token.refresh_token, fresh.token.scope) == (stored.token.refresh_token, stored.token.scope)
    with pytest.raises(LoginError, match="cannot be renewed"):
        await refresh("shop", StoredLogin(url=authority.url), Login())


async def test_a_login_is_revoked_where_supported(authority: Authority, log_in: SignIn) -> None:
    stored = await log_in()

    assert await revoke("shop", stored, Login())
    assert stored.token is not None
    assert authority.asked("/revoke")[0]["token"] == stored.token.refresh_token
    assert not await revoke("shop", StoredLogin(url=authority.url), Login())

    authority.statuses["/revoke"] = 400
    with pytest.raises(LoginError, match="did not revoke"):
        await revoke("shop", stored, Login())


async def test_an_unreachable_token_endpoint_is_a_transient_error(authority: Authority, log_in: SignIn) -> None:
    authority.publish(token_endpoint="http://127.0.0.1:9/token")  # noqa: S106 - an address

    with pytest.raises(LoginError, match="cannot be reached") as caught:
        await log_in()

    assert caught.value.is_transient


async def test_an_sse_upstream_is_asked_for_its_challenge_with_get(authority: Authority) -> None:
    settings = UpstreamSettings(url=authority.url, transport="sse", headers={"X-Api": "1"})

    with pytest.raises(LoginError, match="Nobody"):
        await sign_in("shop", settings, None, show=lambda _: None, seconds=0.01)

    assert authority.seen[0][0] == "GET /mcp"


def test_secrets_are_not_in_the_repr() -> None:
    assert "secret" not in repr(StoredLogin(url="u", token=Token(access_token="secret", refresh_token="secret")))  # noqa: S106 - the word


ADA = id_token({"email": "ada@example.com"})
LATER = id_token({"email": "ada@example.com", "later": True})
REFUSED = 'Bearer error="invalid_token"'
MORE = 'Bearer error="insufficient_scope", scope="write"'


def login_at(issuer: str, *, given: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the settings of a login that an identity provider vouches for."""
    identity = Identity(issuer=issuer, client_id="us-there", id_token=given)
    return {"grant": "identity_assertion", "client_id": "us", "client_secret": "s", "identity": identity, **more}


async def test_an_id_token_is_exchanged_for_a_grant_and_that_for_a_token(authority: Authority, log_in: SignIn) -> None:
    stored = await log_in(**login_at(authority.vouch(ADA), given=ADA))

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
    assert stored.user == "ada@example.com"
    assert stored.token is not None
    assert stored.token.access_token in authority.tokens
    assert not authority.asked("/identity/authorize")


@pytest.mark.parametrize(("supported", "scope"), [(None, "openid"), (["offline_access"], "openid offline_access")])
async def test_without_an_id_token_a_person_signs_in_at_the_identity_provider(
    authority: Authority, log_in: SignIn, supported: list[str] | None, scope: str
) -> None:
    authority.given = {"id_token": ADA}

    stored = await log_in(**login_at(authority.vouch(ADA, scopes_supported=supported)))

    [page] = authority.asked("/identity/authorize")
    assert (page["client_id"], page["scope"], page["code_challenge_method"]) == ("us-there", scope, "S256")
    assert "resource" not in page
    assert not authority.asked("/authorize")
    assert stored.identity_assertion is not None
    assert (stored.identity_assertion.id_token, stored.user) == (ADA, "ada@example.com")
    assert stored.identity_assertion.refresh_token in authority.refresh_tokens


async def test_an_identity_provider_without_pkce_is_refused(authority: Authority, log_in: SignIn) -> None:
    issuer = authority.vouch(ADA, code_challenge_methods_supported=["plain"])

    with pytest.raises(LoginError, match="PKCE"):
        await log_in(**login_at(issuer))

    assert not authority.asked("/identity/authorize")
    assert (await log_in(**login_at(issuer, given=ADA))).token is not None  # nobody signs in there then


@pytest.mark.parametrize("given", [{"id_token": LATER}, {"id_token": LATER, "refresh_token": None}])
async def test_an_expired_id_token_is_renewed(authority: Authority, log_in: SignIn, given: dict[str, Any]) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    stored = await log_in(**login)
    authority.id_tokens = {LATER}
    authority.given = given

    again = await obtain("shop", UpstreamSettings(url=authority.url, login=Login(**login)), "", stored=stored)

    assert stored.identity_assertion is not None
    assert again.identity_assertion is not None
    assert again.identity_assertion.id_token == LATER
    assert (again.identity_assertion.refresh_token == stored.identity_assertion.refresh_token) is (
        "refresh_token" in given
    )
    assert [asked["grant_type"] for asked in authority.asked("/identity/token")][-3:-1] == [
        "urn:ietf:params:oauth:grant-type:token-exchange",
        "refresh_token",
    ]


async def test_without_an_identity_assertion_the_upstream_gets_no_request(authority: Authority, log_in: SignIn) -> None:
    with pytest.raises(LoginError, match="invalid_grant: The id token is not good"):
        await log_in(**login_at(authority.vouch(), given=ADA))
    with pytest.raises(LoginError, match="does not say who signed in"):
        await log_in(**login_at(authority.vouch()))
    authority.exchanged = {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
    with pytest.raises(LoginError, match="did not issue the identity assertion grant"):
        await log_in(**login_at(authority.vouch(ADA), given=ADA))
    settings = UpstreamSettings(url=authority.url, login=Login(**login_at(authority.vouch(ADA))))
    with pytest.raises(LoginError, match="Nobody is signed in at"):
        await obtain("shop", settings, "", stored=None)

    assert not authority.asked("/token")


async def test_a_failing_identity_provider_is_a_transient_error(authority: Authority, log_in: SignIn) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    stored = await log_in(**login)
    authority.statuses["/identity/token"] = 503

    with pytest.raises(LoginError) as caught:
        await obtain("shop", UpstreamSettings(url=authority.url, login=Login(**login)), "", stored=stored)

    assert caught.value.is_transient
    assert len(authority.asked("/identity/token")) == 3


def move(authority: Authority) -> str:
    """Have the upstream name another authorization server, and return that."""
    other = f"{authority.origin}/other"
    authority.metadata["/.well-known/oauth-protected-resource/mcp"]["authorization_servers"] = [other]
    authority.metadata["/.well-known/oauth-authorization-server/other"] = authority.server_metadata(issuer=other)
    return other


@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials"])
async def test_only_the_first_authorization_server_gets_the_configured_secret(
    authority: Authority, log_in: SignIn, grant: str
) -> None:
    client = {"grant": grant, "client_id": "us", "client_secret": "s"}
    stored = await log_in(**client)
    asked = len(authority.asked("/token"))
    other = move(authority)

    with pytest.raises(LoginError, match="callyard logout shop"):
        await log_in(stored, **client)
    assert len(authority.asked("/token")) == asked

    assert (await log_in(stored, issuer=other, **client)).token is not None
    assert (await log_in(None, **client)).issuer == other  # somebody signed out before


async def test_the_first_authorization_server_is_pinned_before_it_gets_the_secret(authority: Authority) -> None:
    saved: list[StoredLogin] = []

    async def save(login: StoredLogin) -> None:
        assert not authority.asked("/token")
        saved.append(login)

    login = Login(grant="client_credentials", client_id="us", client_secret="s")  # noqa: S106 - no secret
    settings = UpstreamSettings(url=authority.url, login=login)
    await obtain("shop", settings, "", stored=None, save=save)

    assert [one.issuer for one in saved] == [authority.origin]
    move(authority)
    with pytest.raises(LoginError, match="client_secret"):
        await obtain("shop", settings, "", stored=saved[0])


@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials"])
async def test_an_authorization_server_that_is_not_trusted_gets_nothing(
    authority: Authority, log_in: SignIn, grant: str
) -> None:
    client = {"grant": grant, "client_id": "us", "client_secret": "s"}

    with pytest.raises(LoginError, match=r"trusts 'https://ours\.example' alone"):
        await log_in(issuer="https://ours.example", **client)
    assert not authority.asked("/token")
    assert not authority.asked("/authorize")

    assert (await log_in(issuer=authority.origin, **client)).token is not None


def credentials_of(authority: Authority, folder: Path, login: dict[str, Any]) -> OAuthCredentials:
    settings = UpstreamSettings(url=authority.url, login=Login(**login))
    return OAuthCredentials("shop", settings, Vault(folder, authority.url))


async def lets_in_again(credentials: OAuthCredentials) -> None:
    """See that a token that was refused is followed by another one."""
    first = credentials.ready()
    await credentials.renew(REFUSED)
    assert credentials.ready() != first


async def test_a_configured_id_token_needs_no_person(authority: Authority, tmp_path: Path) -> None:
    credentials = credentials_of(authority, tmp_path, login_at(authority.vouch(ADA), given=ADA))
    await credentials.renew(authority.challenge)
    await lets_in_again(credentials)

    authority.id_tokens.clear()
    with pytest.raises(LinkError, match="invalid_grant"):
        await credentials.renew(REFUSED)


async def test_an_identity_assertion_renews_the_login_until_it_expires(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    credentials = credentials_of(authority, tmp_path, login)
    with pytest.raises(LinkError, match="callyard login shop"):
        await credentials.renew(REFUSED)

    Vault(tmp_path, authority.url).write(await log_in(**login))
    await credentials.renew("")
    await lets_in_again(credentials)

    authority.id_tokens.clear()
    authority.refresh_tokens.clear()
    with pytest.raises(LinkError, match="callyard login shop"):
        await credentials.renew(REFUSED)


async def test_a_renewed_identity_assertion_is_stored_even_if_the_rest_fails(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    vault = Vault(tmp_path, authority.url)
    vault.write(await log_in(**login))
    credentials = credentials_of(authority, tmp_path, login)
    await credentials.renew("")
    authority.id_tokens, authority.given = {LATER}, {"id_token": LATER}
    authority.statuses["/token"] = 503

    with pytest.raises(LinkError) as caught:
        await credentials.renew(REFUSED)

    stored = vault.read()
    assert caught.value.kind == "unavailable"
    assert stored is not None
    assert stored.identity_assertion is not None
    assert stored.identity_assertion.id_token == LATER
    assert stored.identity_assertion.refresh_token in authority.refresh_tokens
    del authority.statuses["/token"]
    await lets_in_again(credentials)


async def test_a_missing_scope_is_requested_once(authority: Authority, log_in: SignIn, tmp_path: Path) -> None:
    authority.given = {"id_token": ADA}
    login = login_at(authority.vouch(ADA))
    Vault(tmp_path, authority.url).write(await log_in(**login))
    credentials = credentials_of(authority, tmp_path, login)
    await credentials.renew("")

    await credentials.renew(MORE)
    assert authority.asked("/token")[-1]["scope"] == "read write"
    with pytest.raises(LinkError, match="callyard login shop"):
        await credentials.renew(MORE)
    assert len(authority.asked("/token")) == 2


def test_an_identity_goes_with_its_grant_alone() -> None:
    identity = {"issuer": "https://idp.example", "client_id": "us"}
    for wrong in ({"grant": "identity_assertion"}, {"identity": identity}):
        with pytest.raises(msgspec.ValidationError, match="goes with a table 'identity'"):
            msgspec.convert(wrong, Login)


def test_identity_tokens_are_not_in_the_repr() -> None:
    stored = StoredLogin(url="u", identity_assertion=IdentityAssertion(id_token="secret", refresh_token="secret"))  # noqa: S106 - the word

    assert "secret" not in f"{stored} {Identity(issuer='i', client_id='c', client_secret='secret', id_token='secret')}"  # noqa: S106 - the word
