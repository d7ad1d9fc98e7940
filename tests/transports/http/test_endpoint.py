"""Requests of the newer era: what they say twice must agree, and how their answers come."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field

from callyard import Call, Yard, current_call, tool

if TYPE_CHECKING:
    from tests.transports.conftest import Gates

VERSION = "io.modelcontextprotocol/protocolVersion"


async def test_headers_that_contradict_the_body_are_refused(serve: Any) -> None:
    server = await serve()

    for name, value in (
        ("Mcp-Method", None),
        ("Mcp-Method", "tools/list"),
        ("Mcp-Name", None),
        ("Mcp-Name", "wait"),
        ("Mcp-Name", "=?base64?%%%?="),
        ("MCP-Protocol-Version", None),
        ("MCP-Protocol-Version", "2025-11-25"),
    ):
        reply = await server.ask("add", {"a": 1, "b": 2}, headers={name: value})
        assert (name, reply.status, reply.error, reply.json["id"]) == (name, 400, -32020, 1)
    assert not server.records


async def test_a_name_may_be_wrapped_in_its_header(serve: Any) -> None:
    server = await serve()

    assert (await server.ask("add", {"a": 1, "b": 2}, headers={"Mcp-Name": "=?base64?YWRk?="})).data == 3


async def test_a_header_that_requests_are_routed_by_may_not_come_twice(serve: Any) -> None:
    server = await serve()
    right = {
        "Mcp-Method": "tools/call",
        "Mcp-Name": "add",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Param-Region": "here",
    }

    for name, value in right.items():
        reply = await server.ask("add", {"a": 1, "b": 2}, headers={name: value, name.lower(): value})
        assert (name, reply.status, reply.error) == (name, 400, -32020)
    assert not server.records


async def test_an_argument_that_is_wanted_as_a_header_must_be_there_and_agree(serve: Any) -> None:
    @tool
    def place(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})], size: float = 1) -> str:
        """Say where."""
        return region

    server = await serve(Yard(tools=[place]))
    right = await server.ask("place", {"region": "here"}, headers={"Mcp-Param-Region": "here"})
    wrong = [
        await server.ask("place", {"region": "here"}, headers={"Mcp-Param-Region": said}) for said in (None, "there")
    ]
    meta: dict[str, Any] = {VERSION: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params: dict[str, Any] = {"name": "place", "arguments": {"region": "here", "size": "1e999"}, "_meta": meta}
    message = (
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        .replace('"1e999"', "1e999")
        .encode()
    )
    headers = {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "place",
        "Mcp-Param-Region": "here",
    }
    unreadable = await (await server.send("POST", "/mcp", headers, message)).reply()

    assert right.data == "here"
    assert [(reply.status, reply.error) for reply in wrong] == [(400, -32020)] * 2
    assert (unreadable.status, unreadable.error, len(server.records)) == (400, -32020, 1)


async def test_an_argument_that_is_wanted_as_a_header_cannot_come_in_another_way(serve: Any) -> None:
    @tool
    def place(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "home", size: float = 1
    ) -> str:
        """Say where."""
        return region

    @tool
    def regions() -> list[str]:
        """Say a lot of them."""
        return ["here", "x" * 60_000]

    server = await serve(Yard(tools=[place, regions]))
    handle = (await server.ask("regions")).data["handle"]
    ways: tuple[Any, ...] = (
        '{"region": "here"}',
        ["here"],
        {"region": ["here"]},
        {"region": {"$ref": handle, "path": "/0"}},
    )
    replies = [await server.ask("place", arguments) for arguments in ways]

    assert [(reply.status, reply.error) for reply in replies] == [(400, -32020)] * len(ways)
    assert (await server.ask("place", {"size": "2"})).data == "home"
    assert (await server.ask("place")).data == "home"


async def test_another_header_may_come_twice(serve: Any) -> None:
    server = await serve()

    assert (await server.ask("add", {"a": 1, "b": 2}, headers={"X-Other": "1", "x-other": "2"})).data == 3


async def test_a_version_of_the_newer_era_that_is_not_spoken_is_refused(serve: Any) -> None:
    server = await serve()

    reply = await server.ask("add", {"a": 1, "b": 2}, headers={"MCP-Protocol-Version": "2099-01-01"})
    agreeing = await server.modern(
        "tools/list", meta={VERSION: "2099-01-01"}, headers={"MCP-Protocol-Version": "2099-01-01"}
    )

    assert reply.status == 400
    answer = await agreeing.reply()
    assert (answer.status, answer.error) == (400, -32022)
    assert answer.json["error"]["data"]["requested"] == "2099-01-01"


async def test_a_server_can_be_asked_what_it_is(serve: Any) -> None:
    server = await serve()

    reply = await (await server.modern("server/discover")).reply()

    assert reply.status == 200
    assert "2026-07-28" in reply.json["result"]["supportedVersions"]
    assert "mcp-session-id" not in reply.headers


async def test_a_quick_silent_call_is_answered_with_json(serve: Any) -> None:
    server = await serve()

    reply = await server.ask("add", {"a": 1, "b": 2}, token="t")  # noqa: S106 - a progress token

    assert reply.headers["content-type"] == "application/json"
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert reply.data == 3


@pytest.mark.parametrize("stateless", [True, False])
async def test_a_call_that_says_too_much_at_once_tells_how_much_was_dropped(serve: Any, *, stateless: bool) -> None:
    @tool
    async def count(call: Call) -> str:
        """Tell a hundred things without a pause."""
        for number in range(100):
            call.log("info", "x" * 100, n=number)
        return "counted"

    server = await serve(Yard(tools=[count]), message_bytes=4000, stateless=stateless)
    wire = await server.call("count", meta={"io.modelcontextprotocol/logLevel": "info"})
    await wire.head()
    *messages, notice, answer = await wire.messages()

    assert [message["params"]["data"]["n"] for message in messages] == list(range(len(messages)))
    assert (notice["params"]["level"], notice["params"]["data"]["dropped"]) == ("warning", 100 - len(messages))
    assert answer["result"]["structuredContent"]["data"] == "counted"


async def test_a_call_that_tells_how_far_it_is_is_answered_with_events(serve: Any) -> None:
    server = await serve()

    wire = await server.call("chatter", {"count": 2}, token="t")  # noqa: S106 - a progress token
    reply = await wire.head()
    first, second, answer = await wire.messages()

    assert (reply.status, reply.is_stream) == (200, True)
    assert (reply.headers["cache-control"], reply.headers["x-accel-buffering"]) == ("no-cache, no-transform", "no")
    assert first["params"] == {"progressToken": "t", "progress": 1, "total": 2, "message": "x"}
    assert second["params"]["progress"] == 2
    assert (answer["id"], answer["result"]["structuredContent"]["data"]) == (1, "said")


async def test_progress_comes_while_the_call_runs(serve: Any, gates: "Gates") -> None:
    server = await serve()
    wire = await server.call("step", {"count": 2}, token=7)
    gates.steps.put_nowait(None)

    assert (await wire.head()).is_stream
    assert (await wire.message())["params"]["progress"] == 1
    gates.steps.put_nowait(None)
    assert (await wire.message())["params"]["progress"] == 2
    gates.steps.put_nowait(None)
    assert (await wire.message())["result"]["structuredContent"]["data"] == "stepped"
    assert await wire.message() is None


async def test_progress_without_a_token_is_not_sent(serve: Any) -> None:
    server = await serve()

    reply = await server.ask("chatter")

    assert (reply.headers["content-type"], reply.data) == ("application/json", "said")


async def test_a_silent_call_that_takes_longer_becomes_a_stream(serve: Any, gates: "Gates") -> None:
    server = await serve(hold_back=0.06)

    wire = await server.call("wait")
    reply = await wire.head()
    gates.go.set()

    assert reply.is_stream
    assert [message["id"] for message in await wire.messages()] == [1]


async def test_a_silent_stream_gets_keep_alives(serve: Any, gates: "Gates") -> None:
    server = await serve(hold_back=0.06, keep_alive=0.02)

    wire = await server.call("wait")
    await wire.head()
    signs = [await wire.event() for _ in range(3)]
    gates.go.set()

    assert signs == [{"": "alive"}] * 3
    assert (await wire.message())["result"]["isError"] is False


async def test_a_client_that_takes_no_events_gets_json_after_any_time(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(hold_back=0.06, keep_alive=0.02)
    wire = await server.call("wait", headers={"Accept": "application/json"})
    await until(lambda: gates.running)
    await server.ask("add", {"a": 1, "b": 2})
    gates.go.set()

    reply = await wire.reply()

    assert (reply.headers["content-type"], reply.data) == ("application/json", "done")


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "text/event-stream", "*/*"])
async def test_a_server_can_be_set_to_answer_with_json_alone(serve: Any, accept: str) -> None:
    server = await serve(json_response=True)

    reply = await server.ask("chatter", token="t", headers={"Accept": accept})  # noqa: S106 - a progress token

    assert (reply.headers["content-type"], reply.data) == ("application/json", "said")


async def test_handlers_see_the_request_headers_that_are_allowed_and_no_others(serve: Any) -> None:
    @tool
    async def show(call: Call) -> dict[str, str]:
        """Show the headers."""
        return dict(call.channel.headers)

    server = await serve(Yard(tools=[show]), request_headers=["X-Tenant"])

    reply = await server.ask("show", headers={"X-Tenant": "acme", "X-Other": "no", "Authorization": "Bearer secret"})

    assert reply.data == {"x-tenant": "acme"}


async def test_the_trace_of_a_request_is_the_trace_of_its_record(serve: Any) -> None:
    server = await serve()
    trace = "0af7651916cd43dd8448eb211c80319c"

    await server.ask("add", {"a": 1, "b": 2}, headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})

    assert (server.records[0].trace_id, server.records[0].channel) == (trace, "http")


async def test_the_client_is_known_by_the_name_it_gives_itself(serve: Any) -> None:
    @tool
    async def who() -> str:
        """Say who calls."""
        return current_call().caller.client

    server = await serve(Yard(tools=[who]))

    assert (
        await server.ask("who", meta={"io.modelcontextprotocol/clientInfo": {"name": "lab", "version": "1"}})
    ).data == "lab"
