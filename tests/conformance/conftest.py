"""What the tests with the official conformance suite share: the suite itself, and the example that it judges.

The suite is written for Node.js. Its versions are pinned in `package.json` and, with their hashes, in
`package-lock.json`.
"""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from pinned_packages import NODE, installed

HERE = Path(__file__).parent
EVERYTHING = HERE.parent.parent / "examples" / "everything.py"
GATE = HERE / "gate.py"
TIMEOUT = 60.0
TERMINATED = 0
_TIME = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")
_UNSCORED = re.compile(r"^ {2}[✓✗] (\S+) \((?:extension|pending|added-after-release)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the suite found: its exit status, the checks of each scenario, and the scenarios that it does not score."""

    status: int
    scenarios: dict[str, list[dict[str, Any]]]
    unscored: frozenset[str]

    def checks(self, status: str) -> list[str]:
        """Return the checks that ended so, each after its scenario and with what the suite says of it."""
        return [
            f"{name}: {check['id']} {check.get('errorMessage', '')}".rstrip()
            for name, checks in self.scenarios.items()
            for check in checks
            if check["status"] == status
        ]

    def without(self, beginning: str) -> "Report":
        """Return the report without the scenarios whose names begin so."""
        return replace(
            self, scenarios={name: checks for name, checks in self.scenarios.items() if not name.startswith(beginning)}
        )


@dataclass(frozen=True, slots=True)
class Suite:
    """The suite in its two lines, ready to run against a server or a client."""

    home: Path

    def judge(self, line: str, url: str, folder: Path, *arguments: str) -> Report:
        """Run one line of the suite against a server."""
        return self._run(line, folder, "server", "--url", url, *arguments)

    def judge_client(self, command: str, folder: Path, *arguments: str) -> Report:
        """Run the newer line of the suite against a client."""
        return self._run("next", folder, "client", "--command", command, *arguments)

    def _run(self, line: str, folder: Path, *arguments: str) -> Report:
        node, program = self.home / NODE, self.home / f"node_modules/conformance-{line}/dist/index.js"
        command = [node, program, *arguments, "--output-dir", folder]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False)  # noqa: S603 - it is pinned
        scenarios = {
            _TIME.sub("", path.parent.name).removeprefix("server-"): json.loads(path.read_text())
            for path in sorted(folder.rglob("checks.json"))
        }
        assert scenarios, done.stderr or done.stdout
        return Report(status=done.returncode, scenarios=scenarios, unscored=frozenset(_UNSCORED.findall(done.stdout)))


@pytest.fixture(scope="session")
def suite() -> Suite:
    """Return the suite, installed if it is not there yet."""
    return Suite(installed(HERE, "conformance", what="conformance suite"))


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Serve the example and return its address; it must end well, and without a defect in its log."""
    with _served(tmp_path_factory, EVERYTHING) as url:
        yield url


@pytest.fixture(params=["2025 stdio", "2026 stdio", "2025 http", "2026 http"], scope="session")
def gate(
    request: pytest.FixtureRequest, everything: str, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[str, str]]:
    """Serve a yard with the example as an upstream, of one era and over one carrier; return both and the address."""
    era, carrier = request.param.split()
    state = str(tmp_path_factory.mktemp("state"))
    with _served(tmp_path_factory, GATE, era, state, str(EVERYTHING) if carrier == "stdio" else everything) as url:
        yield request.param, url


@contextmanager
def _served(folders: pytest.TempPathFactory, program: Path, *arguments: str) -> Generator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folders.mktemp(program.stem) / "log"
    command = [sys.executable, str(program), *arguments, "--port", str(port)]
    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as process:  # noqa: S603 - our own program
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}/readyz")
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()
            status = process.wait(TIMEOUT)
    said = log.read_text()
    assert (status, "Traceback" in said) == (TERMINATED, False), said


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    """Wait until the server answers; if it ends before that, it failed."""
    while True:
        try:
            raise AssertionError(f"The example ended with {process.wait(timeout=0.05)}.")
        except subprocess.TimeoutExpired:
            try:
                urlopen(url, timeout=TIMEOUT).close()  # noqa: S310 - our own server
            except URLError:
                continue
            return
