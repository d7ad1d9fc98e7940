"""The transport of older clients: a stream that tells where to post, and every answer on the stream."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from callyard import Call, Serving, Yard, tool
from callyard.launch.serve import make_transport
from callyard.transports.auth import ApiKey, ApiKeys, digest_of

if TYPE_CHECKING:
    from tests.transports.conftest import Gates, Stubborn

META = "io.modelcontextprotocol/"
HELLO: dict[str, Any] = {
    "protocolVersion": "2024-11-05",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}
INITIALIZE: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}


def call(number: object, name: str, arguments: object = None) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments or {}},
    }


async def open_stream(server: Any, **headers: str) -> tuple[Any, str]:
    """Return a stream that has begun, and where its messages are posted."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    wire = await server.send("GET", "/sse", {"Accept": "text/event-stream", "Content-Type": None, **named})
    assert (await wire.head()).is_stream
    event = await wire.event()
    assert event["event"] == "endpoint"
    return wire, event["data"]


async def test_health_checks_need_no_credentials_and_no_known_host(serve: Any) -> None:
    server = await serve(transport="sse", authenticator=ApiKeys([ApiKey("ci", digest_of("cy_k"))]))

    for path in ("/healthz", "/readyz"):
        assert (path, (await server.request("GET", path, Host="10.0.0.7")).status) == (path, 200)


async def test_below_a_path_of_a_proxy_messages_are_posted_below_it_too(serve: Any) -> None:
    server = await serve(transport="sse", public_url="https://host.example/tools/")

    assert (await open_stream(server))[1].startswith("/tools/messages?")


async def test_every_answer_comes_on_the_stream(serve: Any) -> None:
    server = await serve(transport="sse")
    stream, place = await open_stream(server)

    posted = await server.request("POST", place, INITIALIZE)
    greeting = await stream.message()
    await server.request("POST", place, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    await server.request("POST", place, call(1, "add", {"a": 1, "b": 2}))
    answer = await stream.message()

    assert posted.status == 202
    assert greeting["result"]["protocolVersion"] == "2024-11-05"
    assert (answer["id"], json.loads(answer["result"]["content"][0]["text"])["data"]) == (1, 3)
    assert server.records[0].channel == "sse"
    assert server.address == f"http://127.0.0.1:{server.port}/sse"


async def test_an_invalid_message_is_answered_on_the_stream_too(serve: Any) -> None:
    server = await serve(transport="sse")
    stream, place = await open_stream(server)

    await server.request("POST", place, b"{")

    assert (await stream.message())["error"]["code"] == -32700


async def test_a_client_that_goes_cancels_its_calls(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(transport="sse")
    stream, place = await open_stream(server)
    await server.request("POST", place, INITIALIZE)
    await server.request("POST", place, call(1, "wait"))
    await until(lambda: gates.running)

    await stream.close()
    await until(lambda: server.records)

    assert (server.records[0].code, gates.running) == ("cancelled", 0)
    assert (await server.request("POST", place, INITIALIZE)).status == 404


async def test_a_call_sees_the_headers_and_the_trace_of_its_own_request(serve: Any) -> None:
    go = asyncio.Event()

    @tool
    async def tell(call: Call) -> list[Any]:
        """Tell what came along."""
        await go.wait()
        return [dict(call.channel.headers), call.channel.trace_id]

    server = await serve(Yard(tools=[tell]), transport="sse", request_headers=["X-Team"], in_flight=1)
    stream, place = await open_stream(server)
    await server.request("POST", place, INITIALIZE)
    await stream.message()
    said: list[dict[str, str]] = [
        {},
        {"X-Team": "red", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
        {"X-Team": "blue"},
        {},
    ]
    for number, headers in enumerate(said):
        await (await server.send("POST", place, headers, call(number, "tell"))).reply()
    go.set()
    seen = [json.loads((await stream.message())["result"]["content"][0]["text"])["data"] for _ in said]

    assert seen == [[{}, None], [{"x-team": "red"}, "a" * 32], [{"x-team": "blue"}, None], [{}, None]]


async def test_an_endpoint_that_was_never_announced_is_404(serve: Any) -> None:
    server = await serve(transport="sse")

    for path in ("/messages", "/messages?session_id=", f"/messages?session_id={'0' * 32}", "/mcp", "/"):
        assert (await server.request("POST", path, INITIALIZE)).status == 404


async def test_a_stream_belongs_to_who_opened_it(serve: Any) -> None:
    authenticator = ApiKeys([ApiKey("ada", digest_of("cy_ada")), ApiKey("ben", digest_of("cy_ben"))])
    server = await serve(authenticator=authenticator, transport="sse")
    refused = await server.request("GET", "/sse")
    _, place = await open_stream(server, X_API_Key="cy_ada")

    assert refused.status == 401
    assert (await server.request("POST", place, INITIALIZE)).status == 401
    assert (await server.request("POST", place, INITIALIZE, X_API_Key="cy_ben")).status == 404
    assert (await server.request("POST", place, INITIALIZE, X_API_Key="cy_ada")).status == 202


async def test_another_host_or_page_is_refused(serve: Any) -> None:
    server = await serve(transport="sse")
    _, place = await open_stream(server)

    assert (await server.request("GET", "/sse", Host="evil.example")).status == 421
    assert (await server.request("POST", place, INITIALIZE, Origin="http://evil.example")).status == 403


async def test_a_message_that_is_too_long_is_413(serve: Any) -> None:
    server = await serve(transport="sse", message_bytes=100)
    _, place = await open_stream(server)

    assert (await server.request("POST", place, b" " * 101)).status == 413


async def test_there_are_only_so_many_streams(serve: Any, until: Any) -> None:
    server = await serve(transport="sse", sessions=1)
    stream, _ = await open_stream(server)

    assert (await server.request("GET", "/sse")).status == 503
    await stream.close()
    status = 503
    while status == 503:  # until the server has seen that the first one is gone
        wire = await server.send("GET", "/sse", {})
        status = (await wire.head()).status

    assert status == 200


async def test_a_client_with_too_many_requests_has_to_wait(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(transport="sse", in_flight=1)
    stream, place = await open_stream(server)
    await server.request("POST", place, INITIALIZE)
    statuses = [(await server.request("POST", place, call(number, "wait"))).status for number in range(1, 6)]
    refused = await server.request("POST", place, call(6, "wait"))
    gates.go.set()
    answered = [(await stream.message())["id"] for _ in range(6)]

    assert statuses == [202] * 5
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert answered == [0, 1, 2, 3, 4, 5]


async def test_two_hosts_are_one_too_many(serve: Any) -> None:
    server = await serve(transport="sse")
    wire = await server.connect()
    await wire.write(b"GET /sse HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n")

    assert (await wire.reply()).status == 400


async def test_a_silent_stream_gets_keep_alives(serve: Any) -> None:
    server = await serve(transport="sse", keep_alive=0.02)
    stream, _ = await open_stream(server)

    assert [await stream.event() for _ in range(2)] == [{"": "alive"}] * 2


async def test_at_the_end_every_call_is_answered_and_every_stream_ends(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(transport="sse", shutdown_seconds=0.05)
    stream, place = await open_stream(server)
    await server.request("POST", place, INITIALIZE)
    await server.request("POST", place, call(1, "wait"))
    await until(lambda: gates.running)

    await server.stop()
    messages = await stream.messages()

    assert [message["id"] for message in messages] == [0, 1]
    assert json.loads(messages[1]["result"]["content"][0]["text"])["error"]["code"] == "cancelled"


async def test_at_the_end_a_call_that_does_not_listen_to_its_interruption_is_answered_in_its_place(
    serve: Any, until: Any, stubborn: "Stubborn"
) -> None:
    server = await serve(Yard(tools=[stubborn]), transport="sse", shutdown_seconds=0.05, cleanup=0.05)
    stream, place = await open_stream(server)
    await server.request("POST", place, INITIALIZE)
    await server.request("POST", place, call(1, "stubborn"))
    await until(lambda: stubborn.is_running)

    await server.stop()
    messages = await stream.messages()

    assert json.loads(messages[1]["result"]["content"][0]["text"])["error"]["code"] == "cancelled"


async def test_at_the_end_those_who_listen_are_answered_and_who_waits_for_an_answer_keeps_nobody(serve: Any) -> None:
    @tool
    async def ask(call: Call) -> Any:
        """Ask a person."""
        return await call.ask({"type": "object", "properties": {}}, "Sure?")

    said: dict[str, Any] = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {"elicitation": {}}}
    listen: dict[str, Any] = {"notifications": {"toolsListChanged": True}, "_meta": said}
    server = await serve(Yard(tools=[ask]), transport="sse", shutdown_seconds=1000)
    stream, place = await open_stream(server)
    await server.request("POST", place, {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": listen})
    assert (await stream.message())["method"] == "notifications/subscriptions/acknowledged"
    asking: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "ask", "arguments": {}, "_meta": said},
    }
    await server.request("POST", place, asking)
    assert (await stream.message())["result"]["resultType"] == "input_required"

    await server.stop()

    assert [message["id"] for message in await stream.messages()] == [1]


async def test_it_is_said_to_be_deprecated(serve: Any, caplog: Any) -> None:
    server = await serve(transport="sse")
    await open_stream(server)

    assert "transport_deprecated" in caplog.text


async def test_one_answer_always_fits_however_long_it_is(serve: Any) -> None:
    server = await serve(transport="sse", message_bytes=250)
    stream, place = await open_stream(server)
    await server.request("POST", place, INITIALIZE)
    await stream.message()

    for number in (1, 2):
        await server.request("POST", place, {"jsonrpc": "2.0", "id": number, "method": "tools/list"})
        answer = await stream.message()
        assert len(json.dumps(answer)) > 1000
        assert answer["id"] == number


async def test_a_client_that_never_reads_costs_little_and_keeps_nobody_waiting(
    serve: Any, gates: "Gates", until: Any, memory: Any
) -> None:
    server = await serve(transport="sse", message_bytes=100_000)
    deaf, place = await open_stream(server)
    stream, other = await open_stream(server)
    await server.request("POST", place, INITIALIZE)
    await server.request("POST", other, INITIALIZE)
    await stream.message()
    before = memory()
    await server.request("POST", place, call(1, "tell", {"count": 10_000, "size": 10_000}))
    deaf.writer.transport.pause_reading()
    await until(lambda: gates.running)
    gates.go.set()

    await server.request("POST", other, call(2, "add", {"a": 1, "b": 2}))
    answer = await stream.message()
    await until(lambda: len(server.records) == 2)

    assert answer["id"] == 2
    assert memory() - before < 40_000_000


def test_a_public_address_needs_a_guard_here_too() -> None:
    with pytest.raises(ValueError, match="can be reached from other machines"):
        make_transport(Serving(transport="sse", host="0.0.0.0", port=0))  # noqa: S104 - that is the point
