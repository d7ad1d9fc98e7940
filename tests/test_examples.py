"""The examples run as a user would run them, and say something."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVER = ROOT / "examples" / "everything.py"
PROGRAMS = sorted({*(ROOT / "examples").glob("*.py")} - {SERVER})


def _run(program: Path, said: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(program)]
    known = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=known, input=said, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own programs


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_it_runs_and_prints_and_complains_of_nothing(program: Path) -> None:
    ran = _run(program, PYTHONWARNINGS="error")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip()


def test_the_example_that_is_a_server_answers_on_stdio_and_ends_with_its_client() -> None:
    ran = _run(SERVER, '{"jsonrpc":"2.0","id":1,"method":"ping"}\n', PYTHONWARNINGS="error")

    assert ran.returncode == 0
    assert json.loads(ran.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert re.fullmatch(r"\S+ INFO toolyard\.launch\.serve serving yard=everything transport=stdio address=stdio\n", ran.stderr)
