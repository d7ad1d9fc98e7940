"""Programs whose calls wait for a person, over every way into a served yard, and their state after a kill."""

import asyncio
import http.client
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from backends import descendants, require

from callyard import SqliteStore
from callyard.policy.approvals import Approvals

HERE = Path(__file__).parent / "yard_with_programs.py"
OLD, MODERN = "2025-11-25", "2026-07-28"
PROGRAM = "await tools.shop.look()\nawait tools.shop.wipe(name='a')"
Message = dict[str, Any]


@pytest.fixture(autouse=True)
async def bubblewrap() -> None:
    await require("bubblewrap")


class Client:
    """A client of one protocol version; a subclass knows the transport."""

    def __init__(self, era: str, capabilities: Message) -> None:
        self.era = era
        self.capabilities = capabilities
        self.hello: Message = {
            "protocolVersion": OLD,
            "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"},
        }
        prefix = "io.modelcontextprotocol"
        self.meta: Message = {f"{prefix}/protocolVersion": MODERN, f"{prefix}/clientCapabilities": capabilities}
        self._number = 0

    async def call(self, name: str, arguments: Message, **params: Any) -> Message:
        """Return the result of a tool call."""
        self._number += 1
        params = {
            "name": name,
            "arguments": arguments,
            **params,
            **({"_meta": self.meta} if self.era == MODERN else {}),
        }
        message: Message = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        return (await self.exchange(message))["result"]

    async def data(self, name: str, arguments: Message) -> Any:
        """Return the data of a tool call that goes well."""
        envelope = (await self.call(name, arguments))["structuredContent"]
        assert envelope["success"], envelope
        return envelope["data"]

    async def exchange(self, message: Message) -> Message:
        """Send a request and return its response."""
        raise NotImplementedError


class StdioClient(Client):
    """A client at the pipes of a server."""

    process: asyncio.subprocess.Process

    async def exchange(self, message: Message) -> Message:
        """Send a request, answer questions with yes, and return the response."""
        reader, writer = self.process.stdout, self.process.stdin
        assert reader is not None
        assert writer is not None
        writer.write(json.dumps(message).encode() + b"\n")
        while True:
            answer = json.loads(await reader.readline())
            if answer.get("method") == "elicitation/create":
                accepted: Message = {
                    "jsonrpc": "2.0",
                    "id": answer["id"],
                    "result": {"action": "accept", "content": {}},
                }
                writer.write(json.dumps(accepted).encode() + b"\n")
            elif answer.get("id") == message["id"]:
                return answer


class HttpClient(Client):
    """A client that posts to a server."""

    port = 0
    session = ""
    process_id = 0

    async def exchange(self, message: Message) -> Message:
        """Post a request and return the response."""
        return await asyncio.to_thread(self._post, message)

    def _post(self, message: Message) -> Message:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": self.era,
        }
        if self.era == MODERN:
            headers |= {"Mcp-Method": message["method"], "Mcp-Name": message["params"]["name"]}
        elif self.session:
            headers["Mcp-Session-Id"] = self.session
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/mcp", json.dumps(message), headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        self.session = response.headers.get("Mcp-Session-Id") or self.session
        if response.headers["Content-Type"] == "text/event-stream":
            body = [line for line in body.splitlines() if line.startswith(b"data: {")][-1].removeprefix(b"data: ")
        return json.loads(body)


@asynccontextmanager
async def served(*options: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Serve the yard in a process of its own."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "callyard", "serve", str(HERE), "--quiet", *options)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@asynccontextmanager
async def by_stdio(era: str, **capabilities: Any) -> AsyncGenerator[Client]:
    async with served() as process:
        client = StdioClient(era, capabilities)
        client.process = process
        if era == OLD:
            await client.exchange({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client.hello})
        yield client


@asynccontextmanager
async def by_http(era: str, port: int = 0, **capabilities: Any) -> AsyncGenerator[HttpClient]:
    client = HttpClient(era, capabilities)
    client.port = port or free_port()
    async with served("--transport", "http", "--port", str(client.port)) as process:
        client.process_id = process.pid
        await listening(client.port)
        if era == OLD:
            await client.exchange({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client.hello})
        yield client


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def listening(port: int) -> None:
    """Wait until a server accepts connections."""
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)  # nothing tells when another process listens
            else:
                writer.close()
                return


WAYS_IN: dict[str, Callable[[], AbstractAsyncContextManager[Client]]] = {
    "stdio, handshake": lambda: by_stdio(OLD),
    "stdio, stateless": lambda: by_stdio(MODERN),
    "http, handshake": lambda: by_http(OLD),
    "http, stateless": lambda: by_http(MODERN),
}


class Project:
    """The files of a served yard: its store, and what its tools did."""

    def __init__(self, folder: Path) -> None:
        self._notes, self.store = folder / "notes", folder / "store"
        self._notes.touch()

    def ran(self) -> list[str]:
        return self._notes.read_text().splitlines()

    async def decide(self, approval_id: str, decision: Any) -> None:
        store = SqliteStore(self.store)
        await Approvals(store).decide(approval_id, decision, by="user:test")
        await store.close()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    return Project(tmp_path)


@pytest.mark.parametrize("way_in", WAYS_IN)
@pytest.mark.parametrize(
    ("decision", "code", "ran"), [("approve", None, ["looked", "wiped a"]), ("deny", "code_error", ["looked"])]
)
async def test_a_held_program_is_a_job_over_every_way_in(
    way_in: str, decision: str, code: str | None, ran: list[str], project: Project
) -> None:
    async with WAYS_IN[way_in]() as client:
        held = await client.data("execute_code", {"code": PROGRAM})
        assert held["status"] == "working"
        await project.decide(held["approval_id"], decision)
        job = await client.data("wait_job", {"job_id": held["job_id"]})
    result = job["result"]
    assert job["status"] == "completed"
    if code is None:
        assert result["data"]["value"] == "wiped a"
    else:
        assert (result["error"]["code"], result["error"]["details"]["tool_error"]["code"]) == (code, "approval_denied")
    assert project.ran() == ran


async def test_a_held_program_is_a_task_for_a_client_that_takes_tasks(project: Project) -> None:
    extension = "io.modelcontextprotocol/tasks"
    async with by_stdio(MODERN, extensions={extension: {}}) as client:
        created = await client.call("execute_code", {"code": PROGRAM})
        job = (await client.call("get_job", {"job_id": created["taskId"]}))["structuredContent"]["data"]
        await client.call("cancel_job", {"job_id": created["taskId"]})
    assert created["status"] == "working"
    assert job["tool_id"] == "execute_code"
    assert project.ran() == ["looked"]


async def test_a_person_at_a_client_with_a_handshake_approves_a_call(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLD", "60")
    async with by_stdio(OLD, elicitation={}) as client:
        answer = await client.data("execute_code", {"code": PROGRAM})
    assert answer["value"] == "wiped a"
    assert project.ran() == ["looked", "wiped a"]


async def test_a_person_at_a_stateless_client_approves_a_call(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLD", "60")
    async with by_http(MODERN, elicitation={}) as client:
        asked = await client.call("execute_code", {"code": PROGRAM})
        responses: Message = {key: {"action": "accept", "content": {}} for key in asked["inputRequests"]}
        more = {"requestState": asked["requestState"], "inputResponses": responses}
        answer = (await client.call("execute_code", {"code": PROGRAM}, **more))["structuredContent"]
    assert answer["data"]["value"] == "wiped a"
    assert project.ran() == ["looked", "wiped a"]  # the program ran once, though the client sent its call twice


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_sigkill_of_a_server_leaves_no_waiting_guest_and_its_job_is_interrupted(project: Project) -> None:
    port = free_port()
    async with by_http(MODERN, port) as client:
        held = await client.data("execute_code", {"code": PROGRAM})
        guests = descendants(client.process_id)
        assert guests
        os.kill(client.process_id, signal.SIGKILL)
        async with asyncio.timeout(60):
            while any(map(is_alive, guests)):  # noqa: ASYNC110 - they are no children of ours
                await asyncio.sleep(0.02)
    async with by_http(MODERN, port) as client:
        await project.decide(held["approval_id"], "approve")
        async with asyncio.timeout(60):
            while (await client.data("get_job", {"job_id": held["job_id"]}))["status"] == "working":  # noqa: ASYNC110 - until a lease ends
                await asyncio.sleep(0.5)
        job = await client.data("get_job", {"job_id": held["job_id"]})
    assert job["status"] == "interrupted"
    assert job["result"]["error"]["may_have_run"]
    assert job["result"]["data"]["calls"][0]["tool"] == "look"
    assert project.ran() == ["looked"]
