"""A server that is killed again and again loses nothing that it acknowledged, and does nothing twice that must not be.

`make test` runs a tenth: 5 kills during 100 calls and 30 jobs. `make soak` runs all: 50 kills, 1,000 calls, 300 jobs.
"""

import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("KILLS", "5"))
PROGRAM = Path(__file__).with_name("killed_yard.py")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Server:
    """The served yard: it can be killed and started anew on the same file and port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._command = [
            sys.executable,
            str(PROGRAM),
            str(folder / "store.sqlite3"),
            str(folder / "notes"),
            str(self.port),
        ]
        self._log = (folder / "log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=self._log)  # noqa: S603 - our own program
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                threading.Event().wait(0.02)  # until it listens
            else:
                return
        raise AssertionError("The server does not start.")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._log.close()

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Return the envelope of a call, or None if the server was killed before it answered."""
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments, "_meta": META},
        }
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": name,
            "Authorization": "Bearer cy_test",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/mcp", json.dumps(body), headers)
            text = connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        data = text.rpartition(b"data: ")[2] if text.startswith((b"event", b"data", b":")) else text
        try:
            return json.loads(data)["result"]["structuredContent"]
        except ValueError:
            return None  # cut off


class Work:
    """The calls and jobs of a client, and what was acknowledged of them."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.handles: dict[str, int] = {}
        self.jobs: dict[str, tuple[str, int]] = {}
        self.lock = threading.Lock()
        self._random = random.Random(7)  # noqa: S311 - an order, not a secret

    def run(self, first: int, rounds: int) -> None:
        """Call until ten calls and three jobs were acknowledged in each round; none is sent twice."""
        numbers = itertools.count(first)
        for kind in (("much",) * 3 + ("act",) + ("much",) * 3 + ("look",) + ("much",) * 4 + ("put",)) * rounds:
            while not self._acknowledged(kind, next(numbers)):
                threading.Event().wait(0.02)  # the server starts again

    def _acknowledged(self, kind: str, number: int) -> bool:
        if kind == "much":
            answer = self._server.call("much", {"number": number})
            if answer is not None and answer["success"]:
                with self.lock:
                    self.handles[answer["data"]["handle"]] = number
            return answer is not None and answer["success"]
        arguments = {"number": number, "seconds": self._random.choice([0.0, 0.3, 1.5])}
        answer = self._server.call("run_tool", {"tool_id": kind, "args": arguments, "background": True})
        if answer is not None and answer["success"]:
            with self.lock:
                self.jobs[answer["data"]["job_id"]] = (kind, number)
        return answer is not None and answer["success"]


@pytest.fixture
def server(tmp_path: Path) -> Any:
    served = Server(tmp_path)
    served.start()
    yield served
    served.close()


def test_kills_lose_nothing_that_was_acknowledged(server: Server, tmp_path: Path) -> None:
    work = Work(server)
    threads = [threading.Thread(target=work.run, args=(first, KILLS)) for first in (0, 1_000_000)]
    for thread in threads:
        thread.start()
    dice = random.Random(1)  # noqa: S311 - a moment, not a secret
    for _ in range(KILLS):
        threading.Event().wait(dice.uniform(0.05, 0.4))  # the moment of a kill is what varies
        server.kill()
        server.start()
    for thread in threads:
        thread.join()

    for handle, number in work.handles.items():
        answer = server.call("read_result", {"handle": handle, "limit": 20})
        assert answer is not None
        assert answer["success"], answer
        assert f"{number}:x" in json.dumps(answer["data"])

    states = Counter[str]()
    ran = Counter((tmp_path / "notes").read_text().splitlines())
    for job_id, (kind, number) in work.jobs.items():
        job = _ended(server, job_id)
        states[f"{kind} {job['status']}"] += 1
        times = Counter((tmp_path / "notes").read_text().splitlines())[f"{kind} {number}"]
        if job["status"] == "completed":
            assert job["result"]["data"] == number
            assert times >= 1
        else:
            assert job["status"] == "interrupted"
            assert kind == "act"
            assert job["result"]["error"]["may_have_run"] or not times
        if kind == "act":
            assert times <= 1
    print(  # noqa: T201 - counts
        f"kills {KILLS}, results {len(work.handles)}, jobs {len(work.jobs)}, {dict(states)}, runs {sum(ran.values())}"
    )
    assert (len(work.handles), len(work.jobs)) == (20 * KILLS, 6 * KILLS)


def _ended(server: Server, job_id: str) -> dict[str, Any]:
    """Return a job once it has ended; a lease of a killed process lasts for fifteen seconds."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        answer = server.call("wait_job", {"job_id": job_id, "timeout_s": 30})
        assert answer is not None
        assert answer["success"], answer
        if answer["data"]["status"] not in {"working", "input_required"}:
            return answer["data"]
    raise AssertionError(f"The job {job_id} does not end.")
