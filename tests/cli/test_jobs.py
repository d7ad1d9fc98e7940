"""`callyard jobs`, and `callyard call --background`, at a real server."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from callyard import CODES
from callyard.launch.errors import WAITING

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


@tool(operation="query")
async def many() -> list[int]:
    \"\"\"Return many numbers.\"\"\"
    return list(range(20_000))


@tool(operation="command", job="always")
async def build(call: Call, parts: int = 2, fails: bool = False) -> str:
    \"\"\"Build something in parts.\"\"\"
    for part in range(parts):
        await call.progress(part + 1, parts, "built")
    if fails:
        raise ToolError("state_error", "Not now.")
    return "built"


@tool(operation="command", job="always")
async def wait_long() -> None:
    \"\"\"Wait for ever.\"\"\"
    await asyncio.Event().wait()


@tool(operation="command")
async def deploy() -> dict[str, str]:
    \"\"\"Start something elsewhere.\"\"\"
    return {"status": "working", "job_id": "elsewhere"}


@tool(operation="destroy")
async def wipe() -> str:
    \"\"\"Delete everything.\"\"\"
    return "wiped"


yard = Yard("jobs", tools=[many, add, refuse, wait, build, wait_long, deploy, wipe])
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


def test_a_result_that_a_server_keeps_is_read_there_by_its_handle(address: str, callyard: Run) -> None:
    stored = json.loads(callyard("call", address, "many", "--json")[1])["data"]
    status, out, _ = callyard("call", address, "read_result", f"handle={stored['handle']}", "limit=2", "--json")

    assert (status, json.loads(out)["data"]["value"]) == (0, [0, 1])


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


@pytest.mark.parametrize("is_served", [False, True])
def test_a_call_that_becomes_a_job_is_waited_for(address: str, callyard: Run, *, is_served: bool) -> None:
    target = address if is_served else "yard.py"
    done, out, err = callyard("call", target, "build", "--json")
    failed, failure, _ = callyard("call", target, "build", "fails=true", "--json")

    assert (done, json.loads(out)["data"]) == (0, "built")
    assert "2/2 built" in err
    assert (failed, json.loads(failure)["error"]["code"]) == (CODES["state_error"].exit, "state_error")


def interrupted(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command, and send it SIGINT once it waits for a job; return its status, the job and what it said."""
    program = [sys.executable, "-m", "callyard", "call", *arguments]
    with subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=folder) as command:  # noqa: S603 - our own
        assert command.stderr is not None
        try:
            line = next(line for line in command.stderr if "'j_" in line)
            command.send_signal(signal.SIGINT)
            _, said = command.communicate(timeout=60)
        finally:
            command.kill()
    return command.returncode, line.split("'")[1], said


def test_ctrl_c_leaves_a_job_at_its_server_and_says_its_id(address: str, folder: Path, callyard: Run) -> None:
    status, job_id, said = interrupted(folder, address, "wait_long")
    job = shown(callyard, "show", job_id)

    assert (status, job["status"], job_id in said) == (130, "working", True)


def test_ctrl_c_ends_a_job_that_only_the_command_runs(folder: Path) -> None:
    status, job_id, said = interrupted(folder, "yard.py", "wait_long")

    assert (status, job_id in said) == (130, True)


def test_a_call_that_waits_for_a_person_has_an_exit_status_of_its_own(
    folder: Path, write: Write, callyard: Run
) -> None:
    rule = '[[rules]]\ndecision = "ask"\noperations = ["destroy"]\n'
    write(f"{rule}[limits]\napproval_hold_s = 0\n", "callyard.toml")
    status, out, _ = callyard("call", "yard.py", "wipe")
    as_json, envelope, _ = callyard("call", "yard.py", "wipe", "--json")

    assert (status, as_json) == (WAITING, WAITING)
    assert not out.startswith("ok")
    assert json.loads(envelope)["data"]["status"] == "approval_required"


def test_a_call_that_waits_at_a_server_has_it_too(folder: Path, write: Write, callyard: Run) -> None:
    write("[limits]\napproval_hold_s = 0\n", "callyard.toml")
    program = [sys.executable, "-m", "callyard", "serve", "yard.py", "--transport", "http", "--port", "0"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=os.environ, cwd=folder) as server:  # noqa: S603 - our own
        assert server.stderr is not None
        address = server.stderr.readline().rpartition("address=")[2].strip()
        statuses = [callyard("call", address, name)[0] for name in ("wipe", "add")]
        server.terminate()

    assert statuses == [WAITING, CODES["invalid_input"].exit]


@pytest.mark.parametrize("is_served", [False, True])
def test_a_job_of_somebody_else_is_not_waited_for(address: str, callyard: Run, *, is_served: bool) -> None:
    status, out, _ = callyard("call", address if is_served else "yard.py", "deploy")

    assert (status, "elsewhere" in out) == (0, True)


def test_a_chain_that_waits_for_approval_goes_on_in_the_command_if_another_one_can_approve_it(
    folder: Path, write: Write, callyard: Run
) -> None:
    rule = '[[rules]]\ndecision = "ask"\noperations = ["destroy"]\n'
    write(f'store = "sqlite"\n{rule}[limits]\napproval_hold_s = 0\n', "callyard.toml")
    program = [sys.executable, "-m", "callyard", "call", "yard.py", "run_chain", '{"steps": [{"tool_id": "wipe"}]}']
    with subprocess.Popen(program, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder) as command:  # noqa: S603 - our own
        assert command.stderr is not None
        try:
            next(line for line in command.stderr if "'j_" in line)
            [approval] = json.loads(callyard("approvals", "--json")[1])
            approved = callyard("approvals", "approve", approval["approval_id"])[0]
            out, _ = command.communicate(timeout=60)
        finally:
            command.kill()

    assert (approved, command.returncode, "wiped" in out) == (0, 0, True)
