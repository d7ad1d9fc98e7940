"""`callyard settle`, and what `add`, `import` and the start say: only a person at a terminal says what tools do."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callyard.cli import main
from callyard.providers.upstream.pins import parse_lock

Run = Callable[..., tuple[int, str, str]]
SERVER = Path(__file__).parents[1] / "providers" / "upstream" / "servers" / "silent_server.py"
NAMES = ("get_issue", "list_issues", "delete_issue", "frobnicate")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Return the command of a server whose tools have no hints."""
    tools: list[dict[str, Any]] = [
        {"name": name, "description": name, "inputSchema": {"type": "object"}} for name in NAMES
    ]
    tools.append({**tools[0], "name": "hinted", "annotations": {"readOnlyHint": True}})
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    return [sys.executable, "-I", str(SERVER), str(tmp_path / "tools.json"), str(tmp_path / "calls")]


@pytest.fixture
def file(write: Callable[..., Path], command: list[str]) -> Path:
    """Write a 'callyard.toml' with that server."""
    program, *arguments = command
    table = f"[upstreams.gh]\ncommand = {json.dumps(program)}\nargs = {json.dumps(arguments)}\n"
    return write(f'state_dir = "state"\n{table}', "callyard.toml")


def at_a_terminal(answer: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run a command in a terminal at which a person gives an answer, and return its status and what it printed."""
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", "import sys; from callyard.cli import main; sys.exit(main())", *arguments]
    os.write(ours, answer.encode())
    with subprocess.Popen(  # noqa: S603 - our own
        program, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb", **environment}
    ) as process:
        os.close(theirs)
        sent = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # how a terminal says that its other side is closed
                break
            if not piece:
                break
            sent += piece
    os.close(ours)
    return process.returncode, sent.decode()


def settled(lock: str = "callyard.lock") -> dict[str, str | None]:
    """Return what the lock says of each tool of the server."""
    path = Path(lock)
    pins = parse_lock(path, path.read_bytes() if path.exists() else b"")
    return {key.name: pin.operation for key, pin in pins.get("gh", {}).items() if pin.operation}


PROPOSED = {"get_issue": "query", "list_issues": "query", "delete_issue": "destroy", "frobnicate": "command"}


@pytest.mark.usefixtures("file")
def test_a_person_at_a_terminal_is_asked_once_for_the_server_and_what_they_accept_is_in_the_lock() -> None:
    status, shown = at_a_terminal("y\n", "settle", "gh")
    again = at_a_terminal("", "settle")

    assert status == 0, shown
    assert shown.count("accept?") == 1
    assert "2 read, 1 change, 1 destroy" in shown
    assert "hinted" not in shown
    assert settled() == PROPOSED
    assert again[0] == 0
    assert "accept?" not in again[1]


@pytest.mark.usefixtures("file")
def test_any_other_answer_settles_nothing() -> None:
    for answer in ("n\n", "\n", "yess\n", "\x04"):
        status, shown = at_a_terminal(answer, "settle", "gh")
        assert (status, settled()) == (1, {}), (answer, shown)


@pytest.mark.usefixtures("file")
def test_without_a_terminal_nothing_is_settled(callyard: Run, in_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = callyard("settle", "gh")
    piped = in_process("settle", "gh", "--as", "query", stdin="y\ny\n")
    listed = json.loads(callyard("settle", "--json")[1])
    monkeypatch.setattr("sys.argv", ["callyard", "settle"])

    assert (status, main(), piped.returncode) == (1, 1, 1)
    assert "gh\tdelete_issue\tdestroy" in out.splitlines()
    assert "callyard settle gh" in err
    assert {row["tool"]: row["operation"] for row in listed} == PROPOSED
    assert settled() == {}


def test_the_tools_of_another_server_of_that_name_are_not_those_that_a_person_is_asked_about(
    file: Path, tmp_path: Path, callyard: Run
) -> None:
    at_a_terminal("n\n", "settle", "gh")
    other = json.loads((tmp_path / "tools.json").read_text())[0]
    (tmp_path / "other.json").write_text(json.dumps([{**other, "name": "drop_all"}]))
    file.write_text(file.read_text().replace("tools.json", "other.json"))
    status, out, _ = callyard("settle", "gh", "--json")

    assert (status, [row["tool"] for row in json.loads(out)]) == (1, ["drop_all"])


@pytest.mark.usefixtures("file")
def test_single_tools_are_settled_as_the_person_says() -> None:
    first = at_a_terminal("y\n", "settle", "gh", "frobnicate", "get_issue", "--as", "destroy")
    unknown = at_a_terminal("y\n", "settle", "gh", "frobnicate")

    assert first[0] == 0, first
    assert settled() == {"frobnicate": "destroy", "get_issue": "destroy"}
    assert unknown[0] == 2
    assert at_a_terminal("y\n", "settle", "nobody")[0] == 2


def test_add_asks_at_a_terminal_and_starts_nothing_without_one(
    callyard: Run, command: list[str], write: Callable[..., Path], tmp_path: Path
) -> None:
    write('state_dir = "state"\n', "callyard.toml")
    callyard("add", "gh", "--", *command)
    without = (settled(), (tmp_path / "callyard.lock").exists())
    callyard("remove", "gh")
    status, shown = at_a_terminal("y\n", "add", "gh", "--", *command)

    assert without == ({}, False)
    assert status == 0, shown
    assert shown.count("accept?") == 1
    assert settled() == PROPOSED


def test_add_of_a_server_that_does_not_start_adds_it_and_names_the_command(write: Callable[..., Path]) -> None:
    write('state_dir = "state"\n', "callyard.toml")
    status, shown = at_a_terminal("y\n", "add", "gh", "--", sys.executable, "-c", "raise SystemExit(1)")

    assert status == 0, shown
    assert "callyard settle gh" in shown
    assert "[upstreams.gh]" in Path("callyard.toml").read_text()


def test_import_asks_once_for_each_server(write: Callable[..., Path], command: list[str]) -> None:
    write('state_dir = "state"\n', "callyard.toml")
    program, *arguments = command
    entry = {"command": program, "args": arguments}
    write(json.dumps({"mcpServers": {"gh": entry, "other": entry}}), "clients.json")
    dry = at_a_terminal("y\ny\n", "import", "--file", "clients.json", "--dry-run")
    status, shown = at_a_terminal("y\nn\n", "import", "--file", "clients.json")

    assert "accept?" not in dry[1]
    assert status == 0, shown
    assert shown.count("accept?") == 2
    assert settled() == PROPOSED
    assert '"upstream": "other", "kind": "tool", "name": "get_issue"' in Path("callyard.lock").read_text()


@pytest.mark.usefixtures("file")
def test_a_definition_that_is_not_accepted_is_not_proposed(tmp_path: Path, callyard: Run) -> None:
    at_a_terminal("y\n", "settle", "gh")
    tools = json.loads((tmp_path / "tools.json").read_text())
    (tmp_path / "tools.json").write_text(json.dumps([{**tool, "title": "Changed"} for tool in tools]))
    callyard("upstreams", "--check")
    status, shown = at_a_terminal("y\n", "settle", "gh")
    callyard("accept", "gh", "--all")
    accepted = at_a_terminal("y\n", "settle", "gh")

    assert (status, "accept?" in shown) == (0, False)
    assert "accept?" in accepted[1]


def test_a_lock_that_cannot_be_read_is_refused(file: Path) -> None:
    at_a_terminal("n\n", "settle", "gh")
    file.with_name("callyard.lock").write_text("<<<<<<< ours\n")

    assert at_a_terminal("y\n", "settle", "gh")[0] == 2


@pytest.mark.usefixtures("file")
def test_policy_explain_says_what_the_server_does_with_an_unsettled_tool(callyard: Run) -> None:
    before = json.loads(callyard("policy", "explain", "gh__get_issue", "--json")[1])
    at_a_terminal("y\n", "settle", "gh")
    after = json.loads(callyard("policy", "explain", "gh__get_issue", "--json")[1])
    destroys = json.loads(callyard("policy", "explain", "gh__delete_issue", "--json")[1])

    assert [before["decision"], after["decision"], destroys["decision"]] == ["ask", "allow", "ask"]


RULES = """
[[rules]]
decision = "deny"
tools = ["{}"]

[[rules]]
decision = "ask"
tools = ["gh__get_*", "run_tool"]

[[rules]]
decision = "ask"
tags = ["nothing"]

[[rules]]
decision = "deny"
tools = ["gh__hinted"]
operations = ["destroy"]
"""


def test_policy_check_names_rules_that_match_no_known_tool(file: Path, callyard: Run) -> None:
    text = file.read_text()
    file.write_text(text + RULES.format("gh__delete_isue"))
    status, out, _ = callyard("policy", "check", "--json")
    found = json.loads(out)
    file.write_text(text + '[[rules]]\ndecision = "deny"\ntools = ["gh__delete_issue"]\n')
    right = callyard("policy", "check")

    assert (status, found["rules"]) == (1, 4)
    assert [warning.partition(":")[0].partition(" ")[2][:1] for warning in found["warnings"]] == ["1", "3", "4"]
    assert "gh__delete_isue" in found["warnings"][0]
    assert (right[0], right[1]) == (0, "")
    assert callyard("policy", "check", "gh__hinted")[0] == 2
    assert callyard("policy", "explain")[0] == 2
