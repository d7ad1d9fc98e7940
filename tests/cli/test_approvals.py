"""`callyard approvals` and `callyard policy explain`, with calls of other programs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]

YARD = """
from callyard import Yard, tool

@tool(operation="destroy")
def delete(name: str, count: int = 5) -> str:
    "Delete things."
    return f"deleted {name}"

yard = Yard("bin", tools=[delete])
"""
SETTINGS = """
target = "yard.py"
[monitor]
audit_log = "audit.jsonl"
[limits]
approval_hold_s = 0.05
[[rules]]
decision = "allow"
tools = ["delete"]
when = [{ pointer = "/count", in = [0, 1] }]
reason = "One is little."
[[profiles.strict.rules]]
decision = "deny"
callers = ["guest*"]
[[rules]]
decision = "ask"
operations = ["destroy"]
by = "operator"
"""


@pytest.fixture
def folder(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with a yard and rules, and make it the current folder."""
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    write(YARD, "yard.py")
    write(SETTINGS, "callyard.toml")
    return tmp_path


@pytest.fixture
def run(in_process: Callable[..., subprocess.CompletedProcess[str]]) -> Run:
    """Return what runs a command and returns its status and what it wrote."""

    def run(*arguments: str) -> tuple[int, str, str]:
        done = in_process(*arguments)
        return done.returncode, done.stdout, done.stderr

    return run


def called(arguments: dict[str, Any]) -> Any:
    """Return the data or the code of a call, by a program of its own."""
    command = [
        sys.executable,
        "-m",
        "callyard",
        "call",
        "yard.py",
        "delete",
        json.dumps(arguments),
        "--json",
        "--quiet",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    envelope = json.loads(done.stdout)
    return envelope["data"] if envelope["success"] else envelope["error"]["code"]


def test_a_call_that_waits_is_listed_shown_approved_and_then_runs(folder: Path, run: Run) -> None:
    held = called({"name": "a"})
    _, listed, _ = run("approvals", "--json")
    _, shown, _ = run("approvals", "show", held["approval_id"])
    status, approved, _ = run("approvals", "approve", held["approval_id"], "--reason", "Fine.", "--json")

    assert [one["approval_id"] for one in json.loads(listed)] == [held["approval_id"]]
    assert "delete" in shown
    assert status == 0
    assert (json.loads(approved)["status"], json.loads(approved)["reason"]) == ("approved", "Fine.")
    assert json.loads(approved)["decided_by"].startswith("user:")
    assert called({"count": "5", "name": "a"}) == "deleted a"
    audited = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    events = [line["event"] for line in audited if line.get("approval_id") == held["approval_id"]]
    assert events == ["approval_approved"]
    assert called({"name": "a"})["status"] == "approval_required"


@pytest.mark.usefixtures("folder")
def test_a_denial_reaches_the_agent(run: Run) -> None:
    held = called({"name": "a"})
    assert run("approvals", "deny", held["approval_id"], "--reason", "No.")[0] == 0

    assert called({"name": "a"}) == "approval_denied"
    assert run("approvals", "approve", held["approval_id"])[0] == 2


@pytest.mark.usefixtures("folder")
def test_a_grant_is_listed_and_can_be_revoked(run: Run) -> None:
    held = called({"name": "a"})
    assert run("approvals", "approve", held["approval_id"], "--grant", "3600", "--any-arguments")[0] == 0
    assert called({"name": "b"}) == "deleted b"
    grants = json.loads(run("approvals", "grants", "--json")[1])
    assert run("approvals", "grants")[0] == 0
    assert run("approvals", "revoke", grants[0]["grant_id"])[0] == 0
    assert called({"name": "b"})["status"] == "approval_required"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "decision", "number"),
    [
        (["name=a", "count=1"], "allow", 2),
        (["name=a"], "ask", 3),
        (['{"name": "a", "count": "0"}'], "allow", 2),
        (["name=a", "--caller", "guest1", "--profile", "strict"], "deny", 1),
        (["name=a", "--caller", "guest1"], "ask", 3),
    ],
)
def test_policy_explain_says_which_rule_decides(run: Run, arguments: list[str], decision: str, number: int) -> None:
    _, out, _ = run("policy", "explain", "delete", *arguments, "--json")
    status, text, _ = run("policy", "explain", "delete", *arguments)

    facts = json.loads(out)
    assert (facts["decision"], facts["number"]) == (decision, number)
    assert status == 0
    assert f"Rule {number}" in text


def test_policy_explain_answers_as_the_server_does(run: Run, folder: Path) -> None:
    one, other = {"name": "a", "count": 1}, {"name": "b"}
    steps = json.dumps({"steps": [{"tool_id": "delete", "args": args} for args in (one, other)]})
    rows = [
        (("run_tool", '{"tool_id": "delete", "args": {"name": "a"}}'), "delete", "ask"),
        (("run_tool", '{"tool_id": "delete", "args": {"args": {"name": "a", "count": 1}}}'), "delete", "allow"),
        (("run_chain", steps), "delete", "ask"),
        (("search_tools", "query=x"), "search_tools", "allow"),
    ]
    for command, name, decision in rows:
        facts = json.loads(run("policy", "explain", *command, "--json")[1])
        assert facts["decision"] == decision, command
        assert name in {facts["tool"], command[0]}
    (folder / "callyard.toml").write_text('target = "yard.py"\n[serve]\nask_before_destroy = false\n')
    assert json.loads(run("policy", "explain", "delete", "name=a", "--json")[1])["decision"] == "allow"
    (folder / "callyard.toml").write_text('target = "yard.py"\n')
    assert json.loads(run("policy", "explain", "delete", "name=a", "--json")[1])["decision"] == "ask"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "command",
    [
        ("approvals", "approve"),
        ("approvals", "show", "--watch", "a_1"),
        ("approvals", "deny", "a_1", "--grant", "5"),
        ("approvals", "show", "a_1"),
        ("approvals", "revoke", "g_1"),
        ("policy", "explain", "nothing"),
        ("policy", "explain", "delete", "count=x"),
    ],
)
def test_a_wrong_command_is_refused(run: Run, command: tuple[str, ...]) -> None:
    assert run(*command)[0] != 0


@pytest.mark.usefixtures("folder")
def test_the_list_can_be_watched(run: Run) -> None:
    held = called({"name": "a"})
    command = [sys.executable, "-m", "callyard", "approvals", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:  # noqa: S603 - our own program
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        watching.terminate()

    assert first["approval_id"] == held["approval_id"]
    assert run("approvals")[0] == 0


@pytest.mark.parametrize(
    "settings",
    [
        '[[rules]]\ndecision = "ask"\ntool = ["x"]\n',
        '[[rules]]\ntools = ["x"]\n',
        '[[rules]]\ndecision = "maybe"\n',
        '[[rules]]\ndecision = "deny"\nwhen = [{ pointer = "/a", matches = "(" }]\n',
        '[[rules]]\ndecision = "deny"\nwhen = [{ pointer = "/a" }]\n',
        '[approvals]\nwebhook = "https://example.com/hook"\n',
        '[approvals]\nwebhook = "http://example.com/hook"\nwebhook_secret = "x"\n',
        '[approvals]\nwebhook = "https://example.com/hook"\nwebhook_secret = "secretref:env:NOT_SET_ANYWHERE"\n',
        '[policy]\nurl = "ftp://example.com"\n',
        "[limits]\napproval_ttl_s = 7201\n",
    ],
)
def test_wrong_settings_are_refused(folder: Path, run: Run, settings: str) -> None:
    (folder / "callyard.toml").write_text(f'target = "yard.py"\n{settings}')
    assert run("list")[0] == 2


def test_the_secret_of_the_webhook_is_not_shown(folder: Path, run: Run) -> None:
    (folder / "callyard.toml").write_text(
        '[approvals]\nwebhook = "https://example.com/hook"\nwebhook_secret = "s3cret"\n'
    )
    status, out, _ = run("config")
    assert status == 0
    assert "s3cret" not in out
