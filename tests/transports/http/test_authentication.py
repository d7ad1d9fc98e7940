"""A guarded server: who comes in, with which profile, and what others are told."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from callyard import Yard, current_call, tool
from callyard.transports.auth import (
    Admitted,
    AnyOf,
    ApiKey,
    ApiKeys,
    IssuerUnreachableError,
    Refusal,
    ReplaceableAuthenticator,
    digest_of,
)

ARGUMENTS = {"a": 1, "b": 2}
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
KEYS = ApiKeys([ApiKey("full", digest_of("cy_full")), ApiKey("reader", digest_of("cy_reader"), "readers")])


class Fake:
    """A guard that does as it is told."""

    def __init__(self, outcome: Exception | Admitted, resource: dict[str, Any] | None = None) -> None:
        self.outcome = outcome
        self.asked: list[str] = []
        self._resource = resource

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        self.asked.append(resource)
        return None if self._resource is None else {**self._resource, "resource": resource}


async def names(server: Any, path: str = "/mcp", **headers: str) -> set[str]:
    reply = await (await server.modern("tools/list", path=path, headers=headers)).reply()
    return {known["name"] for known in reply.json["result"]["tools"]}


async def test_without_a_key_nothing_is_answered_but_how_to_come_in(serve: Any) -> None:
    server = await serve(authenticator=KEYS)

    for headers in ({}, {"X-API-Key": "cy_wrong"}, {"Authorization": "Bearer cy_wrong"}, {"Authorization": "Basic x"}):
        reply = await server.ask("add", ARGUMENTS, headers=headers)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith('Bearer realm="callyard"')
    assert not server.records
    assert (await server.request("GET", "/healthz")).status == 200


async def test_every_way_in_is_guarded(serve: Any) -> None:
    server = await serve(authenticator=KEYS)

    for method, path in (
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("DELETE", "/mcp"),
        ("PUT", "/mcp"),
        ("POST", "/mcp/readers"),
        ("POST", "/mcp/none"),
    ):
        assert (await server.request(method, path)).status == 401


async def test_with_a_key_calls_are_answered_and_recorded_under_its_name(serve: Any) -> None:
    server = await serve(authenticator=KEYS)

    by_header = await server.ask("add", ARGUMENTS, headers={"X-API-Key": "cy_full"})
    by_bearer = await server.ask("add", ARGUMENTS, headers={"Authorization": "Bearer cy_full"})

    assert (by_header.data, by_bearer.data) == (3, 3)
    assert {record.identity for record in server.records} == {"key:full"}


async def test_a_key_selects_its_profile_and_no_other_can_be_asked_for(serve: Any) -> None:
    server = await serve(authenticator=KEYS)
    key = {"X-API-Key": "cy_reader"}

    assert await names(server, **key) == {"add"}
    assert await names(server, "/mcp/readers", **key) == {"add"}
    refused = await server.modern("tools/list", path="/mcp/everything", headers=key)
    assert (await refused.reply()).status == 403
    denied = await server.ask("wait", headers=key)
    assert denied.json["result"]["structuredContent"]["error"]["code"] == "tool_not_found"


async def test_a_key_without_a_profile_has_the_profile_of_the_yard_and_no_other(serve: Any) -> None:
    server = await serve(authenticator=KEYS)
    key = {"X-API-Key": "cy_full"}

    assert len(await names(server, **key)) > 1
    assert len(await names(server, f"/mcp/{server.yard.profile.name}", **key)) > 1
    for path in ("/mcp/readers", "/mcp/none"):
        assert (await (await server.modern("tools/list", path=path, headers=key)).reply()).status == 403
        assert (await server.request("POST", path, INITIALIZE, X_API_Key="cy_full")).status == 403


async def test_a_key_may_choose_by_path_among_its_list_of_profiles(serve: Any) -> None:
    chooser = ApiKeys(
        [ApiKey("ada", digest_of("cy_ada"), None, ("readers",)), ApiKey("ben", digest_of("cy_ben"), "readers")]
    )
    server = await serve(authenticator=chooser)
    key = {"X-API-Key": "cy_ada"}

    assert len(await names(server, **key)) > 1
    assert await names(server, "/mcp/readers", **key) == {"add"}
    assert (await (await server.modern("tools/list", path="/mcp/none", headers=key)).reply()).status == 403
    assert (
        await (await server.modern("tools/list", path="/mcp/everything", headers={"X-API-Key": "cy_ben"})).reply()
    ).status == 403


async def test_strangers_cannot_tell_which_profiles_exist(serve: Any) -> None:
    server = await serve(authenticator=Fake(Refusal("No."), {}))

    async def seen(name: str) -> tuple[int, int, str]:
        metadata = await server.request("GET", f"/.well-known/oauth-protected-resource/mcp/{name}")
        refused = await server.request("POST", f"/mcp/{name}", INITIALIZE)
        return metadata.status, refused.status, refused.headers["www-authenticate"].replace(name, "")

    assert await seen("readers") == await seen("nobodys")


async def test_refused_credentials_are_logged_without_their_text(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = await serve(authenticator=KEYS)

    for _ in range(5):
        assert (await server.ask("add", ARGUMENTS, headers={"X-API-Key": "cy_wrong"})).status == 401
    assert (await server.ask("add", ARGUMENTS)).status == 401

    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("credentials_refused")]
    assert [(record.levelname, "status=401" in line) for record, line in zip(caplog.records, lines, strict=False)] == [
        ("WARNING", True)
    ]
    assert "cy_wrong" not in caplog.text


async def test_without_a_guard_a_path_selects_a_profile_in_both_eras(serve: Any) -> None:
    server = await serve()
    session = await server.greet(path="/mcp/readers")
    listed = await session.ask("tools/list")

    assert await names(server, "/mcp/readers") == {"add"}
    assert {known["name"] for known in listed.json["result"]["tools"]} == {"add"}


async def test_a_session_stays_with_the_profile_that_it_began_with(serve: Any) -> None:
    server = await serve()
    session = await server.greet(path="/mcp/readers")

    wire = await server.send("POST", "/mcp", session.headers, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})

    assert (await wire.reply()).status == 404


async def test_claims_reach_the_handler(serve: Any) -> None:
    @tool
    async def claims() -> dict[str, Any]:
        """Show what is claimed."""
        return dict(current_call().caller.claims)

    authenticator = Fake(Admitted(identity="ada", claims={"team": "blue"}))

    assert (await (await serve(Yard(tools=[claims]), authenticator)).ask("claims")).data == {"team": "blue"}


async def test_a_refusal_points_to_the_metadata_and_the_metadata_are_there(serve: Any) -> None:
    authenticator = Fake(
        Refusal("The token is over.", error="invalid_token"), {"authorization_servers": ["https://issuer.example"]}
    )
    server = await serve(authenticator=authenticator)

    refused = await server.ask("add", ARGUMENTS)
    metadata = await server.request("GET", "/.well-known/oauth-protected-resource/mcp")

    place = f"http://{server.host}/.well-known/oauth-protected-resource/mcp"
    assert refused.status == 401
    assert f'resource_metadata="{place}"' in refused.headers["www-authenticate"]
    assert 'error="invalid_token"' in refused.headers["www-authenticate"]
    assert (metadata.status, metadata.json["resource"]) == (200, f"http://{server.host}/mcp")
    assert metadata.json["authorization_servers"] == ["https://issuer.example"]


async def test_the_metadata_of_a_profile_are_those_of_its_address(serve: Any) -> None:
    authenticator = Fake(Refusal("No."), {})
    server = await serve(authenticator=authenticator)

    refused = await server.request("POST", "/mcp/readers")
    metadata = await server.request("GET", "/.well-known/oauth-protected-resource/mcp/readers")

    assert "/.well-known/oauth-protected-resource/mcp/readers" in refused.headers["www-authenticate"]
    assert metadata.json["resource"] == f"http://{server.host}/mcp/readers"


async def test_there_are_metadata_of_endpoints_alone_that_there_are(serve: Any) -> None:
    server = await serve(authenticator=Fake(Refusal("No."), {}))

    for path in (".evil.example/mcp", "/mcp/", "/mcpx", "/", "/readers", "//mcp", "/mcp/readers/"):
        assert (path, (await server.request("GET", f"/.well-known/oauth-protected-resource{path}")).status) == (
            path,
            404,
        )
    nameless = await server.request("GET", "/.well-known/oauth-protected-resource")
    posted = await server.request("POST", "/.well-known/oauth-protected-resource/mcp")

    assert (nameless.json["resource"], posted.status) == (f"http://{server.host}/mcp", 404)


async def test_the_challenge_has_the_public_url_of_the_server(serve: Any) -> None:
    server = await serve(authenticator=Fake(Refusal("No."), {}), public_url="https://yard.example/tools/")

    refused = await server.ask("add", ARGUMENTS)
    metadata = await server.request("GET", "/.well-known/oauth-protected-resource/mcp")

    place = "https://yard.example/tools/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{place}"' in refused.headers["www-authenticate"]
    assert metadata.json["resource"] == "https://yard.example/tools/mcp"


@pytest.mark.parametrize("settings", [{}, {"public_url": "https://yard.example"}])
async def test_over_sse_a_client_finds_its_issuer_too(serve: Any, settings: dict[str, Any]) -> None:
    server = await serve(
        authenticator=Fake(Refusal("No."), {"authorization_servers": ["https://issuer.example"]}),
        transport="sse",
        allowed_origins=["http://localhost:3000"],
        **settings,
    )
    base = settings.get("public_url", f"http://{server.host}")

    refused = await server.request("GET", "/sse")
    found = await server.request("GET", "/.well-known/oauth-protected-resource/sse", Origin="http://localhost:3000")
    preflight = await server.request(
        "OPTIONS", "/.well-known/oauth-protected-resource/sse", Origin="http://localhost:3000"
    )
    other = await server.request("GET", "/.well-known/oauth-protected-resource/mcp")

    assert f'resource_metadata="{base}/.well-known/oauth-protected-resource/sse"' in refused.headers["www-authenticate"]
    assert found.json == {"authorization_servers": ["https://issuer.example"], "resource": f"{base}/sse"}
    assert found.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert (preflight.status, other.status) == (200, 404)


async def test_there_are_no_metadata_where_there_is_no_issuer(serve: Any) -> None:
    for authenticator in (None, KEYS):
        server = await serve(authenticator=authenticator)
        assert (await server.request("GET", "/.well-known/oauth-protected-resource/mcp")).status == 404


async def test_an_insufficient_scope_is_403(serve: Any) -> None:
    authenticator = Fake(Refusal("The scope is missing.", status=403, error="insufficient_scope", scopes=["yard"]))

    reply = await (await serve(authenticator=authenticator)).ask("add", ARGUMENTS)

    assert reply.status == 403
    assert 'scope="yard"' in reply.headers["www-authenticate"]


async def test_an_unreachable_issuer_is_answered_with_retry_after(serve: Any) -> None:
    authenticator = Fake(IssuerUnreachableError("The issuer does not answer.", retry_after=7))

    reply = await (await serve(authenticator=authenticator)).ask("add", ARGUMENTS)

    assert (reply.status, reply.headers["retry-after"]) == (503, "7")


async def test_a_credential_for_a_profile_that_is_not_there_is_404(serve: Any) -> None:
    authenticator = Fake(Admitted(identity="ada", profile="gone"))

    assert (await (await serve(authenticator=authenticator)).ask("add", ARGUMENTS)).status == 404


@pytest.mark.parametrize("name", ["Authorization", "X-API-Key"])
async def test_a_credential_that_comes_twice_is_refused(serve: Any, name: str) -> None:
    server = await serve(authenticator=KEYS)
    value = "Bearer cy_full" if name == "Authorization" else "cy_full"

    reply = await server.ask("add", ARGUMENTS, headers={name: "Bearer other", name.lower(): value})

    assert reply.status in {400, 401}
    assert not server.records


async def test_the_key_is_in_no_answer_and_no_log(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    server = await serve(authenticator=KEYS)

    replies = [
        await server.ask("add", ARGUMENTS, headers={"X-API-Key": key}) for key in ("cy_full", "cy_secret_and_wrong")
    ]

    assert not [reply for reply in replies if b"cy_" in reply.body]
    assert "cy_full" not in caplog.text
    assert "cy_secret" not in caplog.text


@pytest.mark.parametrize("guarded", [False, True])
async def test_unknown_clients_have_different_channels(serve: Any, *, guarded: bool) -> None:
    @tool
    def line() -> str:
        """Say which client it is."""
        return current_call().channel.connection_id

    server = await serve(Yard(tools=[line]), authenticator=KEYS if guarded else None)
    key = {"X-API-Key": "cy_full"} if guarded else {}
    asks: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    newer = [(await server.ask("line", headers=key, meta=asks)).data for _ in range(2)]
    sessions = [await server.greet(**{"X_API_Key": "cy_full"} if guarded else {}) for _ in range(2)]
    older = [(await (await session.call("line", id=number)).reply()).data for session in sessions for number in (1, 2)]

    assert len(set(newer)) == (1 if guarded else 2)
    assert (len(set(older)), older[0] == older[1], older[2] == older[3]) == (2, True, True)


LISTEN = {"notifications": {"toolsListChanged": True}}
STREAM = {"Accept": "text/event-stream"}


def keys_of(*names: str, profile: str | None = None) -> ApiKeys:
    """Return keys, two of which may have one name: 'x1' and 'x2' are keys of 'x'."""
    return ApiKeys(ApiKey(name.rstrip("12"), digest_of(f"cy_{name}"), profile) for name in names)


async def test_the_open_streams_of_a_revoked_key_end_and_no_others(serve: Any) -> None:
    authenticator = ReplaceableAuthenticator(keys_of("left1", "left2", "stays"))
    server = await serve(authenticator=authenticator)
    wires = {
        name: await server.modern(
            "subscriptions/listen", LISTEN, headers={**STREAM, "Authorization": f"Bearer cy_{name}"}
        )
        for name in ("left1", "left2", "stays")
    }
    for wire in wires.values():
        assert (await wire.head()).is_stream

    await authenticator.replace(keys_of("left2", "stays"), only_keys=True)

    await wires["left1"].ends()
    assert (await server.ask("add", ARGUMENTS, headers={"X-API-Key": "cy_left1"})).status == 401
    assert (await server.ask("add", ARGUMENTS, headers={"X-API-Key": "cy_left2"})).data == 3
    assert not wires["left2"].reader.at_eof()

    await authenticator.replace(None, only_keys=True)

    for name in ("left2", "stays"):
        await wires[name].ends()
    assert (await server.ask("add", ARGUMENTS, headers={"X-API-Key": "cy_stays"})).status == 401


async def test_a_session_of_a_revoked_key_and_its_calls_end(serve: Any, gates: Any, until: Any) -> None:
    @tool
    async def wait() -> None:
        """Wait for nothing."""
        gates.running += 1
        try:
            await gates.go.wait()
        finally:
            gates.running -= 1

    authenticator = ReplaceableAuthenticator(keys_of("left", "stays"))
    server = await serve(Yard(tools=[wait]), authenticator=authenticator)
    sessions = {name: await server.greet(X_API_Key=f"cy_{name}") for name in ("left", "stays")}
    wires = [await session.call("wait") for session in sessions.values()]
    await until(lambda: gates.running == 2)

    await authenticator.replace(keys_of("stays"), only_keys=True)

    await wires[0].ends()
    await until(lambda: gates.running == 1)
    gates.go.set()
    assert (await wires[1].reply()).status == 200


async def test_credentials_that_are_replaced_while_they_are_checked_are_checked_again() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow:
        """An authenticator that waits for an issuer."""

        async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
            asked.set()
            await answer.wait()
            return Admitted(identity="ada")

        def protected_resource(self, resource: str) -> None:
            return None

    authenticator = ReplaceableAuthenticator(Slow())
    admission = asyncio.ensure_future(authenticator.admit(None, "cy_left"))
    await asked.wait()
    await authenticator.replace(keys_of("stays"), only_keys=False)
    answer.set()

    with pytest.raises(Refusal):
        await admission


async def test_a_key_whose_profile_changed_begins_anew(serve: Any) -> None:
    authenticator = ReplaceableAuthenticator(keys_of("one"))
    server = await serve(authenticator=authenticator)
    wire = await server.modern("subscriptions/listen", LISTEN, headers={**STREAM, "X-API-Key": "cy_one"})
    assert (await wire.head()).is_stream

    await authenticator.replace(keys_of("one", profile="readers"), only_keys=True)

    await wire.ends()
    key = {"X-API-Key": "cy_one"}
    assert await names(server, **key) == await names(server, "/mcp/readers", **key)


class ByPath:
    """An authenticator that looks at the whole request."""

    async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
        raise Refusal("The whole request is needed.")

    async def admit_request(self, path: str, headers: Mapping[str, str]) -> Admitted:
        if headers.get("x-forwarded-user") is None:
            raise Refusal("A user is needed.")
        return Admitted(identity=f"{headers['x-forwarded-user']} at {path}")

    def protected_resource(self, resource: str) -> dict[str, Any] | None:
        return None


async def test_an_authenticator_may_look_at_the_path_and_every_header(serve: Any) -> None:
    for authenticator in (ByPath(), AnyOf([KEYS, ByPath()])):
        server = await serve(authenticator=authenticator)
        assert (await server.ask("add", ARGUMENTS)).status == 401
        assert (await server.ask("add", ARGUMENTS, headers={"X-Forwarded-User": "ada"})).data == 3
        assert server.records[-1].identity == "ada at /mcp"
    assert (await server.ask("add", ARGUMENTS, headers={"X-API-Key": "cy_full"})).data == 3
