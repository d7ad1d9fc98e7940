"""`callyard jobs`, and `callyard call --background`, at a real server."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]

YARD = """
import asyncio

from callyard import Call, ToolError, Yard, tool


@tool(operation="command")
async def add(a: int, b: int = 1) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b


@tool(operation="command")
async def refuse() -> None:
    \"\"\"Fail.\"\"\"
    raise ToolError("state_error", "Not now.")


@tool(operation="command")
async def wait(call: Call) -> None:
    \"\"\"Wait for ever.\"\"\"
    await call.progress(1, 2, "half")
    call.log("warning", "slow")
    await asyncio.Event().wait()


yard = Yard("jobs", tools=[add, refuse, wait])
"""


@pytest.fixture
def folder(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with a yard, and make it the current folder."""
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    write(YARD, "yard.py")
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Generator[str]:
    """Serve the yard over HTTP in the folder, and return its address."""
    program = [sys.executable, "-m", "callyard", "serve", str(folder / "yard.py"), "--transport", "http", "--port", "0"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=os.environ) as server:  # noqa: S603 - our own
        assert server.stderr is not None
        yield server.stderr.readline().rpartition("address=")[2].strip()
        server.terminate()


def started(callyard: Run, address: str, *call: str) -> str:
    """Start a job at the server, and return its id."""
    status, out, _ = callyard("call", address, *call, "--background", "--json")
    envelope = json.loads(out)
    assert (status, envelope["data"]["status"]) == (0, "working")
    return envelope["data"]["job_id"]


def shown(callyard: Run, *arguments: str) -> Any:
    """Return what `callyard jobs` prints as JSON."""
    status, out, _ = callyard("jobs", *arguments, "--json")
    assert status == 0
    return json.loads(out)


def test_a_job_is_started_at_a_server_and_waited_for(address: str, callyard: Run) -> None:
    job_id = started(callyard, address, "add", "a=2")
    job = shown(callyard, "wait", job_id)
    status, out, _ = callyard("jobs", "show", job_id)

    assert (job["status"], job["tool_id"], job["result"]["data"], job["identity"]) == ("completed", "add", 3, "local")
    assert status == 0
    assert [job_id in out, "completed" in out] == [True, True]


def test_the_jobs_of_a_project_are_listed_the_newest_first(address: str, callyard: Run) -> None:
    ids = [started(callyard, address, "add", f"a={number}") for number in range(3)]
    for job_id in ids:
        shown(callyard, "wait", job_id)
    status, out, _ = callyard("jobs")
    listed, first = shown(callyard), shown(callyard, "list", "--limit", "1")

    assert status == 0
    assert [job["job_id"] for job in listed] == ids[::-1]
    assert [job["job_id"] for job in first] == ids[-1:]
    assert [job_id in out for job_id in ids] == [True] * 3


def test_a_job_is_cancelled_from_another_process(address: str, callyard: Run) -> None:
    job_id = started(callyard, address, "wait")
    before = shown(callyard, "wait", job_id, "--timeout", "1.5")
    _, text, _ = callyard("jobs", "show", job_id)
    job = shown(callyard, "cancel", job_id)
    status, _, _ = callyard("jobs", "show", job_id)

    assert (before["status"], before["progress"]["text"], before["log"][0]["text"]) == ("working", "half", "slow")
    assert ["half" in text, "slow" in text] == [True, True]
    assert (job["status"], job["result"]["error"]["code"]) == ("cancelled", "cancelled")
    assert status != 0


def test_a_job_that_failed_fails_the_command_that_shows_it(address: str, callyard: Run) -> None:
    job_id = started(callyard, address, "refuse")
    status, out, _ = callyard("jobs", "wait", job_id)
    direct, _, _ = callyard("call", address, "refuse")

    assert (status, "state_error" in out) == (direct, True)


def test_a_job_is_still_there_after_its_server_has_ended(folder: Path, callyard: Run) -> None:
    program = [sys.executable, "-m", "callyard", "serve", "yard.py", "--transport", "http", "--port", "0"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=os.environ, cwd=folder) as server:  # noqa: S603 - our own
        assert server.stderr is not None
        address = server.stderr.readline().rpartition("address=")[2].strip()
        done, running = started(callyard, address, "add", "a=2"), started(callyard, address, "wait")
        shown(callyard, "wait", done)
        server.terminate()

    assert shown(callyard, "show", done)["result"]["data"] == 3
    lost = shown(callyard, "show", running)
    assert (lost["status"], lost["result"]["error"]["may_have_run"]) == ("interrupted", True)


def test_a_project_without_jobs_says_how_to_start_one(folder: Path, callyard: Run) -> None:
    status, out, err = callyard("jobs")

    assert (status, out) == (0, "")
    assert "--background" in err


@pytest.mark.parametrize("arguments", [["show", "j_1"], ["wait", "j_1"], ["cancel", "j_1"], ["show"]])
def test_a_job_that_does_not_exist_is_a_mistake(folder: Path, callyard: Run, arguments: list[str]) -> None:
    assert callyard("jobs", *arguments)[0] == 2


def test_a_store_in_memory_cannot_be_read_by_a_command(folder: Path, callyard: Run, write: Write) -> None:
    write('store = "memory"\n', "callyard.toml")
    status, _, err = callyard("jobs")

    assert status == 2
    assert "sqlite" in err


def test_a_store_that_cannot_be_used_is_named(folder: Path, callyard: Run, write: Write) -> None:
    (folder / "broken").write_bytes(b"no database" * 1000)
    write('store = "sqlite:broken"\n', "callyard.toml")
    status, _, err = callyard("jobs")

    assert status == 2
    assert "broken" in err


def test_a_job_needs_a_server_that_goes_on(folder: Path, callyard: Run) -> None:
    status, _, err = callyard("call", "yard.py", "add", "a=1", "--background")

    assert status == 2
    assert "URL" in err


def test_the_wrong_arguments_of_a_job_are_refused_at_once(address: str, callyard: Run) -> None:
    status, out, _ = callyard("call", address, "add", "a=x", "--background", "--json")

    assert status != 0
    assert json.loads(out)["error"]["code"] == "invalid_input"
