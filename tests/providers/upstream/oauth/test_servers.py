"""Discovery follows the standards, and false metadata is refused."""

import gzip
from typing import Any

import pytest
from authority import Authority, SignIn
from table_tests import every_row

from callyard.providers.upstream.oauth.servers import HostCheck, OAuthHttp, is_local, open_http, resolve
from callyard.providers.upstream.oauth.vault import LoginError, challenge_parameter, needs_more_scope
from callyard.providers.upstream.settings import Login

RESOURCE = "/.well-known/oauth-protected-resource"
SERVER = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"


def move(authority: Authority, issuer_path: str, place: str) -> None:
    """Publish the server's metadata for an issuer with a path, in another place."""
    authority.metadata[f"{RESOURCE}/mcp"] = {
        "resource": authority.url,
        "authorization_servers": [f"{authority.origin}{issuer_path}"],
    }
    del authority.metadata[SERVER]
    authority.metadata[place] = authority.server_metadata(issuer=f"{authority.origin}{issuer_path}")


@pytest.mark.parametrize(
    ("challenge", "place"),
    [("", f"{RESOURCE}/mcp"), ("", RESOURCE), ('Bearer resource_metadata="{}/elsewhere"', "/elsewhere")],
)
async def test_resource_metadata_is_looked_up_in_three_places(
    authority: Authority, log_in: SignIn, challenge: str, place: str
) -> None:
    authority.challenge = challenge.format(authority.origin)
    authority.metadata[place] = authority.metadata.pop(f"{RESOURCE}/mcp")

    stored = await log_in()

    assert stored.token is not None
    assert stored.token.access_token in authority.tokens


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
async def test_server_metadata_is_looked_up_where_each_standard_puts_it(
    authority: Authority, log_in: SignIn, path: str, place: str
) -> None:
    move(authority, path, place)

    stored = await log_in()

    assert stored.client is not None
    assert stored.client.issuer == f"{authority.origin}{path}"


async def test_an_older_upstream_is_its_own_authorization_server(authority: Authority, log_in: SignIn) -> None:
    del authority.metadata[f"{RESOURCE}/mcp"]
    authority.challenge = ""

    assert (await log_in()).resource == authority.url

    authority.metadata.clear()
    assert (await log_in()).token_endpoint == f"{authority.origin}/token"


async def test_an_upstream_that_names_no_server_is_its_own_authorization_server(
    authority: Authority, log_in: SignIn
) -> None:
    authority.metadata[f"{RESOURCE}/mcp"] = {"resource": authority.origin}

    assert (await log_in()).resource == authority.origin


async def test_an_open_upstream_requires_no_login(authority: Authority, log_in: SignIn) -> None:
    authority.metadata.clear()
    authority.statuses["/mcp"] = 200

    with pytest.raises(LoginError, match="does not require a login"):
        await log_in()


@pytest.mark.parametrize(
    ("challenge", "supported", "asked"),
    [('Bearer scope="a b"', ["c"], "a b"), ("Bearer", ["c", "d"], "c d"), ("Bearer", None, None), ("Bearer", [], None)],
)
async def test_the_scopes_are_those_of_the_challenge_or_of_the_metadata(
    authority: Authority, log_in: SignIn, challenge: str, supported: list[str] | None, asked: str | None
) -> None:
    authority.challenge = challenge
    authority.metadata[f"{RESOURCE}/mcp"]["scopes_supported"] = supported

    await log_in()

    assert authority.asked("/authorize")[0].get("scope") == asked


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({f"{RESOURCE}/mcp": {"resource": "https://other.example/mcp"}}, "which is another server"),
        ({f"{RESOURCE}/mcp": {"resource": "{origin}/mcpx"}}, "which is another server"),
        ({f"{RESOURCE}/mcp": {"resource": "http://[::1"}}, "which is another server"),
        ({SERVER: {"issuer": "https://evil.example", "token_endpoint": "{origin}/token"}}, "another issuer"),
        ({SERVER: {"issuer": "{origin}/", "token_endpoint": "{origin}/token"}}, "another issuer"),
        ({SERVER: b"nonsense"}, "publishes no metadata"),
        ({SERVER: b"[" * 100_000}, "publishes no metadata"),
        ({SERVER: b'{"a":"' + b"x" * 2_000_000 + b'"}'}, "longer than 1048576 bytes"),
        (
            {f"{RESOURCE}/mcp": {"resource": "{origin}/mcp", "authorization_servers": ["http://login.example"]}},
            "not safe",
        ),
        (
            {f"{RESOURCE}/mcp": {"resource": "{origin}/mcp", "authorization_servers": ["file:///etc/passwd"]}},
            "not safe",
        ),
    ],
)
async def test_false_or_too_long_metadata_ends_the_login(
    authority: Authority, log_in: SignIn, metadata: dict[str, Any], why: str
) -> None:
    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: placed(inner) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType] - any JSON
        return value.replace("{origin}", authority.origin) if isinstance(value, str) else value

    authority.metadata.update(placed(metadata))

    with pytest.raises(LoginError, match=why) as caught:
        await log_in()

    assert not caught.value.is_transient
    assert not authority.asked("/authorize")


async def test_an_older_server_with_another_issuer_is_refused(authority: Authority, log_in: SignIn) -> None:
    del authority.metadata[f"{RESOURCE}/mcp"]
    authority.publish(issuer="https://evil.example")

    with pytest.raises(LoginError, match="another issuer"):
        await log_in()


async def test_a_failing_server_is_a_transient_error(authority: Authority, log_in: SignIn) -> None:
    authority.statuses[SERVER] = 503

    with pytest.raises(LoginError, match="status 503") as caught:
        await log_in()

    assert caught.value.is_transient


async def test_an_unreachable_upstream_is_a_transient_error(log_in: SignIn) -> None:
    with pytest.raises(LoginError, match="cannot be reached") as caught:
        await log_in(url="http://127.0.0.1:9/mcp")

    assert caught.value.is_transient


async def test_a_compressed_response_is_refused(authority: Authority) -> None:
    authority.metadata["/packed"] = gzip.compress(b"{}")
    authority.encoding = "gzip"
    async with open_http("shop", authority.url, Login()) as http:
        with pytest.raises(LoginError, match="compressed"):
            await http.fetch_metadata(f"{authority.origin}/packed", dict)


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
def test_secrets_are_sent_to_safe_urls_only(url: str, local: bool, fits: bool) -> None:  # noqa: FBT001 - a row of a table
    http = OAuthHttp("shop", None, None, is_local=local)  # pyright: ignore[reportArgumentType] - nothing is sent
    if fits:
        assert http.check(url) == url
    else:
        with pytest.raises(LoginError, match="not safe"):
            http.check(url)


def test_local_host_names_are_recognised() -> None:
    assert [is_local(f"http://{host}/") for host in ("a.localhost", "127.9.9.9", "example.com")] == [True, True, False]


def test_a_challenge_is_read_with_and_without_quotes() -> None:
    challenge = r'Bearer realm="a, \"b\"", scope=read, error="insufficient_scope"'

    assert challenge_parameter(challenge, "realm") == 'a, "b"'
    assert challenge_parameter(challenge, "scope") == "read"
    assert challenge_parameter(challenge, "resource_metadata") is None
    assert needs_more_scope(challenge)
    assert not needs_more_scope("Bearer")


HOSTS = {
    "shop.example": ("93.184.216.34",),
    "login.example": ("93.184.216.35", "2606:2800:220:1::1"),
    "router.example": ("192.168.1.1",),
    "both.example": ("93.184.216.36", "10.0.0.7"),
    "here.example": ("127.0.0.1",),
    "mapped.example": ("::ffff:10.0.0.1",),
    "cloud.example": ("169.254.169.254",),
    "intranet.example": ("10.1.2.3",),
}


async def resolve_here(host: str) -> tuple[str, ...]:
    return HOSTS.get(host, (host,))


@every_row(
    ("upstream", "host", "fits"),
    [
        ("https://shop.example/mcp", "login.example", True),
        ("https://shop.example/mcp", "shop.example", True),
        *(
            ("https://shop.example/mcp", host, False)
            for host in (
                "router.example",
                "both.example",
                "here.example",
                "mapped.example",
                "cloud.example",
                "127.0.0.1",
                "localhost",
                "a.localhost",
                "10.0.0.1",
                "0.0.0.0",  # noqa: S104 - the address is the test
                "::1",
                "fd00::1",
                "fe80::1",
                "100.64.0.1",
            )
        ),
        ("https://intranet.example/mcp", "router.example", True),
        ("https://intranet.example/mcp", "here.example", False),
        ("http://127.0.0.1:1/mcp", "here.example", True),
        ("http://localhost:1/mcp", "router.example", True),
    ],
)
async def test_metadata_names_no_host_that_is_nearer_to_us_than_the_upstream(
    upstream: str, host: str, *, fits: bool
) -> None:
    host_check = HostCheck("shop", upstream, Login(), resolve=resolve_here)
    if fits:
        await host_check.check(host)
    else:
        with pytest.raises(LoginError, match="private"):
            await host_check.check(host)


async def test_hosts_of_the_settings_are_trusted() -> None:
    login = Login(issuer="https://10.0.0.1/realm")
    host_check = HostCheck("shop", "https://shop.example/mcp", login, resolve=resolve_here)
    await host_check.check("10.0.0.1")


async def test_no_request_goes_to_a_private_host_that_metadata_names(authority: Authority) -> None:
    url = "https://shop.example/mcp"
    async with open_http("shop", url, Login(), resolve=resolve_here) as http:
        with pytest.raises(LoginError, match="private"):
            await http.fetch_metadata(f"https://localhost:{authority.url.rpartition(':')[2]}", dict)


async def test_a_name_is_resolved_and_an_unknown_one_has_no_addresses() -> None:
    assert set(await resolve("localhost")) & {"127.0.0.1", "::1"}
    assert not await resolve("x" * 64)
