"""`callyard disable` and `callyard enable`, with a served yard and with commands of the same project."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]

YARD = """
from callyard import Call, Yard, tool

@tool(operation="query", aliases=("look",))
def find(words: str = "") -> str:
    "Find things."
    return f"found {words}"

@tool(operation="destroy")
def burn(name: str) -> str:
    "Burn things."
    return f"burnt {name}"

yard = Yard("bin", tools=[find, burn], packs=["system"])
"""
SERVER = """
import sys
from callyard.cli import main
sys.exit(main(["serve", "--transport", "http", "--port", "0"]))
"""
SETTINGS = """
target = "yard.py"
[monitor]
audit_log = "audit.jsonl"
[upstreams.github]
command = "none"
enabled = false
"""
VERSION = "2026-07-28"


@pytest.fixture
def folder(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with a yard, and make it the current folder."""
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    write(YARD, "yard.py")
    write(SETTINGS, "callyard.toml")
    return tmp_path


@pytest.fixture
def run(in_process: Callable[..., subprocess.CompletedProcess[str]]) -> Run:
    """Return what runs a command in a process of its own, and returns its status and what it wrote."""

    def run(*arguments: str) -> tuple[int, str, str]:
        done = in_process(*arguments)
        return done.returncode, done.stdout, done.stderr

    return run


def envelope(done: tuple[int, str, str]) -> Any:
    return json.loads(done[1])


def test_a_command_disables_lists_and_enables(folder: Path, callyard: Run) -> None:
    assert callyard("disable", "--json")[:2] == (0, "[]\n")
    assert callyard("disable")[:2] == (0, "")
    status, out, _ = callyard("disable", "github", "--for", "1h", "--reason", "It is wrong.", "--json")
    switch = json.loads(out)
    listed = json.loads(callyard("disable", "--json")[1])
    shown = callyard("disable", "find")[1], callyard("disable")[1]
    enabled = [callyard("enable", name)[0] for name in ("github", "find")]
    again = callyard("enable", "github", "--json")
    audit = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]

    assert status == 0
    assert (switch["target"], switch["reason"]) == ("github", "It is wrong.")
    assert switch["by"].startswith("user:")
    assert switch["until"] - switch["at"] == pytest.approx(3600, abs=0.01)
    assert listed == [switch]
    assert [text.count("\n") for text in shown] == [1, 2]
    assert enabled == [0, 0]
    assert again[0] == 2
    assert [line["event"] for line in audit] == ["disabled", "disabled", "enabled", "enabled"]


def test_a_wrong_command_line_is_refused(folder: Path, callyard: Run) -> None:
    for arguments in (["--for", "1h"], ["--reason", "x"], ["a", "--for", "soon"], ["a", "--for", "0"], ["a b"]):
        assert callyard("disable", *arguments)[0] == 2, arguments
    assert callyard("enable")[0] == 2
    assert callyard("disable", "githup")[2].count("github") == 1  # a likely misspelling
    assert callyard("disable", "github")[2].count("github") == 0


def test_times_have_units(folder: Path, callyard: Run) -> None:
    for text, seconds in {"90": 90, "90s": 90, "1.5m": 90, "1h": 3600, "2d": 172_800}.items():
        switch = json.loads(callyard("disable", "find", "--for", text, "--json")[1])
        assert switch["until"] - switch["at"] == pytest.approx(seconds, abs=0.01), text


def test_state_in_memory_is_refused(folder: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STORE", "memory")

    assert callyard("disable", "find")[0] == 2
    assert callyard("call", "callyard.toml", "find", "--json")[0] == 0


def test_commands_of_the_project_obey_and_those_of_another_do_not(folder: Path, run: Run, write: Write) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "yard.py").write_text(YARD)
    (elsewhere / "callyard.toml").write_text('target = "yard.py"\n')
    run("disable", "find", "--reason", "It is wrong.")
    here = [run("call", "callyard.toml", name, "--json") for name in ("find", "look")]
    there = run("call", str(elsewhere / "callyard.toml"), "find", "--json")
    listed = run("list", "--json")[1]

    for done in here:
        assert done[0] == 15
        assert envelope(done)["error"]["details"]["reason"] == "disabled"
    assert envelope(there)["data"] == "found "
    assert [tool["name"] for tool in json.loads(listed) if tool["name"] in {"find", "burn"}] == ["burn"]
    assert not list((folder / "state" / "projects").glob("elsewhere*/store*"))


async def test_a_served_yard_follows_a_command_and_keeps_it_over_a_restart(
    folder: Path, run: Run, program: Callable[..., Any], until: Callable[[Callable[[], object]], Any]
) -> None:
    async def served() -> tuple[Any, str]:
        server = await program(SERVER)
        line = await server.said(b"address=")
        return server, line.decode().rpartition("address=")[2].strip()

    async def call(address: str, name: str) -> Any:
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": dict[str, Any](),
        }
        params = {"name": name, "arguments": dict[str, Any](), "_meta": meta}
        headers = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": name}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
            headers["Accept"] = "application/json, text/event-stream"
            response = await client.post(address, json=message, headers=headers)
        return response.json()["result"]["structuredContent"]

    async def follows(address: str, *, disabled: bool) -> None:
        async with asyncio.timeout(60):
            while (await call(address, "ping"))["success"] is disabled:
                pass

    server, address = await served()
    await follows(address, disabled=False)
    assert run("disable", "system", "--for", "2h")[0] == 0
    await follows(address, disabled=True)
    found = await call(address, "find")
    server.process.terminate()
    await server.end()
    server, address = await served()
    refused = await call(address, "ping")
    assert run("enable", "system")[0] == 0
    await follows(address, disabled=False)

    assert found["success"]
    assert refused["error"]["code"] == "tool_not_found"
    assert refused["error"]["details"]["reason"] == "disabled"
