"""What real clients stumble over, without the clients: each of these was seen to break one of them."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from table_tests import every_row

from callyard import Yard, tool
from callyard.config.settings import Serving
from callyard.transports.memory import Memory

TIMEOUT = 3.0
NEW = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": NEW,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "trap", "version": "1"},
}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "trap", "version": "1"}}
EVERYTHING = {"toolsListChanged": True, "promptsListChanged": True, "resourcesListChanged": True}


class Pipe:
    """A server on stdio, spoken to line by line."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._number = 0

    def say(self, method: str, params: dict[str, Any] | None = None, **extra: Any) -> None:
        assert self._process.stdin is not None
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}, **extra}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        self.say(method, params, id=self._number)
        answer = self.hear()
        assert answer["id"] == self._number
        return answer


@pytest.fixture
def start(yard_command: list[str]) -> Callable[..., Any]:
    @contextmanager
    def started(**settings: Any) -> Generator[Pipe]:
        command = [*yard_command[:-1], json.dumps(settings)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as process:  # noqa: S603 - our own
            try:
                yield Pipe(process)
                assert process.stdin is not None
                process.stdin.close()
                assert process.wait(60) == 0
            finally:
                process.kill()

    return started


def test_a_server_is_discovered_before_clients_give_up(start: Callable[..., Any]) -> None:
    """Claude Code falls back to the older era after three seconds."""
    before = time.monotonic()
    with start() as pipe:
        answer = pipe.ask("server/discover", {"_meta": META})
        took = time.monotonic() - before

    assert NEW in answer["result"]["supportedVersions"]
    assert took < TIMEOUT


def test_a_client_that_was_too_impatient_may_still_shake_hands(start: Callable[..., Any]) -> None:
    with start() as pipe:
        pipe.ask("server/discover", {"_meta": META})
        hello = pipe.ask("initialize", HELLO)
        pipe.say("notifications/initialized")
        called = pipe.ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}})

    assert hello["result"]["protocolVersion"] == "2025-11-25"
    assert "resultType" not in called["result"]
    assert called["result"]["structuredContent"]["data"] == 2


def test_a_client_that_shook_hands_may_still_discover(start: Callable[..., Any]) -> None:
    with start() as pipe:
        pipe.ask("initialize", HELLO)
        found = pipe.ask("server/discover", {"_meta": META})
        called = pipe.ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 1}, "_meta": META})

    assert NEW in found["result"]["supportedVersions"]
    assert called["result"]["resultType"] == "complete"


@pytest.mark.parametrize("on", [True, False])
def test_changes_are_advertised_exactly_when_somebody_tells_of_them(start: Callable[..., Any], on: bool) -> None:  # noqa: FBT001 - a parameter
    """Agent Framework dies of a listChanged without anybody to listen to."""
    with start(notify_changes=on) as pipe:
        new = pipe.ask("server/discover", {"_meta": META})["result"]["capabilities"]
        old = pipe.ask("initialize", HELLO)["result"]["capabilities"]
        pipe.say("notifications/initialized")
        pipe.say("subscriptions/listen", {"notifications": EVERYTHING, "_meta": META}, id="listen")
        acknowledged = pipe.hear()
        pipe.say("notifications/cancelled", {"requestId": "listen"})

    for capabilities in (old, new):
        assert [capabilities[kind].get("listChanged", False) for kind in ("tools", "prompts", "resources")] == [on] * 3
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"] == (EVERYTHING if on else {})


@pytest.mark.parametrize("meta", [None, META], ids=["older", "newer"])
def test_text_and_structured_content_are_the_same(start: Callable[..., Any], meta: Any) -> None:
    """Half of the clients show a model the text alone, the others the structured content alone."""
    with start() as pipe:
        if meta is None:
            pipe.ask("initialize", HELLO)
        extra = {} if meta is None else {"_meta": meta}
        calls: list[tuple[str, Any]] = [
            ("add", {"a": 1}),
            ("echo", {"text": "ä"}),
            ("add", {}),
            ("nothing", {}),
            ("fail", {}),
            ("crash", {}),
            ("paint", {}),
        ]
        answers = [
            pipe.ask("tools/call", {"name": name, "arguments": given, **extra})["result"] for name, given in calls
        ]

    for answer in answers:
        assert json.loads(answer["content"][0]["text"]) == answer["structuredContent"]
        assert answer["isError"] is not answer["structuredContent"]["success"]


def test_every_tool_has_a_description_and_the_schema_of_an_object(start: Callable[..., Any]) -> None:
    """Claude Code hides all tools of a server if one of them lacks it."""
    with start() as pipe:
        tools = pipe.ask("tools/list", {"_meta": META})["result"]["tools"]

    for one in tools:
        assert one["description"].strip()
        assert one["inputSchema"]["type"] == "object"
        assert "anyOf" not in one["inputSchema"]
        assert set(one["annotations"]) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}


LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


@tool
def only() -> None:
    """Be the only tool."""


@every_row("method", LISTS)
async def test_every_list_is_answered_even_if_there_is_nothing_on_it(method: str) -> None:
    async with Yard(tools=[only]) as yard, Memory(Serving()).open(yard) as memory:
        memory.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META}}).encode())
        new = json.loads(await memory.received.get())["result"]
        memory.send(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": HELLO}).encode())
        await memory.received.get()
        memory.send(json.dumps({"jsonrpc": "2.0", "id": 3, "method": method}).encode())
        old = json.loads(await memory.received.get())["result"]

    assert len(new[LISTS[method]]) == len(old[LISTS[method]]) == (method == "tools/list")
    assert (new["resultType"], new["cacheScope"]) == ("complete", "private")
    assert new["ttlMs"] >= 0
    assert "ttlMs" not in old


def test_a_call_may_carry_what_claude_code_puts_in(start: Callable[..., Any]) -> None:
    with start() as pipe:
        meta = {**META, "progressToken": 7, "claudecode/toolUseId": "toolu_1"}
        answer = pipe.ask("tools/call", {"name": "add", "arguments": {"a": 1}, "_meta": meta})

    assert answer["result"]["structuredContent"]["data"] == 2


async def test_a_newer_client_over_http_needs_no_session_and_opens_no_stream(url_of: Callable[..., str]) -> None:
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": NEW,
        "mcp-method": "tools/call",
        "mcp-name": "add",
    }
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "add", "arguments": {"a": 1}, "_meta": META},
    }
    async with httpx2.AsyncClient() as client:
        answer = await client.post(url_of(), json=body, headers=headers)
        stream = await client.get(url_of(), headers={"accept": "text/event-stream", "mcp-protocol-version": NEW})

    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert "mcp-session-id" not in answer.headers
    assert stream.status_code == 405
