"""What the tests of the command line share: a yard in a file, and three ways to run a command on it."""

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from callyard._internal.project import find_project, project_dir
from callyard.providers.upstream.catalogue import Catalogue, folder_of, save
from callyard.providers.upstream.pins import Pins
from callyard.providers.upstream.settings import UpstreamSettings

BAD_STRATEGIES = """
from callyard.search.bm25 import Bm25

class Failing(Bm25):
    def rank(self, query, admits, *, offset, limit):
        raise ValueError("There is no\\nmodel")

class Deaf(Bm25):
    def add(self, spec):
        raise RuntimeError("It does not listen.")

class Empty(Bm25):
    def rank(self, query, admits, *, offset, limit):
        return None
"""


@pytest.fixture
def bad_strategies(write: Callable[..., Path], tmp_path: Path) -> dict[str, str]:
    """Return an environment in which a package offers search strategies that fail: 'failing', 'deaf' and 'empty'."""
    (tmp_path / "bad-1.0.dist-info").mkdir()
    write(BAD_STRATEGIES, "bad.py")
    write(
        "[callyard.search]\nfailing = bad:Failing\ndeaf = bad:Deaf\nempty = bad:Empty\n",
        "bad-1.0.dist-info/entry_points.txt",
    )
    return {"PYTHONPATH": str(tmp_path)}


@pytest.fixture
def serve_once(write: Callable[..., Path], tmp_path: Path) -> Callable[..., None]:
    """Write the state of a server that listed an upstream with tools of these descriptions."""
    write('state_dir = "state"\n', "callyard.toml")

    def serve(
        name: str = "shop", *, instructions: str = "", first: Literal["trust", "ask"] = "trust", **tools: str
    ) -> None:
        listed = tuple(
            {"name": tool, "description": text, "inputSchema": dict[str, str]()} for tool, text in tools.items()
        )
        catalogue = Catalogue(
            endpoint_hash="0", seen=0.0, version="2025-11-25", instructions=instructions, tools=listed
        )
        state = project_dir(tmp_path / "state", find_project(tmp_path / "callyard.toml"))
        save(folder_of(state, name), catalogue)
        Pins(tmp_path / "callyard.lock", state=state).check(
            name, catalogue, UpstreamSettings(command=name, first=first)
        )

    return serve


@pytest.fixture
def in_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command in a process of its own, with its environment changed as told."""

    def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", "import sys; from callyard.cli import main; sys.exit(main())", *arguments]
        return subprocess.run(  # noqa: S603 - our own
            program, input=stdin, capture_output=True, text=True, env={**os.environ, **environment}, check=False
        )

    return run


@pytest.fixture
def in_terminal() -> Callable[..., str]:
    """Run a command in a terminal of that width, and return all that the terminal was sent."""

    def run(*arguments: str, columns: int = 72, **environment: str) -> str:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        plain = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
        program = [sys.executable, "-c", "import sys; from callyard.cli import main; sys.exit(main())", *arguments]
        with subprocess.Popen(  # noqa: S603 - our own
            program, stdin=theirs, stdout=theirs, stderr=theirs, env={**plain, "TERM": "xterm", **environment}
        ):
            os.close(theirs)
            sent = _read_all(ours)
        os.close(ours)
        return sent.decode()

    return run


def _read_all(terminal: int) -> bytes:
    sent = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # how a terminal says that its other side is closed
            return sent
        if not piece:
            return sent
        sent += piece
