"""The same call gets the same answer over every way in."""

import asyncio
import http.client
import importlib.util
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard import Yard
from callyard.config.settings import Serving
from callyard.inject import Answer as InjectedAnswer
from callyard.inject import Conversation
from callyard.launch.serve import serve_forever
from callyard.state.sqlite import SqliteStore
from callyard.testing import connect
from callyard.transports.memory import Memory

HERE = Path(__file__).parent / "yard_for_every_way_in.py"
_spec = importlib.util.spec_from_file_location("yard_for_every_way_in", HERE)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
TOOLS: list[Any] = _module.TOOLS

Answer = dict[str, Any]


async def by_the_library(name: str, arguments: dict[str, Any]) -> Answer:
    async with Yard(tools=TOOLS) as yard:
        return json.loads((await yard.call(name, arguments)).to_json())


async def by_a_test_client(name: str, arguments: dict[str, Any]) -> Answer:
    async with connect(Yard(tools=TOOLS)) as client:
        return json.loads((await client.call(name, **arguments)).to_json())


async def by_injection(name: str, arguments: dict[str, Any]) -> Answer:
    async with Yard(tools=TOOLS) as yard:
        return json.loads(InjectedAnswer.of(await Conversation(yard).call(name, json.dumps(arguments))).text)


async def by_another_tool(name: str, arguments: dict[str, Any]) -> Answer:
    async with Yard(tools=TOOLS) as yard:
        return json.loads((await yard.call("pass_on", {"name": name, "arguments": arguments})).to_json())


async def by_a_yard_around_it(name: str, arguments: dict[str, Any]) -> Answer:
    async with Yard("outer", providers=[Yard("inner", tools=TOOLS)]) as yard:
        return json.loads((await yard.call(name, arguments)).to_json())


async def by_the_command_line(name: str, arguments: dict[str, Any]) -> Answer:
    command = [sys.executable, "-m", "callyard", "call", str(HERE), name, json.dumps(arguments), "--json", "--quiet"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    return json.loads(done.stdout)


OLD = "2025-11-25"
MODERN = "2026-07-28"
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


def request(era: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a call as a client of this protocol version sends it."""
    params: dict[str, Any] = {"name": name, "arguments": arguments}
    if era == MODERN:
        params["_meta"] = META
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def envelope_in(answer: Any) -> Answer:
    """Return the envelope of an answer, which has it as text and as structured content."""
    result = answer["result"]
    envelope = json.loads(result["content"][0]["text"])
    assert result["structuredContent"] == envelope
    assert result["isError"] is not envelope["success"]
    return envelope


async def by_memory(era: str, name: str, arguments: dict[str, Any]) -> Answer:
    async with Yard(tools=TOOLS) as yard, Memory().open(yard) as memory:
        for message in ([HELLO] if era == OLD else []) + [request(era, name, arguments)]:
            memory.send(json.dumps(message).encode())
        while (answer := json.loads(await memory.received.get()))["id"] != 1:
            continue
    return envelope_in(answer)


async def by_stdio(era: str, name: str, arguments: dict[str, Any]) -> Answer:
    messages = ([HELLO] if era == OLD else []) + [request(era, name, arguments)]
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    command = [sys.executable, "-m", "callyard", "serve", str(HERE), "--quiet"]
    done = await asyncio.to_thread(subprocess.run, command, input=lines, capture_output=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return envelope_in(next(answer for answer in answers if answer["id"] == 1))


@asynccontextmanager
async def served(yard: Yard | None = None, **settings: Any) -> AsyncGenerator[int]:
    """Serve the tools over HTTP, and return the port."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Serving(transport="http", port=0, **settings)
    running = asyncio.create_task(
        serve_forever(
            yard or Yard(tools=TOOLS), serving, ready=lambda transport: ready.set_result(transport.info().address)
        )
    )
    try:
        yield int((await ready).rpartition(":")[2].partition("/")[0])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def post(port: int, message: Any, headers: dict[str, str]) -> tuple[Any, str | None]:
    """Post a message, and return the last message of the response and the id of the session, if there is one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    sent = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
    connection.request("POST", "/mcp", json.dumps(message), sent)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.headers["Content-Type"] == "text/event-stream":
        body = [line for line in body.splitlines() if line.startswith(b"data: {")][-1].removeprefix(b"data: ")
    return json.loads(body), response.headers["Mcp-Session-Id"]


async def by_http(era: str, name: str, arguments: dict[str, Any], **settings: Any) -> Answer:
    async with served(**settings) as port:
        if era == MODERN:
            headers = {"MCP-Protocol-Version": era, "Mcp-Method": "tools/call", "Mcp-Name": name}
        else:
            _, session = await asyncio.to_thread(post, port, HELLO, {})
            headers = {"MCP-Protocol-Version": era} | ({} if session is None else {"Mcp-Session-Id": session})
        answer, _ = await asyncio.to_thread(post, port, request(era, name, arguments), headers)
    return envelope_in(answer)


WAYS_IN: dict[str, Callable[[str, dict[str, Any]], Awaitable[Answer]]] = {
    "library": by_the_library,
    "test client": by_a_test_client,
    "injection": by_injection,
    "another tool": by_another_tool,
    "outer yard": by_a_yard_around_it,
    "command line": by_the_command_line,
    "memory, handshake": partial(by_memory, OLD),
    "memory, stateless": partial(by_memory, MODERN),
    "stdio, handshake": partial(by_stdio, OLD),
    "stdio, stateless": partial(by_stdio, MODERN),
    "http, handshake": partial(by_http, OLD),
    "http, handshake without a session": partial(by_http, OLD, stateless=True),
    "http, stateless": partial(by_http, MODERN),
}
CALLS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "a valid call": ("add", {"a": 1, "b": 2}, None),
    "a call with a default": ("add", {"a": 1}, None),
    "a number as text": ("add", {"a": "1"}, None),
    "a wrong argument": ("add", {"a": 1, "bb": 2}, "invalid_input"),
    "several wrong arguments": ("add", {"x": [1]}, "invalid_input"),
    "a tool that does not exist": ("ad", {}, "tool_not_found"),
    "a failure of the tool's own": ("refuse", {}, "state_error"),
    "a defect": ("break_down", {}, "internal_error"),
    "a deadline": ("wait", {}, "timeout"),
    "a session that does not exist": ("look", {"session_id": "s_1"}, "not_running"),
    "no session": ("look", {}, "not_running"),
    "no result": ("say_nothing", {}, "invalid_output"),
    "a defect inside another call": ("run_tool", {"tool_id": "break_down"}, "internal_error"),
    "a description of a tool that does not exist": ("describe_tool", {"tool_id": "ad"}, "tool_not_found"),
    "a name that is similar to no tool": ("run_tool", {"tool_id": "zzzz"}, "tool_not_found"),
    "an argument too many": ("search_tools", {"query": "x", "foo": 1}, "invalid_input"),
}
REPORTED = ("internal_error", "invalid_output")


def comparable(answer: Answer) -> tuple[Answer, int]:
    """Return an answer and its tokens without the id of the failed call, which always differs."""
    error, tokens = answer["error"], answer["_meta"]["estimated_tokens"]
    if error is not None and error["code"] in REPORTED:
        error = {**error, "details": {**error["details"], "call_id": "c_"}}
        tokens = 0  # an id may be a digit shorter
    return {"success": answer["success"], "data": answer["data"], "error": error}, tokens


@pytest.mark.parametrize("way_in", WAYS_IN)
@every_row("what", CALLS)
async def test_the_same_call_gets_the_same_answer_over_every_way_in(what: str, way_in: str) -> None:
    name, arguments, code = CALLS[what]
    expected, answer = await by_the_library(name, arguments), await WAYS_IN[way_in](name, arguments)

    assert (answer["error"]["code"] if answer["error"] else None) == code
    assert comparable(answer) == comparable(expected)
    assert code not in REPORTED or answer["error"]["details"]["call_id"].startswith("c_")
    assert answer["_meta"].get("coerced") == expected["_meta"].get("coerced")
    assert "hunter2" not in json.dumps(answer)


@pytest.mark.parametrize("way_in", WAYS_IN)
async def test_a_job_is_started_and_waited_for_over_every_way_in(way_in: str) -> None:
    start = {"tool_id": "run_tool", "args": {"tool_id": "add", "args": {"a": 1}, "background": True}}
    wait = {"tool_id": "wait_job", "args": {"job_id": {"$from": 0, "path": "/job_id"}}}
    answer = await WAYS_IN[way_in]("run_chain", {"steps": [start, wait]})

    assert answer["data"]["results"][0]["data"]["status"] == "working"
    job = answer["data"]["final"]
    assert (job["status"], job["tool_id"], job["result"]["data"]) == ("completed", "add", 2)


@pytest.mark.parametrize("way_in", WAYS_IN)
async def test_a_tool_that_is_always_a_job_is_one_over_every_way_in(way_in: str) -> None:
    data = (await WAYS_IN[way_in]("take_long", {}))["data"]

    if way_in in {"another tool", "command line"}:  # inside another call it is an ordinary one; the other waits for it
        assert data == "at last"
    else:
        assert (data["status"], data["job_id"][:2], data["poll_after_ms"] > 0) == ("working", "j_", True)


async def test_a_task_is_followed_over_http_with_its_id_as_the_name_of_the_request() -> None:
    capabilities: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities}

    async def sent(port: int, method: str, params: dict[str, Any], name: str) -> Any:
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": name}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        return (await asyncio.to_thread(post, port, message, headers))[0]

    async with served() as port:
        task_id = (await sent(port, "tools/call", {"name": "take_long", "arguments": {}}, "take_long"))["result"][
            "taskId"
        ]
        wrong = (await sent(port, "tasks/get", {"taskId": task_id}, "j_other"))["error"]
        while (task := (await sent(port, "tasks/get", {"taskId": task_id}, task_id))["result"])["status"] == "working":
            pass
        cancelled = (await sent(port, "tasks/cancel", {"taskId": task_id}, task_id))["result"]

    assert wrong["code"] == -32020
    assert (task["status"], task["result"]["structuredContent"]["data"]) == ("completed", "at last")
    assert cancelled["resultType"] == "complete"


class Counting(SqliteStore):
    """A store that notes each use, apart from the regular looks at jobs that another process left and at incidents."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.used: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in {"used", "path", "close"} or not callable(found):
            return found

        def noted(*arguments: Any, **options: Any) -> Any:
            key = str(arguments[0]) if arguments else ""
            if not key.startswith(("job_running/", "incident", "silence/")):
                self.used.append(name)
            return found(*arguments, **options)

        return noted


@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_a_call_over_http_that_stores_nothing_does_not_touch_the_store(tmp_path: Path, era: str) -> None:
    store = Counting(tmp_path / "store.sqlite3")
    async with served(Yard(tools=TOOLS, store=store)) as port:
        headers = {"MCP-Protocol-Version": era}
        if era == MODERN:
            headers |= {"Mcp-Method": "tools/call", "Mcp-Name": "add"}
        else:
            _, session = await asyncio.to_thread(post, port, HELLO, {})
            headers |= {"Mcp-Session-Id": str(session)}
        opened = list(store.used)
        for _ in range(20):
            answer, _ = await asyncio.to_thread(post, port, request(era, "add", {"a": 1}), headers)
            assert envelope_in(answer)["data"] == 2
        used = store.used[len(opened) :]

    assert opened
    assert used == []


@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_a_defect_reported_over_http_is_found_in_the_log_by_its_call_id(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await by_http(era, "run_tool", {"tool_id": "break_down"})

    assert f"defect tool=break_down id={answer['error']['details']['call_id']} " in caplog.text
    assert f"id={answer['_meta']['call_id']} type" not in caplog.text
