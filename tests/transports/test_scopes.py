"""Callers without credentials are separate: by MCP session or connection, or by names that cannot be guessed."""

import asyncio
import json
from typing import Any

import pytest

from callyard import Call, Limits, Yard, tool
from callyard.dispatch.call import ANYONE, SHARED, Caller
from callyard.dispatch.sessions import SHARED_OWNER
from callyard.server.context import own_scope
from callyard.transports.auth import ApiKey, ApiKeys, digest_of
from callyard.transports.http import sessions as http_sessions


@tool
async def much() -> str:
    """Return more than is sent."""
    return "x" * 1000


@tool(operation="query")
async def length(text: str) -> int:
    """Return the length of a text."""
    return len(text)


@tool
async def begin(call: Call) -> str:
    """Start a session."""
    return call.start_session().id


@tool(session="required")
async def use(call: Call, session_id: str | None = None) -> str:
    """Use a session."""
    assert call.session is not None
    return call.session.id


@tool(session="optional")
async def finish(call: Call, session_id: str | None = None) -> bool:
    """End a session."""
    return await call.end_session(session_id)


TOOLS = [much, length, begin, use, finish]


def crowd() -> Yard:
    """Return a yard whose results are soon too long."""
    return Yard(tools=TOOLS, limits=Limits(result_characters=100))


async def in_session(session: Any, name: str, arguments: object = None) -> Any:
    """Return the envelope of a call in a session."""
    return (await (await session.call(name, arguments)).reply()).json["result"]["structuredContent"]


async def test_two_sessions_over_http_see_nothing_of_each_other(serve: Any) -> None:
    server = await serve(yard=crowd())
    first, second = await server.greet(), await server.greet()

    handle = (await in_session(first, "much"))["data"]["handle"]
    mine = await in_session(first, "length", {"text": {"$ref": handle}})
    taken = await in_session(second, "length", {"text": {"$ref": handle}})
    session_id = (await in_session(first, "begin"))["data"]
    implied = await in_session(first, "use")
    strange = await in_session(second, "use")
    named = await in_session(second, "use", {"session_id": session_id})

    assert (mine["data"], implied["data"]) == (1000, session_id)
    assert taken["error"]["code"] == "invalid_input"
    assert [answer["error"]["code"] for answer in (strange, named)] == ["not_running"] * 2
    assert [answer["error"]["details"]["available_sessions"] for answer in (strange, named)] == [[], []]


async def test_without_a_session_handles_and_session_ids_cannot_be_guessed(serve: Any) -> None:
    server = await serve(yard=crowd())

    handles = [(await server.ask("much")).data["handle"] for _ in range(3)]
    used = await server.ask("length", {"text": {"$ref": handles[0]}})
    session_id = (await server.ask("begin")).data
    implied = (await server.ask("use")).json["result"]["structuredContent"]
    named = await server.ask("use", {"session_id": session_id})
    ended = await server.ask("finish", {"session_id": session_id})

    assert len(set(handles)) == 3
    assert all(len(handle) == len("r_") + 16 for handle in handles)
    assert (used.data, named.data, ended.data) == (1000, session_id, True)
    assert (implied["error"]["code"], implied["error"]["details"]["available_sessions"]) == ("not_running", [])


async def test_a_stranger_does_not_push_out_the_results_of_others(serve: Any) -> None:
    server = await serve(yard=Yard(tools=TOOLS, limits=Limits(result_characters=100, stored_results=2)))
    session = await server.greet()
    mine = (await in_session(session, "much"))["data"]["handle"]
    first = (await server.ask("much")).data["handle"]

    for _ in range(5):
        await server.ask("much")

    assert (await in_session(session, "length", {"text": {"$ref": mine}}))["data"] == 1000
    assert (await server.ask("length", {"text": {"$ref": first}})).data == 1000


async def test_the_connection_on_stdio_is_the_scope(program: Any) -> None:
    source = (
        "from callyard import Call, Yard, serve, tool\n\n@tool\nasync def who(call: Call) -> str:\n    'Say.'\n"
        "    return call.caller.scope\n\nserve(Yard(tools=[who]), transport='stdio')\n"
    )
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "who", "_meta": meta},
    }
    scopes: list[str] = []
    for _ in range(2):
        running = await program(source)
        await running.write(message, {**message, "id": 2})
        scopes += [json.loads(await running.line())["result"]["structuredContent"]["data"] for _ in range(2)]
        await running.end()

    assert scopes[0] == scopes[1] != scopes[2] == scopes[3]
    assert all(scopes)


async def test_one_caller_cannot_take_the_sessions_of_all(serve: Any) -> None:
    server = await serve(yard=Yard(tools=TOOLS, limits=Limits(caller_sessions=2)))
    first, second = await server.greet(), await server.greet()

    answers = [await in_session(first, "begin") for _ in range(3)]
    other = await in_session(second, "begin")

    assert [answer["success"] for answer in answers] == [True, True, False]
    assert answers[2]["error"]["code"] == "overloaded"
    assert other["success"]


@pytest.mark.parametrize("caller", [Caller(identity="ada"), Caller(scope="mine")])
def test_a_caller_with_an_identity_or_a_scope_keeps_it(caller: Caller) -> None:
    assert own_scope(caller) is caller


def test_each_connection_without_either_has_a_scope_of_its_own() -> None:
    scopes = {own_scope(caller).scope for caller in (ANYONE, ANYONE, SHARED, SHARED)}

    assert len(scopes) == 4
    assert scopes.isdisjoint({ANYONE.scope, SHARED.scope})
    assert SHARED.owner == SHARED_OWNER


class Browsers:
    """Tools that hold something open in a session, and note its end."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.go = asyncio.Event()

    @tool
    async def launch(self, call: Call, name: str, outlives: bool = False) -> str:  # noqa: FBT001, FBT002 - an argument on the wire
        """Start a session."""
        session = call.start_session(outlives_client=outlives)
        session.on_end(lambda: self.ended.append(name))
        return session.id

    @tool(job="always")
    async def crawl(self, call: Call) -> None:
        """Launch two sessions, the second one after the client has gone, and use the first one until then."""
        call.start_session().on_end(lambda: self.ended.append("first of the job"))
        await self.go.wait()
        assert self.ended == ["of the client"]
        call.start_session().on_end(lambda: self.ended.append("second of the job"))

    def yard(self) -> Yard:
        """Return a yard with these tools."""
        return Yard(tools=[self.launch, self.crawl, use])


async def test_tool_sessions_end_with_the_mcp_session_that_owns_them(
    serve: Any, until: Any, monkeypatch: pytest.MonkeyPatch, spy: Any
) -> None:
    monkeypatch.setattr(http_sessions, "_SWEEP_SECONDS", 0.01)
    touched = spy(http_sessions.HttpSession, "touch")
    browsers = Browsers()
    server = await serve(yard=browsers.yard(), session_timeout=1000)
    deletes, stays, expires = [await server.greet() for _ in range(3)]
    for name, session in (("deleted", deletes), ("stays", stays), ("expired", expires)):
        await in_session(session, "launch", {"name": name})
        await in_session(session, "launch", {"name": f"{name}, outlives", "outlives": True})
    await server.ask("launch", {"name": "stateless"})

    assert (await server.request("DELETE", "/mcp", Mcp_Session_Id=deletes.id)).status == 200
    await until(lambda: browsers.ended == ["deleted"])
    for session in touched:
        if session.id == expires.id:
            session._used_at -= 2000
    await until(lambda: len(browsers.ended) == 2)

    assert browsers.ended == ["deleted", "expired"]
    assert len(server.yard.sessions) == 5


async def test_a_dropped_stream_is_no_departure(serve: Any, until: Any, spy: Any) -> None:
    detached = spy(http_sessions.HttpSession, "detach")
    browsers = Browsers()
    server = await serve(yard=browsers.yard())
    session = await server.greet()
    stream = await session.stream()
    await stream.head()
    started = (await in_session(session, "launch", {"name": "of the client"}))["data"]

    await stream.close()
    await until(lambda: any(stream.number == 0 for stream in detached))
    implied = await in_session(session, "use")

    assert (implied["data"], browsers.ended) == (started, [])


async def test_tool_sessions_of_an_identity_do_not_end_with_its_mcp_session(serve: Any) -> None:
    server = await serve(yard=Browsers().yard(), authenticator=ApiKeys([ApiKey("ci", digest_of("cy_k"))]))
    first, second = [await server.greet(Authorization="Bearer cy_k") for _ in range(2)]
    started = (await in_session(first, "launch", {"name": "of ci"}))["data"]

    gone = await server.request("DELETE", "/mcp", Mcp_Session_Id=first.id, Authorization="Bearer cy_k")
    implied = await in_session(second, "use")

    assert (gone.status, implied["data"]) == (200, started)


async def test_tool_sessions_end_with_the_sse_connection_also_those_that_a_job_uses(serve: Any, until: Any) -> None:
    browsers = Browsers()
    server = await serve(yard=browsers.yard(), transport="sse")
    stream = await server.send("GET", "/sse", {"Accept": "text/event-stream", "Content-Type": None})
    await stream.head()
    place = (await stream.event())["data"]
    hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await server.request("POST", place, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello})
    for name, arguments in (("launch", {"name": "of the client"}), ("crawl", {})):
        params = {"name": name, "arguments": arguments}
        await server.request("POST", place, {"jsonrpc": "2.0", "id": name, "method": "tools/call", "params": params})
    answers = [await stream.message() for _ in range(3)]
    await until(lambda: len(server.yard.sessions) == 2)

    await stream.close()
    await until(lambda: browsers.ended)
    browsers.go.set()
    await until(lambda: len(browsers.ended) == 3)

    assert [answer["id"] for answer in answers] == [0, "launch", "crawl"]
    assert sorted(browsers.ended[1:]) == ["first of the job", "second of the job"]
    assert len(server.yard.sessions) == 0
