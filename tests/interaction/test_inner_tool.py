"""Policy, limits and records see the tool that a metatool runs, over every way in and at any depth."""

import asyncio
import http.client
import importlib.util
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from callyard import Serving, Yard
from callyard.launch.serve import serve_forever

HERE = Path(__file__).parent / "yard_with_a_policy.py"
OLD, MODERN = "2025-11-25", "2026-07-28"
CLIENT = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
HELLO: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": CLIENT}
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
ADD = {"tool_id": "add", "args": {"a": 1}}

Wrapped = tuple[str, dict[str, Any]]
WRAPS: dict[str, Callable[[str], Wrapped]] = {
    "run_tool": lambda name: ("run_tool", {"tool_id": name}),
    "call_tool": lambda name: ("call_tool", {"tool_id": name}),
    "run_chain": lambda name: ("run_chain", {"steps": [ADD, {"tool_id": name}]}),
    "parallel": lambda name: ("run_chain", {"steps": [{**ADD, "parallel": "p"}, {"tool_id": name, "parallel": "p"}]}),
    "a chain in a chain": lambda name: (
        "run_chain",
        {"steps": [ADD, {"tool_id": "run_chain", "args": {"steps": [{"tool_id": name}]}}]},
    ),
    "a chain in a tool": lambda name: (
        "run_tool",
        {"tool_id": "run_chain", "args": {"steps": [ADD, {"tool_id": name}]}},
    ),
}


def make_yard() -> Yard:
    spec = importlib.util.spec_from_file_location("yard_with_a_policy", HERE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.yard


def request(era: str, wrapped: Wrapped) -> dict[str, Any]:
    params: dict[str, Any] = {"name": wrapped[0], "arguments": wrapped[1], **({"_meta": META} if era == MODERN else {})}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def by_the_library(wrapped: Wrapped) -> Any:
    async with make_yard() as yard:
        return json.loads((await yard.call(*wrapped)).to_json())


async def by_the_command_line(wrapped: Wrapped) -> Any:
    command = [
        sys.executable,
        "-m",
        "callyard",
        "call",
        str(HERE),
        wrapped[0],
        json.dumps(wrapped[1]),
        "--json",
        "--quiet",
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    return json.loads(done.stdout)


async def by_stdio(wrapped: Wrapped, era: str) -> Any:
    messages = ([HELLO] if era == OLD else []) + [request(era, wrapped)]
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    command = [sys.executable, "-m", "callyard", "serve", str(HERE), "--quiet"]
    done = await asyncio.to_thread(subprocess.run, command, input=lines, capture_output=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return next(answer for answer in answers if answer["id"] == 1)["result"]["structuredContent"]


async def by_http(wrapped: Wrapped, era: str) -> Any:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Serving(transport="http", port=0, json_response=True)
    running = asyncio.create_task(
        serve_forever(make_yard(), serving, ready=lambda transport: ready.set_result(transport.info().address))
    )
    try:
        port = int((await ready).rpartition(":")[2].partition("/")[0])
        return (await asyncio.to_thread(post, port, wrapped, era))["result"]["structuredContent"]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def post(port: int, wrapped: Wrapped, era: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": era,
    }
    try:
        if era == OLD:
            connection.request("POST", "/mcp", json.dumps(HELLO), headers)
            answer = connection.getresponse()
            answer.read()
            headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
        else:
            headers |= {"Mcp-Method": "tools/call", "Mcp-Name": wrapped[0]}
        connection.request("POST", "/mcp", json.dumps(request(era, wrapped)), headers)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


WAYS_IN: dict[str, Callable[[Wrapped], Awaitable[Any]]] = {
    "library": by_the_library,
    "cli": by_the_command_line,
    "stdio, handshake": lambda wrapped: by_stdio(wrapped, OLD),
    "stdio, stateless": lambda wrapped: by_stdio(wrapped, MODERN),
    "http, handshake": lambda wrapped: by_http(wrapped, OLD),
    "http, stateless": lambda wrapped: by_http(wrapped, MODERN),
}
IN_PROCESS = ("library", "http, handshake", "http, stateless")
"""Ways in that start no process, tested with every wrapper; the others are tested with the deepest one."""
CASES = [(way_in, wrap) for way_in in WAYS_IN for wrap in WRAPS if way_in in IN_PROCESS or wrap == "a chain in a chain"]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that the yard writes to."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("NOTES", str(path))
    return path


def read(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in notes.read_text().splitlines()]


def innermost(error: dict[str, Any]) -> dict[str, Any]:
    """Return the failure that caused a chain to fail."""
    return innermost(error["details"]["cause"]) if error["code"] == "chain_step_failed" else error


@pytest.mark.parametrize(("name", "code"), [("wipe", "permission_denied"), ("wait", "timeout")])
@pytest.mark.parametrize(("way_in", "wrap"), CASES)
async def test_policy_limits_and_records_see_the_inner_tool(
    way_in: str, wrap: str, name: str, code: str, notes: Path
) -> None:
    answer = await WAYS_IN[way_in](WRAPS[wrap](name))

    written = read(notes)
    records = {note["id"]: note for note in written if "id" in note}
    inner = next(record for record in records.values() if record["tool"] == name)
    assert innermost(answer["error"])["code"] == inner["code"] == code
    assert {"ran": "wipe"} not in written
    line = [inner]
    while line[-1]["parent"] is not None:
        line.append(records[line[-1]["parent"]])
    assert [record["depth"] for record in line] == list(reversed(range(len(line))))
    assert line[-1]["tool"] in {"run_tool", "call_tool", "run_chain"}
    assert {record["channel"] for record in line} == {line[-1]["channel"]}
