"""Sessions of older clients: how they begin, whose they are, and how they end."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import pytest

from callyard import Call, Yard, asgi, tool
from callyard.transports.auth import ApiKey, ApiKeys, digest_of
from callyard.transports.http import sessions as http_sessions
from callyard.transports.http.sessions import Stream

if TYPE_CHECKING:
    from tests.transports.conftest import Gates


HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}
BOTH = "application/json, text/event-stream"
INITIALIZE: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_handshake_begins_a_session_that_later_requests_name(serve: Any, version: str) -> None:
    server = await serve()

    session = await server.greet(version)
    reply = await (await session.call("add", {"a": 1, "b": 2})).reply()

    assert session.greeting.json["result"]["protocolVersion"] == version
    assert len(session.id) == 32
    assert reply.headers["content-type"] == "application/json"
    assert '"data":3' in reply.json["result"]["content"][0]["text"]


async def test_two_sessions_have_different_ids_and_each_its_own_requests(serve: Any, gates: "Gates") -> None:
    server = await serve()
    first, second = await server.greet(), await server.greet()

    one, two = await first.call("wait", id=1), await second.call("wait", id=1)
    gates.go.set()

    assert first.id != second.id
    assert ((await one.reply()).data, (await two.reply()).data) == ("done", "done")


async def test_a_handshake_that_is_wrong_begins_none(serve: Any) -> None:
    server = await serve()

    reply = await server.request("POST", "/mcp", {**INITIALIZE, "params": {"capabilities": {}}})

    assert reply.error == -32602
    assert "mcp-session-id" not in reply.headers


async def test_a_request_without_a_session_is_refused_with_that_reason(serve: Any) -> None:
    server = await serve()

    for message in (
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ):
        reply = await server.request("POST", "/mcp", message, MCP_Protocol_Version="2025-11-25")
        assert reply.status == 400
        assert b"Mcp-Session-Id" in reply.body


async def test_a_session_that_is_not_known_is_404_in_every_way(serve: Any) -> None:
    server = await serve()

    for method, message in (
        ("POST", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        ("GET", None),
        ("DELETE", None),
    ):
        for made_up in ("0" * 32, "x", "\u00e9", "../../etc/passwd"):
            reply = await server.request(method, "/mcp", message, Mcp_Session_Id=made_up)
            assert (method, made_up, reply.status) == (method, made_up, 404)


async def test_a_session_belongs_to_the_identity_that_began_it(serve: Any) -> None:
    authenticator = ApiKeys([ApiKey("ada", digest_of("cy_ada")), ApiKey("ben", digest_of("cy_ben"))])
    server = await serve(authenticator=authenticator)
    session = await server.greet(X_API_Key="cy_ada")

    for method in ("POST", "GET", "DELETE"):
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"} if method == "POST" else None
        reply = await server.request(method, "/mcp", message, Mcp_Session_Id=session.id, X_API_Key="cy_ben")
        assert (method, reply.status) == (method, 404)
    nameless = await server.request("DELETE", "/mcp", Mcp_Session_Id=session.id)

    assert nameless.status == 401
    assert (await session.ask("tools/list")).status == 200


async def test_a_session_that_was_deleted_is_gone(serve: Any) -> None:
    server = await serve()
    session = await server.greet()

    deleted = await server.request("DELETE", "/mcp", Mcp_Session_Id=session.id)

    assert (deleted.status, deleted.body) == (200, b"")
    assert (await session.ask("tools/list")).status == 404
    assert (await server.request("DELETE", "/mcp", Mcp_Session_Id=session.id)).status == 404


async def test_deleting_a_session_cancels_its_calls_and_ends_its_streams(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve(hold_back=0.0)
    session = await server.greet()
    stream, call = await session.stream(), await session.call("wait")
    await stream.head()
    assert (await call.head()).is_stream
    await until(lambda: gates.running)

    await server.request("DELETE", "/mcp", Mcp_Session_Id=session.id)

    (answer,) = await call.messages()
    assert (answer["id"], answer["result"]["structuredContent"]["error"]["code"]) == (1, "cancelled")
    assert await stream.messages() == []
    await until(lambda: server.records)
    assert (server.records[0].code, gates.running) == ("cancelled", 0)


@pytest.mark.parametrize("accept", [BOTH, "application/json"])
async def test_a_call_of_a_session_that_is_deleted_gets_an_answer(
    serve: Any, gates: "Gates", until: Any, accept: str
) -> None:
    server = await serve()
    session = await server.greet()
    call = await session.call("wait", id="mine", Accept=accept)
    await until(lambda: gates.running)

    await server.request("DELETE", "/mcp", Mcp_Session_Id=session.id)
    reply = await call.reply()

    failure = reply.json["result"]["structuredContent"]["error"]
    assert (reply.status, reply.json["id"], reply.json["result"]["isError"]) == (200, "mine", True)
    assert (failure["code"], failure["may_have_run"], failure["tool_id"]) == ("cancelled", True, "wait")


async def test_a_batch_of_a_session_that_is_deleted_gets_its_answers(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve()
    session = await server.greet("2025-03-26")
    wait: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}
    wire = await server.send(
        "POST", "/mcp", session.headers, [wait, {"jsonrpc": "2.0", "id": 2, "method": "ping"}, {**wait, "id": 3}]
    )
    await until(lambda: gates.running == 2)

    await server.request("DELETE", "/mcp", Mcp_Session_Id=session.id)
    answers = {answer["id"]: answer["result"] for answer in (await wire.reply()).json}

    assert answers.keys() == {1, 2, 3}
    assert {json.loads(answers[number]["content"][0]["text"])["error"]["code"] for number in (1, 3)} == {"cancelled"}


async def test_a_request_whose_session_is_deleted_before_it_begins_is_refused(tools: list[Any]) -> None:
    async def ask(app: Any, method: str, body: bytes, *headers: tuple[bytes, bytes]) -> list[Any]:
        came: asyncio.Queue[Any] = asyncio.Queue()
        came.put_nowait({"type": "http.request", "body": body, "more_body": False})
        sent: list[Any] = []
        usual = [(b"host", b"localhost"), (b"content-type", b"application/json"), *headers]
        scope = {"type": "http", "method": method, "path": "/mcp", "headers": usual, "query_string": b""}

        async def send(event: Any) -> None:
            sent.append(event)

        await app(scope, came.get, send)
        return sent

    async with Yard(tools=tools) as yard:
        app = asgi(yard)
        begun = await ask(app, "POST", json.dumps(INITIALIZE).encode())
        named = (b"mcp-session-id", dict(begun[0]["headers"])[b"mcp-session-id"])
        call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait"}}'
        sent, _ = await asyncio.gather(ask(app, "POST", call, named), ask(app, "DELETE", b"", named))

    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"])["error"]["code"] == -32600


async def test_an_idle_session_is_ended(serve: Any, monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any) -> None:
    monkeypatch.setattr(http_sessions, "_SWEEP_SECONDS", 0.01)
    ended, touched = spy(http_sessions.HttpSession, "close"), spy(http_sessions.HttpSession, "touch")
    server = await serve(session_timeout=1000)

    session = await server.greet()
    touched[0]._used_at -= 2000
    await until(lambda: ended)

    assert [one.id for one in ended] == [session.id]
    assert (await session.ask("tools/list")).status == 404


async def test_a_session_that_was_idle_for_too_long_is_gone_before_anybody_sweeps(serve: Any, spy: Any) -> None:
    touched = spy(http_sessions.HttpSession, "touch")
    server = await serve(session_timeout=1000)

    session = await server.greet()
    before = await session.ask("tools/list")
    touched[0]._used_at -= 2000

    assert (before.status, (await session.ask("tools/list")).status) == (200, 404)


async def test_a_session_is_not_idle_while_a_call_runs_or_somebody_listens(
    serve: Any, gates: "Gates", monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any
) -> None:
    monkeypatch.setattr(http_sessions, "_SWEEP_SECONDS", 0.01)
    swept = spy(http_sessions.HttpSession, "has_expired")
    server = await serve(session_timeout=1000)
    listens, works = await server.greet(), await server.greet()
    stream, call = await listens.stream(), await works.call("wait", Accept="application/json")
    await stream.head()
    await until(lambda: gates.running and len({one.id for one in swept}) == 2)
    for visit in swept:
        visit._used_at = -10_000.0
    swept.clear()

    await until(lambda: min(sum(one.id == session.id for one in swept) for session in (listens, works)) >= 20)
    gates.go.set()

    assert (await call.reply()).data == "done"
    assert stream.reader.at_eof() is False


async def test_a_session_that_is_never_to_end_stays(
    serve: Any, monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any
) -> None:
    monkeypatch.setattr(http_sessions, "_SWEEP_SECONDS", 0.01)
    swept = spy(http_sessions.HttpSession, "has_expired")
    server = await serve(session_timeout=0)
    session = await server.greet()

    await until(lambda: len(swept) >= 5)

    assert (await session.ask("tools/list")).status == 200


async def test_one_session_too_many_ends_the_one_that_was_idle_longest(serve: Any) -> None:
    server = await serve(sessions=2)
    first, second = await server.greet(), await server.greet()
    await first.ask("tools/list")

    third = await server.greet()

    assert (await second.ask("tools/list")).status == 404
    assert (await first.ask("tools/list")).status == (await third.ask("tools/list")).status == 200


async def test_when_no_session_is_idle_the_next_one_is_503(serve: Any) -> None:
    server = await serve(sessions=1)
    session = await server.greet()
    stream = await session.stream()
    await stream.head()

    refused = await server.request("POST", "/mcp", INITIALIZE)

    assert (refused.status, refused.json["id"], refused.error) == (503, 0, -32603)
    assert refused.headers["retry-after"] == "1"
    assert "'sessions'" in refused.json["error"]["message"]
    assert (await session.ask("tools/list")).status == 200


async def test_a_request_id_that_is_in_flight_is_not_run_twice(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve()
    session = await server.greet()
    first = await session.call("wait", id=7)
    await until(lambda: gates.running)

    again = await (await session.call("add", {"a": 1, "b": 2}, id=7)).reply()
    gates.go.set()

    assert (again.json["id"], again.error) == (None, -32600)
    assert (await first.reply()).data == "done"
    assert len(server.records) == 1


async def test_a_client_cancels_its_call_by_the_id(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve()
    session = await server.greet()
    wire = await session.call("wait", id="seven")
    await until(lambda: gates.running)

    noted = await session.note("notifications/cancelled", {"requestId": "seven", "reason": "enough"})
    await until(lambda: server.records)

    assert noted.status == 202
    assert (server.records[0].code, gates.running) == ("cancelled", 0)
    assert (await wire.reply()).body == b""


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26"])
async def test_a_batch_is_answered_as_one_where_the_version_has_batches(serve: Any, version: str) -> None:
    server = await serve()
    session = await server.greet(version)
    batch = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (1, 2)]
    batch.append({"jsonrpc": "2.0", "method": "notifications/nothing"})

    wire = await server.send("POST", "/mcp", session.headers, batch)
    reply = await wire.reply()

    assert reply.status == 200
    assert sorted(answer["id"] for answer in reply.json) == [1, 2]


async def test_each_message_of_a_batch_is_answered_for_itself(serve: Any) -> None:
    server = await serve()
    session = await server.greet("2025-03-26")
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    batch: list[dict[str, Any]] = [
        ping,
        {**ping, "jsonrpc": "1.0", "id": 2},
        {"jsonrpc": "2.0", "id": "nobody asked", "result": {}},
        ping,
    ]
    batch.append({**ping, "id": 3, "params": {"a": "\ud800"}})

    reply = await (await server.send("POST", "/mcp", session.headers, batch)).reply()

    outcomes = [(answer.get("id"), answer.get("error", {}).get("code")) for answer in reply.json]
    assert outcomes == [(1, None), (2, -32600), (None, -32600), (3, -32600)]


@pytest.mark.parametrize("stateless", [True, False])
async def test_a_batch_of_the_newer_era_is_refused_as_a_message(serve: Any, *, stateless: bool) -> None:
    server = await serve(stateless=stateless)
    batch = [{"jsonrpc": "2.0", "id": 1, "method": "ping"}]

    reply = await server.request("POST", "/mcp", batch, MCP_Protocol_Version="2026-07-28")
    unknown = await server.request("POST", "/mcp", batch, MCP_Protocol_Version="2020-01-01")

    assert (reply.status, reply.error) == (400, -32600)
    assert (unknown.status, unknown.error) == (400, -32022)


async def test_without_sessions_a_batch_is_answered_in_the_versions_that_have_it(serve: Any) -> None:
    server = await serve(stateless=True)
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    batch: list[dict[str, Any]] = [ping, {"jsonrpc": "2.0", "method": "notifications/initialized"}, {**ping, "id": 2}]

    for version in (None, "2025-03-26", "2024-11-05"):
        reply = await server.request("POST", "/mcp", batch, MCP_Protocol_Version=version)
        assert (reply.status, [answer["id"] for answer in reply.json]) == (200, [1, 2])
    refused = await server.request("POST", "/mcp", batch, MCP_Protocol_Version="2025-06-18")

    assert (refused.status, refused.error) == (400, -32600)


async def test_without_sessions_a_client_that_goes_cancels_its_batch(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(stateless=True)
    wait: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}
    wire = await server.send("POST", "/mcp", {}, [wait, {**wait, "id": 2}])
    await until(lambda: gates.running == 2)

    await wire.close()
    await until(lambda: len(server.records) == 2)

    assert [record.code for record in server.records] == ["cancelled", "cancelled"]


async def test_a_batch_that_another_server_cancels_ends_with_its_calls(
    tools: list[Any], gates: "Gates", until: Any
) -> None:
    came: asyncio.Queue[Any] = asyncio.Queue()
    batch = b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait"}}]'
    came.put_nowait({"type": "http.request", "body": batch, "more_body": False})
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "query_string": b""}
    async with Yard(tools=tools) as yard:
        working = asyncio.create_task(asgi(yard, stateless=True)(scope, came.get, came.put))
        await until(lambda: gates.running)

        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await until(lambda: not gates.running)


@pytest.mark.parametrize("stateless", [True, False])
async def test_a_call_in_a_batch_sees_the_headers_and_the_trace_of_its_request(serve: Any, *, stateless: bool) -> None:
    @tool
    def tell(call: Call) -> list[Any]:
        """Tell what came along."""
        return [dict(call.channel.headers), call.channel.trace_id]

    server = await serve(Yard(tools=[tell]), stateless=stateless, request_headers=["X-Team"])
    own: dict[str, Any] = {} if stateless else (await server.greet("2025-03-26")).headers
    headers = {**own, "X-Team": "red", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    batch = [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "tell"}}]

    reply = await (await server.send("POST", "/mcp", headers, batch)).reply()

    assert json.loads(reply.json[0]["result"]["content"][0]["text"])["data"] == [{"x-team": "red"}, "a" * 32]


async def test_a_batch_is_refused_where_the_version_has_none(serve: Any) -> None:
    server = await serve()
    session = await server.greet("2025-11-25")

    reply = await (
        await server.send("POST", "/mcp", session.headers, [{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
    ).reply()

    assert (reply.status, reply.error) == (400, -32600)


async def test_a_question_in_a_session_is_asked_on_the_stream_and_answered_by_a_post(serve: Any) -> None:
    from callyard import Call, Yard, tool  # noqa: PLC0415 - the only test that needs a tool of its own

    @tool
    async def greet(call: Call) -> str:
        """Greet."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        return f"Hello {(await call.ask(schema, 'Who?', key='who'))['name']}"

    server = await serve(Yard(tools=[greet]))
    session = await server.greet(capabilities={"elicitation": {}})
    wire = await session.call("greet", id=5)
    await wire.head()
    asked = await wire.message()

    result = {"action": "accept", "content": {"name": "Ada"}}
    answered = await (
        await server.send("POST", "/mcp", session.headers, {"jsonrpc": "2.0", "id": asked["id"], "result": result})
    ).reply()

    assert (asked["method"], answered.status) == ("elicitation/create", 202)
    assert (await wire.message())["result"]["structuredContent"]["data"] == "Hello Ada"


async def test_a_request_that_its_own_batch_cancels_is_not_run(serve: Any) -> None:
    server = await serve()
    session = await server.greet("2025-03-26")
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}

    reply = await (await server.send("POST", "/mcp", session.headers, [call, cancelled, ping])).reply()

    assert [answer["id"] for answer in reply.json] == [2]
    assert server.records == []


def _gap(dropped: int) -> bytes:
    return json.dumps({"dropped": dropped}).encode()


def _read(stream: Stream, after: int = 0) -> AsyncGenerator[bytes]:
    return stream.read(after, keep_alive=0, primed=False, report_gap=_gap)


def _said(event: bytes) -> Any:
    (line,) = (line for line in event.splitlines() if line.startswith(b"data: "))
    return json.loads(line.removeprefix(b"data: "))


async def test_a_message_during_a_write_is_given_before_the_end() -> None:
    stream = Stream(1, max_events=10, max_bytes=1000)
    stream.push(b"1")
    events = _read(stream)

    found = [_said(await anext(events))]
    stream.push(b"2")
    stream.finish(b"3")
    found += [_said(event) async for event in events]

    assert found == [1, 2, 3]
    assert stream.was_read


async def test_a_reader_that_is_hung_up_during_a_write_gets_the_messages_before() -> None:
    stream = Stream(1, max_events=10, max_bytes=1000)
    stream.push(b"1")
    events = _read(stream)

    found = [_said(await anext(events))]
    stream.push(b"2")
    stream.hang_up()
    found += [_said(event) async for event in events]

    assert found == [1, 2]
    assert not stream.was_read
    assert not stream.has_reader


async def test_a_reader_whose_stream_is_taken_over_is_given_nothing_more() -> None:
    stream = Stream(1, max_events=10, max_bytes=1000)
    for number in (b"1", b"2", b"3"):
        stream.push(number)
    older, newer = _read(stream), _read(stream, after=1)

    first = _said(await anext(older))
    second = _said(await anext(newer))
    rest = [_said(event) async for event in older]
    stream.finish(b"4")

    assert (first, second, rest) == (1, 2, [])
    assert stream.has_reader
    assert [_said(event) async for event in newer] == [3, 4]


async def test_a_reader_is_bounded_in_bytes_only_and_gets_the_number_of_dropped_messages() -> None:
    stream = Stream(1, max_events=2, max_bytes=10)
    stream.attached = 1
    for number in range(15):
        stream.push(b"%d" % (number % 10))
    stream.finish(b"7")

    assert [_said(event) async for event in _read(stream)] == [{"dropped": 6}, 6, 7, 8, 9, 0, 1, 2, 3, 4, 7]


async def test_when_the_last_one_leaves_only_so_many_are_kept() -> None:
    stream = Stream(1, max_events=2, max_bytes=1000)
    stream.attached = 2
    for number in range(5):
        stream.push(b"%d" % number)
    before = stream.size
    stream.detach()
    still = stream.size
    stream.detach()

    assert (before == still, stream.size < before) == (True, True)
    stream.finish(b"9")
    assert [_said(event) async for event in _read(stream)] == [{"dropped": 4}, 4, 9]


async def test_delivered_events_count_as_kept_for_a_reader_that_is_away() -> None:
    stream = Stream(1, max_events=2, max_bytes=1000)
    stream.attached = 1
    events = _read(stream)
    for number in range(5):
        stream.push(b"%d" % number)
        assert _said(await anext(events)) == number
    await events.aclose()

    stream.finish(b"9")
    assert [_said(event) async for event in _read(stream)] == [{"dropped": 4}, 4, 9]


async def test_a_stream_that_keeps_nothing_keeps_nothing() -> None:
    stream = Stream(1, max_events=0, max_bytes=1000)
    stream.finish(b"1")

    assert [event async for event in _read(stream)] == []


async def test_one_identity_cannot_push_out_the_sessions_of_another(serve: Any) -> None:
    authenticator = ApiKeys([ApiKey("ada", digest_of("cy_ada")), ApiKey("ben", digest_of("cy_ben"))])
    server = await serve(authenticator=authenticator, sessions=10, sessions_per_identity=4)
    first = await server.greet(X_API_Key="cy_ada")
    held = [await server.greet(X_API_Key="cy_ben") for _ in range(4)]
    streams = [await session.stream() for session in held]
    for stream in streams:
        assert (await stream.head()).status == 200

    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    refused = await server.request("POST", "/mcp", message, X_API_Key="cy_ben")

    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert (await first.ask("tools/list")).status == 200


async def test_when_all_sessions_are_taken_one_of_those_with_the_most_makes_room(serve: Any) -> None:
    authenticator = ApiKeys([ApiKey(name, digest_of(f"cy_{name}")) for name in ("ada", "ben", "eve")])
    server = await serve(authenticator=authenticator, sessions=4)
    first = await server.greet(X_API_Key="cy_ada")
    others = [await server.greet(X_API_Key="cy_ben") for _ in range(3)]

    await server.greet(X_API_Key="cy_eve")

    assert (await first.ask("tools/list")).status == 200
    assert [(await session.ask("tools/list")).status for session in others] == [404, 200, 200]
