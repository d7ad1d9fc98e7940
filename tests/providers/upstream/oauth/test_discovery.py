"""Where to sign in is found as the standards say, and nobody is believed who is not who they say."""

import gzip
from typing import Any

import pytest
from authority import Authority, SignIn

from toolyard.providers.upstream.oauth.http import OAuthHttp, is_local, open_http
from toolyard.providers.upstream.oauth.metadata import LoginError, parameter_of, wants_more

RESOURCE = "/.well-known/oauth-protected-resource"
SERVER = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"


def move(authority: Authority, issuer_path: str, place: str) -> None:
    """Publish the server's paper for an issuer with a path, in another place."""
    authority.papers[f"{RESOURCE}/mcp"] = {"resource": authority.url, "authorization_servers": [f"{authority.origin}{issuer_path}"]}
    del authority.papers[SERVER]
    authority.papers[place] = authority.server_paper(issuer=f"{authority.origin}{issuer_path}")


@pytest.mark.parametrize(
    ("challenge", "place"),
    [("", f"{RESOURCE}/mcp"), ("", RESOURCE), ('Bearer resource_metadata="{}/elsewhere"', "/elsewhere")],
)
async def test_what_an_upstream_says_of_itself_is_looked_for_in_three_places(
    authority: Authority, signed: SignIn, challenge: str, place: str
) -> None:
    authority.challenge = challenge.format(authority.origin)
    authority.papers[place] = authority.papers.pop(f"{RESOURCE}/mcp")

    kept = await signed()

    assert kept.token is not None
    assert kept.token.access_token in authority.tokens


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("", SERVER),
        ("", OPENID),
        ("/tenant", f"{SERVER}/tenant"),
        ("/tenant", f"{OPENID}/tenant"),
        ("/tenant", f"/tenant{OPENID}"),
    ],
)
async def test_what_an_authorization_server_says_of_itself_is_looked_for_where_each_standard_puts_it(
    authority: Authority, signed: SignIn, path: str, place: str
) -> None:
    move(authority, path, place)

    kept = await signed()

    assert kept.client is not None
    assert kept.client.issuer == f"{authority.origin}{path}"


async def test_an_older_upstream_is_its_own_authorization_server(authority: Authority, signed: SignIn) -> None:
    del authority.papers[f"{RESOURCE}/mcp"]
    authority.challenge = ""

    assert (await signed()).resource == authority.url

    authority.papers.clear()
    assert (await signed()).token_endpoint == f"{authority.origin}/token"


async def test_an_upstream_that_names_no_server_is_its_own(authority: Authority, signed: SignIn) -> None:
    authority.papers[f"{RESOURCE}/mcp"] = {"resource": authority.origin}

    assert (await signed()).resource == authority.origin


async def test_an_upstream_that_lets_everybody_in_wants_no_login(authority: Authority, signed: SignIn) -> None:
    authority.papers.clear()
    authority.statuses["/mcp"] = 200

    with pytest.raises(LoginError, match="does not want anybody to sign in"):
        await signed()


@pytest.mark.parametrize(
    ("challenge", "supported", "asked"),
    [('Bearer scope="a b"', ["c"], "a b"), ("Bearer", ["c", "d"], "c d"), ("Bearer", None, None), ("Bearer", [], None)],
)
async def test_the_scopes_are_those_of_the_challenge_or_else_those_that_are_published(
    authority: Authority, signed: SignIn, challenge: str, supported: list[str] | None, asked: str | None
) -> None:
    authority.challenge = challenge
    authority.papers[f"{RESOURCE}/mcp"]["scopes_supported"] = supported

    await signed()

    assert authority.asked("/authorize")[0].get("scope") == asked


@pytest.mark.parametrize(
    ("papers", "why"),
    [
        ({f"{RESOURCE}/mcp": {"resource": "https://other.example/mcp"}}, "another server than the one"),
        ({f"{RESOURCE}/mcp": {"resource": "{origin}/mcpx"}}, "another server than the one"),
        ({f"{RESOURCE}/mcp": {"resource": "http://[::1"}}, "another server than the one"),
        ({SERVER: {"issuer": "https://evil.example", "token_endpoint": "{origin}/token"}}, "not who it seems"),
        ({SERVER: {"issuer": "{origin}/", "token_endpoint": "{origin}/token"}}, "not who it seems"),
        ({SERVER: b"nonsense"}, "does not say how"),
        ({SERVER: b"[" * 100_000}, "does not say how"),
        ({SERVER: b'{"a":"' + b"x" * 2_000_000 + b'"}'}, "more than is read"),
        ({f"{RESOURCE}/mcp": {"resource": "{origin}/mcp", "authorization_servers": ["http://login.example"]}}, "not safe"),
        ({f"{RESOURCE}/mcp": {"resource": "{origin}/mcp", "authorization_servers": ["file:///etc/passwd"]}}, "not safe"),
    ],
)
async def test_a_paper_that_is_false_or_too_long_ends_the_login(
    authority: Authority, signed: SignIn, papers: dict[str, Any], why: str
) -> None:
    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: placed(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType] - any JSON
        return value.replace("{origin}", authority.origin) if isinstance(value, str) else value

    authority.papers.update(placed(papers))

    with pytest.raises(LoginError, match=why) as caught:
        await signed()

    assert not caught.value.passing
    assert not authority.asked("/authorize")


async def test_an_older_server_that_is_not_who_it_seems_is_not_used(authority: Authority, signed: SignIn) -> None:
    del authority.papers[f"{RESOURCE}/mcp"]
    authority.publish(issuer="https://evil.example")

    with pytest.raises(LoginError, match="not who it seems"):
        await signed()


async def test_a_server_out_of_order_may_be_well_later(authority: Authority, signed: SignIn) -> None:
    authority.statuses[SERVER] = 503

    with pytest.raises(LoginError, match="status 503") as caught:
        await signed()

    assert caught.value.passing


async def test_an_upstream_that_is_not_there_may_be_later(signed: SignIn) -> None:
    with pytest.raises(LoginError, match="cannot be asked") as caught:
        await signed(url="http://127.0.0.1:9/mcp")

    assert caught.value.passing


async def test_what_is_packed_is_not_unpacked(authority: Authority) -> None:
    authority.papers["/packed"] = gzip.compress(b"{}")
    authority.encoding = "gzip"
    async with open_http("shop", authority.url) as asker:
        with pytest.raises(LoginError, match="was not asked for"):
            await asker.paper(f"{authority.origin}/packed", dict)


@pytest.mark.parametrize(
    ("url", "local", "fits"),
    [
        ("https://login.example/x", False, True),
        ("http://127.0.0.1:1/x", True, True),
        ("http://localhost:1/x", True, True),
        ("http://[::1]:1/x", True, True),
        ("http://127.0.0.1:1/x", False, False),  # an upstream elsewhere must not make us ask servers of this machine
        ("http://login.example/x", True, False),
        ("https://me:secret@login.example/x", False, False),
        ("https:///x", False, False),
        ("https://login.example/x y", False, False),
        ("https://[login.example/x", False, False),
        ("javascript:alert(1)", True, False),
    ],
)
def test_secrets_go_only_where_it_is_safe(url: str, local: bool, fits: bool) -> None:  # noqa: FBT001 - a row of a table
    asker = OAuthHttp("shop", None, local=local)  # pyright: ignore[reportArgumentType] - nothing is sent
    if fits:
        assert asker.check(url) == url
    else:
        with pytest.raises(LoginError, match="not safe"):
            asker.check(url)


def test_names_of_this_machine_are_known() -> None:
    assert [is_local(f"http://{host}/") for host in ("a.localhost", "127.9.9.9", "example.com")] == [True, True, False]


def test_a_challenge_is_read_with_and_without_quotes() -> None:
    challenge = r'Bearer realm="a, \"b\"", scope=read, error="insufficient_scope"'

    assert parameter_of(challenge, "realm") == 'a, "b"'
    assert parameter_of(challenge, "scope") == "read"
    assert parameter_of(challenge, "resource_metadata") is None
    assert wants_more(challenge)
    assert not wants_more("Bearer")
