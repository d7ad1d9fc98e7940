"""Which request is answered how: what is refused before it is read, and what a message that is none is told."""

from typing import TYPE_CHECKING, Any

import pytest

from callyard import Call, Yard, resource, tool
from callyard.transports.http.protocol import Connection

if TYPE_CHECKING:
    from tests.transports.conftest import Gates, Reply

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
BROKEN = (
    (b"", -32700),
    (b"{", -32700),
    (b"\xff\xfe", -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping"} x', -32700),
    (b"null", -32600),
    (b"[]", -32600),
    (b'"text"', -32600),
    (b'{"jsonrpc":"2.0","id":1}', -32600),
    (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
    (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
    (rb'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\ud800"}}', -32600),
    (b"[" * 10_000, -32700),
    (b'{"a":' * 10_000, -32700),
    (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001, -32700),
)


async def test_health_and_readiness_are_public(serve: Any) -> None:
    server = await serve()

    health = await server.request("GET", "/healthz", Host="anything.example", Accept=None, Content_Type=None)
    ready = await server.request("GET", "/readyz", Host="anything.example", Accept=None, Content_Type=None)

    assert (health.status, health.json) == (200, {"status": "ok"})
    assert (ready.status, ready.json) == (200, {"status": "ok"})


async def test_a_missing_path_is_404(serve: Any) -> None:
    server = await serve()

    for path in ("/", "/sse", "/messages", "/mcpx", "//mcp", "/mcp/nobody", "/%2e%2e/mcp", "/.well-known/x"):
        reply = await server.request("POST", path, PING)
        assert (path, reply.status) == (path, 404)
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"


async def test_an_unsupported_method_is_405_with_the_supported_ones(serve: Any) -> None:
    server = await serve()

    for method in ("PUT", "PATCH", "OPTIONS", "TRACE"):
        reply = await server.request(method, "/mcp")
        assert (method, reply.status, reply.headers["allow"]) == (method, 405, "POST, GET, DELETE")


async def test_the_newer_era_only_posts(serve: Any) -> None:
    server = await serve()

    for method in ("GET", "DELETE"):
        for headers in ({}, {"Mcp_Session_Id": "x", "Last_Event_ID": "1-1"}):
            reply = await server.request(method, "/mcp", MCP_Protocol_Version="2026-07-28", **headers)
            assert (method, reply.status, reply.headers.get("allow")) == (method, 405, "POST")


async def test_a_stateless_server_only_takes_posts(serve: Any) -> None:
    server = await serve(stateless=True)

    for method in ("GET", "DELETE"):
        reply = await server.request(method, "/mcp")
        assert (method, reply.status, reply.headers.get("allow")) == (method, 405, "POST")
        assert reply.body == b"Only POST is allowed here.\n"


async def test_a_body_that_is_not_said_to_be_json_is_415(serve: Any) -> None:
    server = await serve()

    for kind in (
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "application/json-patch+json",
    ):
        reply = await server.request("POST", "/mcp", PING, Content_Type=kind)
        assert (kind, reply.status) == (kind, 415)


async def test_a_body_that_is_said_to_be_json_is_read(serve: Any) -> None:
    server = await serve()

    for kind in (
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
    ):
        reply = await server.ask("add", {"a": 1, "b": 1}, headers={"Content-Type": kind})
        assert (kind, reply.data) == (kind, 2)


async def test_a_client_that_takes_neither_json_nor_events_is_406(serve: Any) -> None:
    server = await serve()

    for accept in ("text/html", "image/*", "application/xml"):
        reply = await server.request("POST", "/mcp", PING, Accept=accept)
        assert (accept, reply.status) == (accept, 406)


async def test_a_client_does_not_get_a_type_of_weight_zero(serve: Any) -> None:
    server = await serve()

    for accept in (
        "application/json, text/event-stream;q=0",
        "application/json, text/event-stream; charset=utf-8; Q = 0.00",
    ):
        reply = await server.ask("chatter", headers={"Accept": accept}, token="t")  # noqa: S106 - a progress token
        assert (accept, reply.is_stream, reply.data) == (accept, False, "said")
    weighed = await server.call("chatter", headers={"Accept": "application/json, text/event-stream;q=0.01"}, token="t")  # noqa: S106 - the same
    refused = await server.request("POST", "/mcp", PING, Accept="application/json;q=0")

    assert (await weighed.head()).is_stream
    assert refused.status == 406


async def test_a_client_that_takes_json_is_answered_with_it(serve: Any) -> None:
    server = await serve()

    for accept in (None, "*/*", "application/json", "Application/JSON", "application/*", "text/html, */*;q=0.1"):
        reply = await server.ask("chatter", headers={"Accept": accept}, token="t")  # noqa: S106 - a progress token
        assert (accept, reply.status, reply.headers["content-type"]) == (accept, 200, "application/json")
        assert reply.data == "said"


async def test_a_client_that_takes_events_alone_gets_its_answer_as_one(serve: Any) -> None:
    server = await serve()
    session = await server.greet(Accept="text/event-stream")

    wires = [
        await server.call("add", {"a": 1, "b": 2}, headers={"Accept": "Text/Event-Stream"}),
        await session.call("add", {"a": 1, "b": 2}),
    ]
    for reply in [await wire.reply() for wire in wires]:
        assert (reply.status, reply.is_stream, reply.body.startswith(b"event: message\r\ndata: {")) == (200, True, True)
    broken = await server.request("POST", "/mcp", b"{", Accept="text/event-stream")
    noted = await session.note("notifications/initialized")

    assert session.greeting.is_stream
    assert (broken.status, broken.headers["content-type"], noted.status) == (400, "application/json", 202)


async def test_a_client_that_takes_events_alone_gets_json_where_nothing_else_is_served(serve: Any) -> None:
    server = await serve(json_response=True)

    assert (await server.ask("add", {"a": 1, "b": 2}, headers={"Accept": "text/event-stream"})).data == 3


async def test_a_stream_is_not_opened_for_who_does_not_take_events(serve: Any) -> None:
    server = await serve()
    session = await server.greet()

    assert (await server.request("GET", "/mcp", Mcp_Session_Id=session.id, Accept="application/json")).status == 406


async def test_a_body_that_is_no_message_is_400_with_a_fault(serve: Any) -> None:
    server = await serve()

    for body, code in BROKEN:
        for version in (None, "2025-11-25", "2026-07-28"):
            reply = await server.request("POST", "/mcp", body, MCP_Protocol_Version=version)
            assert (body[:40], version, reply.status, reply.error) == (body[:40], version, 400, code)
            assert reply.headers["content-type"] == "application/json"


async def test_a_request_that_is_none_is_answered_under_its_id(serve: Any) -> None:
    server = await serve()

    assert (await server.request("POST", "/mcp", b'{"jsonrpc":"2.0","id":"seven","method":7}')).json["id"] == "seven"
    half = rb'{"jsonrpc":"2.0","id":"seven","method":"ping","params":{"a":"\ud800"}}'
    for version in (None, "2025-11-25", "2026-07-28"):
        assert (await server.request("POST", "/mcp", half, MCP_Protocol_Version=version)).json["id"] == "seven"


async def test_an_unsupported_version_is_refused_with_the_supported_ones(serve: Any) -> None:
    server = await serve()
    session = await server.greet()

    for version in ("2024-01-01", "latest", "", "2026-07-28, 2025-11-25"):
        session.headers["MCP-Protocol-Version"] = version
        reply = await session.ask("tools/list")
        assert (version, reply.status, reply.error) == (version, 400, -32022)
        assert {"2026-07-28", "2025-03-26"} <= set(reply.json["error"]["data"]["supported"])


async def test_an_unknown_method_is_404_in_the_newer_era_and_200_in_a_session(serve: Any) -> None:
    server = await serve()
    session = await server.greet()

    newer = await (await server.modern("no/such")).reply()
    older = await session.ask("no/such")

    assert (newer.status, newer.error, older.status, older.error) == (404, -32601, 200, -32601)


async def test_an_unknown_tool_is_an_envelope_and_no_fault(serve: Any) -> None:
    server = await serve()

    reply = await server.ask("no_such_tool")

    assert reply.status == 200
    assert reply.json["result"]["isError"] is True
    assert reply.json["result"]["structuredContent"]["error"]["code"] == "tool_not_found"


@pytest.mark.parametrize("settings", [{}, {"stateless": True}])
async def test_a_notification_of_the_newer_era_is_202(serve: Any, settings: dict[str, Any]) -> None:
    server = await serve(**settings)
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}

    reply = await server.request("POST", "/mcp", note, MCP_Protocol_Version="2026-07-28")

    assert (reply.status, reply.body) == (202, b"")


async def test_a_stateless_server_answers_older_clients_without_a_session(serve: Any) -> None:
    server = await serve(stateless=True)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}

    greeting = await server.request(
        "POST", "/mcp", {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    )
    noted = await server.request("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"})
    listed = await server.request("POST", "/mcp", LIST, MCP_Protocol_Version="2025-06-18", Mcp_Session_Id="whatever")

    assert "mcp-session-id" not in greeting.headers
    assert greeting.json["result"]["protocolVersion"] == "2025-06-18"
    assert noted.status == 202
    assert "add" in {known["name"] for known in listed.json["result"]["tools"]}


async def test_a_stateless_server_tells_older_clients_nothing_of_its_log(serve: Any, gates: "Gates") -> None:
    server = await serve(stateless=True)
    gates.go.set()
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}

    async def ask(method: str, params: object) -> "Reply":
        return await server.request(
            "POST",
            "/mcp",
            {"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
            MCP_Protocol_Version="2025-11-25",
        )

    greeting = await ask("initialize", hello)
    level = await ask("logging/setLevel", {"level": "debug"})
    reply = await ask("tools/call", {"name": "tell", "arguments": {"count": 2}})

    assert "logging" not in greeting.json["result"]["capabilities"]
    assert level.error == -32601
    assert reply.data == "told"
    assert not reply.is_stream


@pytest.mark.parametrize("token", [None, "t"])
async def test_a_stateless_server_says_that_it_cannot_ask_older_clients(serve: Any, token: str | None) -> None:
    @tool
    async def ask(call: Call) -> object:
        """Ask."""
        return await call.ask({"type": "object", "properties": {}}, "Sure?")

    @resource("a://asks")
    async def asks(call: Call) -> object:
        """Ask."""
        return await call.ask({"type": "object", "properties": {}}, "Sure?")

    server = await serve(Yard(tools=[ask], resources=[asks]), stateless=True)
    meta = {"progressToken": token} if token else {}
    older = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ask", "_meta": meta}}
    read = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "a://asks", "_meta": meta}}

    called = (await server.request("POST", "/mcp", older, MCP_Protocol_Version="2025-11-25")).json["result"][
        "structuredContent"
    ]["error"]
    fault = (await server.request("POST", "/mcp", read, MCP_Protocol_Version="2025-11-25")).json["error"]["data"][
        "error"
    ]
    newer = (await server.ask("ask", token=token)).json["error"]

    assert all((reply["code"], reply["details"]) == ("not_supported", {}) for reply in (called, fault))
    assert all("stateless" in reply["message"] for reply in (called, fault))
    assert newer["data"]["requiredCapabilities"] == {"elicitation": {}}


async def test_several_requests_on_one_connection_are_answered_in_their_order(serve: Any) -> None:
    server = await serve()
    wire = await server.connect()
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\n"
    )
    head += "Mcp-Method: tools/call\r\n"
    body = (
        '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"add","arguments":{"a":%d,"b":1},"_meta":'
        '{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}'
    )
    bodies = [body % (number, number) for number in range(50)]

    await wire.write(
        "".join(f"{head}Mcp-Name: add\r\nContent-Length: {len(one)}\r\n\r\n{one}" for one in bodies).encode()
    )
    replies = [await wire.reply() for _ in bodies]

    assert [(reply.json["id"], reply.data) for reply in replies] == [(number, number + 1) for number in range(50)]


async def test_bytes_that_are_no_http_are_400_and_close_the_connection(serve: Any) -> None:
    server = await serve()
    wire = await server.connect()

    await wire.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 GET nothing\r\n\r\n")

    assert (await wire.reply()).status == 400
    assert await wire.ends() == b""


async def test_the_server_does_not_say_what_it_is_made_of(serve: Any) -> None:
    server = await serve()

    assert "server" not in (await server.request("GET", "/healthz")).headers


async def test_a_client_that_would_rather_speak_http_2_is_answered_in_http_1(serve: Any) -> None:
    server = await serve()
    wanted = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAARAAAAAAAIAAAAA"}

    assert (await server.ask("add", {"a": 1, "b": 2}, headers=wanted)).data == 3


async def test_an_upgrade_header_may_come_in_any_two_pieces(serve: Any, spy: Any, until: Any) -> None:
    pieces = spy(Connection, "data_received")
    server = await serve()
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUPGRADE: h2c\r\nX: y\r\n\r\n"

    for cut in range(1, len(head)):
        wire = await server.connect()
        await wire.write(head[:cut])
        await until(lambda: pieces)
        pieces.clear()
        await wire.write(head[cut:])
        assert (cut, (await wire.reply()).json) == (cut, {"status": "ok"})
        pieces.clear()


async def test_a_request_before_a_change_of_protocol_is_answered(serve: Any) -> None:
    server = await serve()
    wire = await server.connect()

    await wire.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n\x16\x03\x01 nonsense\r\n\r\n")

    assert (await wire.reply()).json == {"status": "ok"}
    assert await wire.ends() == b""


async def test_a_client_that_expects_100_continue_gets_it(serve: Any) -> None:
    server = await serve()
    wire = await server.connect()
    body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}'
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"

    await wire.write(head + b"Content-Length: %d\r\n\r\n" % len(body))
    reply = await wire.head()
    await wire.write(body)

    assert (reply.status, (await wire.reply()).status) == (100, 200)


async def test_an_answer_to_head_has_no_body(serve: Any) -> None:
    server = await serve()
    wire = await server.connect()
    ask = "{} /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

    await wire.write((ask.format("HEAD") + ask.format("GET")).encode())
    first, second = await wire.head(), await wire.reply()

    assert (first.status, first.headers["content-length"]) == (200, "15")
    assert second.json == {"status": "ok"}


async def test_a_client_of_http_1_0_gets_its_events_without_chunks(serve: Any) -> None:
    server = await serve()
    wire = await server.connect()
    params = (
        '{"name":"chatter","arguments":{},"_meta":{"progressToken":1,'
        '"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}'
    )
    body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
    head = (
        "POST /mcp HTTP/1.0\r\nHost: localhost\r\nAccept: application/json, text/event-stream\r\nContent-Type: "
        "application/json\r\n"
        "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: chatter\r\n"
    )

    await wire.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    said = await wire.ends()

    assert b"chunked" not in said
    assert said.partition(b"\r\n\r\n")[2].startswith(b"event: message\r\n")


async def test_a_whole_address_may_stand_in_the_place_of_a_path(serve: Any) -> None:
    server = await serve()

    assert (await server.request("GET", f"http://{server.host}/healthz")).status == 200


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_whole_address_that_makes_no_sense_is_400(serve: Any, transport: str, caplog: Any) -> None:
    server = await serve(transport=transport)
    caplog.clear()

    assert (await server.request("POST", "http://[", PING)).status == 400
    assert caplog.text == ""


async def test_a_stateless_server_tells_resources_and_prompts_their_trace(serve: Any) -> None:
    traces: list[str | None] = []

    @resource("a://b")
    def page(call: Call) -> str:
        """Return a page."""
        traces.append(call.channel.trace_id)
        return "text"

    server = await serve(Yard(resources=[page]), stateless=True)
    read = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "a://b"}}
    trace = "a" * 32

    await server.request(
        "POST", "/mcp", read, MCP_Protocol_Version="2025-06-18", traceparent=f"00-{trace}-b7ad6b7169203331-01"
    )

    assert traces == [trace]
