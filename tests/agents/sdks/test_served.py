"""`callyard serve --agents` with the real SDK: the way of a message over HTTP, and what ends well."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from conftest import TIMEOUT, children, running

from callyard.inject.claude import claude_tool_name
from callyard.testing.models import ScriptedAnthropic, ToolUse, Turn

TOKEN = "a-token-for-this-test"  # noqa: S105 - no secret
ROOT = Path(__file__).parents[3]
BURN = ToolUse(claude_tool_name("burn"), {"what": "tea"})
YARD = '''
import asyncio
from callyard import Yard, tool

@tool(operation="destroy")
def burn(what: str) -> str:
    """Burn something."""
    return f"burnt {what}"

@tool(operation="query")
async def wait() -> None:
    """Wait until somebody cancels it."""
    await asyncio.Event().wait()

yard = Yard("shop", tools=[burn, wait])
'''


class Server:
    """A running server, and its client."""

    def __init__(self, client: Any, process: asyncio.subprocess.Process, model: ScriptedAnthropic) -> None:
        self.client, self.process, self.model = client, process, model

    async def send(self, session_id: str, content: str = "Go.") -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a message."""
        async with self.client.stream(
            "POST", f"/api/sessions/{session_id}/messages", json={"content": content}
        ) as response:
            assert response.status_code == 200
            async for event in read(response):
                yield event

    async def new_session(self) -> str:
        return (await self.client.post("/api/sessions", json={})).json()["id"]


async def read(response: Any) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def serving(folder: Path, script: Sequence[Turn]) -> AsyncGenerator[Server]:
    """Serve a yard with agents, as a person does."""
    (folder / "shop.py").write_text(YARD)
    with ScriptedAnthropic(script) as model:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(folder / "config"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "XDG_STATE_HOME": str(folder / "state"),
            "CALLYARD_CONSOLE_TOKEN": TOKEN,
        }
        command = [
            sys.executable,
            "-m",
            "callyard",
            "serve",
            "shop.py",
            "--transport",
            "http",
            "--port",
            "0",
            "--agents",
        ]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=environment, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(TIMEOUT):
                url = await listening(process)
                async with import_module("httpx").AsyncClient(
                    base_url=url, trust_env=False, timeout=TIMEOUT, headers={"Authorization": f"Bearer {TOKEN}"}
                ) as client:
                    yield Server(client, process, model)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


async def listening(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async for line in process.stderr:
        if b"address=" in line:
            return line.decode().partition("address=")[2].split()[0].removesuffix("/mcp")
    raise AssertionError("The server did not start.")


async def test_a_call_is_approved_over_http_and_its_result_is_in_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path, [["I burn it.", BURN], "Done.", "Again."]) as server:
        session_id = await server.new_session()
        events: list[dict[str, Any]] = []
        async for event in server.send(session_id):
            events.append(event)
            if event["type"] == "approval_required":
                listed = (await server.client.get("/api/interactions")).json()["interactions"]
                assert [one["interaction_id"] for one in listed] == [event["interaction_id"]]
                path = f"/api/interactions/{event['interaction_id']}/approve"
                assert (await server.client.post(path, json={"reason": "Go on."})).status_code == 200
        session = (await server.client.get(f"/api/sessions/{session_id}")).json()
        again = [event async for event in server.send(session_id, "Again.")]

    kinds = [event["type"] for event in events if not event["type"].endswith("_delta")]
    order = ["tool_call_start", "tool_call_end", "approval_required", "approval_resolved", "tool_result", "done"]
    assert kinds == order
    assert json.loads(events[kinds_index(events, "tool_result")]["text"])["data"] == "burnt tea"
    assert (session["running"], session["turns"], session["interactions"]) == (False, 1, [])
    assert [event["text"] for event in again if event["type"] == "text_delta"] == ["Again."]


def kinds_index(events: list[dict[str, Any]], kind: str) -> int:
    return next(number for number, event in enumerate(events) if event["type"] == kind)


async def test_a_session_goes_on_after_the_server_restarts(tmp_path: Path) -> None:
    script = ["First.", "Second."]
    async with serving(tmp_path, script) as server:
        session_id = await server.new_session()
        _ = [event async for event in server.send(session_id)]
    async with serving(tmp_path, script) as server:
        again = [event async for event in server.send(session_id, "Again.")]
        resumed = json.dumps(server.model.requests[-1]["messages"])

    assert [event["text"] for event in again if event["type"] == "text_delta"] == ["Second."]
    assert "First." in resumed


async def test_a_client_that_goes_away_finds_the_turn_again(tmp_path: Path) -> None:
    async with serving(tmp_path, [BURN, "Done."]) as server:
        session_id = await server.new_session()
        async for event in server.send(session_id):
            if event["type"] == "approval_required":
                break  # the connection is closed here
        session = (await server.client.get(f"/api/sessions/{session_id}")).json()
        [pending] = session["interactions"]
        assert (session["running"], pending["state"], pending["tool"]) == (True, "waiting", "burn")
        await server.client.post(f"/api/interactions/{pending['interaction_id']}/approve", json={})
        async with server.client.stream("GET", f"/api/sessions/{session_id}/events") as response:
            events = [event async for event in read(response)]

    assert (events[0]["type"], events[-1]) == ("tool_call_start", {**events[-1], "type": "done", "status": "completed"})


async def test_a_server_that_shuts_down_says_so_and_leaves_no_process(tmp_path: Path) -> None:
    async with serving(tmp_path, [ToolUse(claude_tool_name("wait")), "Never."]) as server:
        session_id = await server.new_session()
        inner: set[int] = set()
        events: list[dict[str, Any]] = []
        async for event in server.send(session_id):
            events.append(event)
            if event["type"] == "approval_required":
                inner = set(children(server.process.pid))
                await server.client.post(f"/api/interactions/{event['interaction_id']}/approve", json={})
            elif event["type"] == "approval_resolved":
                server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0

    assert [event["type"] for event in events[-2:]] == ["error", "done"]
    assert (events[-2]["code"], events[-1]["status"]) == ("cancelled", "cancelled")
    assert inner
    assert not inner & set(running())


async def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(YARD)
    command = [
        sys.executable,
        "-m",
        "callyard",
        "serve",
        "shop.py",
        "--transport",
        "http",
        "--agents",
        "--agents-roots",
        "none",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_STATE_HOME": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=environment, stderr=asyncio.subprocess.PIPE
    )

    _, said = await process.communicate()

    assert (process.returncode, b"no folder" in said) == (2, True)
