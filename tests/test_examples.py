"""The examples run as a user would run them, and say something."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from callyard.testing.models import ScriptedAnthropic, ToolUse

ROOT = Path(__file__).parent.parent
SERVER = ROOT / "examples" / "everything.py"
DESK = ROOT / "examples" / "desk.py"
AGENT = ROOT / "examples" / "embedded_agent"
PROGRAMS = [*sorted({*(ROOT / "examples").glob("*.py")} - {SERVER, DESK}), AGENT]


def _run(
    program: Path, *arguments: str, said: str = "", cwd: Path = ROOT, **environment: str
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(program), *arguments]
    known = {**os.environ, **environment}
    return subprocess.run(  # noqa: S603 - our own programs
        command, cwd=cwd, env=known, input=said, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_it_runs_and_prints_and_complains_of_nothing(program: Path) -> None:
    ran = _run(program, PYTHONWARNINGS="error")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip()


@pytest.mark.parametrize(("program", "name"), [(SERVER, "everything"), (DESK, "desk")])
def test_the_example_that_is_a_server_answers_on_stdio_and_ends_with_its_client(program: Path, name: str) -> None:
    ran = _run(program, said='{"jsonrpc":"2.0","id":1,"method":"ping"}\n', PYTHONWARNINGS="error")

    assert ran.returncode == 0
    assert json.loads(ran.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    [line] = [line for line in ran.stderr.splitlines() if not line.startswith("ticket ")]
    assert re.fullmatch(rf"\S+ INFO callyard\.launch\.serve serving yard={name} transport=stdio address=stdio", line)


def test_the_tests_of_the_embedded_agent_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(AGENT)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - the same

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("said", "expected"), [("yes\n", "remove_appointment: ok"), ("no\n", "remove_appointment: approval_denied")]
)
def test_the_embedded_agent_asks_at_the_terminal(said: str, expected: str, tmp_path: Path) -> None:
    start = {"title": "Gym", "start": "2026-11-20T18:00"}
    script = [ToolUse("add_appointment", start), ToolUse("remove_appointment", {"appointment": 1}), "Done."]
    with ScriptedAnthropic(script) as model:
        ran = _run(AGENT, "Cancel it.", said=said, cwd=tmp_path, ANTHROPIC_BASE_URL=model.url)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert expected in ran.stdout
    assert ran.stdout.endswith("Done.\n")


def test_the_guide_shows_what_the_embedded_agent_prints() -> None:
    section = (
        (ROOT / "docs" / "guides" / "inject.md").read_text(encoding="utf-8").partition("## A whole application")[2]
    )
    shown = section.partition("```text\n")[2].partition("```")[0].replace("…\n", "")

    printed = _run(AGENT).stdout.splitlines()

    assert [line for line in shown.splitlines() if line not in printed] == []
    assert len(shown.splitlines()) > 10
