"""Servers, workers and Redis that are killed or stopped during jobs lose nothing, and run nothing unsafe twice.

`make test` runs 10 kills during 50 jobs, `make soak` 100 during 500.
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
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis_programs import NEEDS_REDIS, Program, free_port, one_server, wait_until

pytestmark = NEEDS_REDIS
KILLS = int(os.environ.get("WORKER_KILLS", "10"))
YARD = Path(__file__).with_name("worker_yard.py")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
}


class Process:
    """A server or worker, which can be killed and started again."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "callyard", *arguments]
        self._environment = os.environ | {"NOTES": str(folder / "notes"), "XDG_STATE_HOME": str(folder)}
        self.log = folder / f"{name}.log"
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stderr=log, env=self._environment)  # noqa: S603 - our own program

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def is_up(self) -> bool:
        return self.log.read_text().count("runs jobs of the servers") == self.starts


class Server(Process):
    """A server over HTTP."""

    def __init__(self, folder: Path, name: str, url: str) -> None:
        self.port = free_port()
        super().__init__(
            folder, name, "serve", str(YARD), "--transport", "http", "--port", str(self.port), "--store", url
        )

    def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Return the envelope of a call, or None if there was no answer."""
        params = {"name": name, "arguments": arguments, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/mcp", body, HEADERS | {"Mcp-Name": name})
            text = connection.getresponse().read()
            data = text.rpartition(b"data: ")[2] if text.startswith((b"event", b"data", b":")) else text
            return json.loads(data)["result"]["structuredContent"]
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return None
        finally:
            connection.close()

    def is_up(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


@contextmanager
def started(*processes: Process) -> Generator[None]:
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.kill)
        yield


def workers_of(redis: Program) -> int:
    return len(redis.ask("KEYS", "callyard:{worker}:value:*"))


class Work:
    """Starts jobs at all servers in turn, and keeps those that were acknowledged."""

    def __init__(self, servers: list[Server], number: int) -> None:
        self.jobs: dict[str, tuple[str, int]] = {}
        self._servers = itertools.cycle(servers)
        self._number = number
        self._random = random.Random(7)  # noqa: S311 - an order, not a secret

    def run(self) -> None:
        """Start jobs until enough are acknowledged; none is sent twice."""
        for number in itertools.count():
            if len(self.jobs) == self._number:
                return
            kind = self._random.choice(["act", "put"])
            arguments = {"number": number, "seconds": self._random.choice([0.0, 1.0, 4.0])}
            call = {"tool_id": kind, "args": arguments, "background": True}
            answer = next(self._servers).call("run_tool", call)
            if answer is not None and answer["success"]:
                self.jobs[answer["data"]["job_id"]] = (kind, number)
            threading.Event().wait(0.4)  # so that some run at each kill; or a process starts again


def ended(servers: list[Server], job_id: str) -> dict[str, Any]:
    """Return a job once it has ended, whichever server answers."""
    until = time.monotonic() + 180
    for server in itertools.cycle(servers):
        answer = server.call("wait_job", {"job_id": job_id, "timeout_s": 20})
        if answer is not None and answer["success"] and "result" in answer["data"]:
            return answer["data"]
        assert answer is None or answer["success"] or answer["error"]["code"] == "overloaded", answer
        assert time.monotonic() < until, (job_id, answer)
        threading.Event().wait(0.05)
    raise AssertionError


def test_kills_lose_no_job_and_run_nothing_twice(tmp_path: Path) -> None:
    with one_server(tmp_path / "redis", "--appendonly", "yes") as redis:
        servers = [Server(tmp_path, f"server{number}", redis.url) for number in range(2)]
        workers = [Process(tmp_path, f"worker{n}", "worker", str(YARD), "--store", redis.url) for n in range(2)]
        with started(*servers, *workers):
            wait_until(lambda: all(process.is_up() for process in (*servers, *workers)))
            work = Work(servers, 5 * KILLS)
            thread = threading.Thread(target=work.run)
            thread.start()
            dice = random.Random(1)  # noqa: S311 - a moment, not a secret
            killed = Counter[str]()
            for number in range(KILLS):
                threading.Event().wait(dice.uniform(0.2, 1.0))  # the moment of a kill is what varies
                kind = ("worker", "server", "redis")[number % 3]
                killed[kind] += 1
                if kind == "redis":
                    redis.kill()
                    redis.start_again()
                else:
                    process = dice.choice(workers if kind == "worker" else servers)
                    process.kill()
                    process.start()
                    wait_until(process.is_up)
            thread.join()
            states = Counter[str]()
            for job_id, (kind, number) in work.jobs.items():
                job = ended(servers, job_id)
                states[f"{kind} {job['status']}"] += 1
                _check(job, kind, number, Counter((tmp_path / "notes").read_text().splitlines())[f"{kind} {number}"])
            wait_until(lambda: not redis.ask("KEYS", "callyard:{job}:value:job_running/*"))
            wait_until(lambda: not redis.ask("KEYS", "callyard:{job}:lease:job/*"))

    print(f"kills {dict(killed)}, jobs {len(work.jobs)}, {dict(states)}")  # noqa: T201 - counts
    assert len(work.jobs) == 5 * KILLS


def _check(job: dict[str, Any], kind: str, number: int, times: int) -> None:
    if job["status"] == "completed":
        assert job["result"]["data"] == number, job
        assert times >= 1
    else:
        assert (job["status"], kind) == ("interrupted", "act"), job
        assert job["result"]["error"]["may_have_run"] or not times
    assert kind == "put" or times <= 1


def test_a_worker_stopped_past_its_lease_changes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    go, notes = tmp_path / "go", tmp_path / "notes"
    with one_server(tmp_path / "redis") as redis:
        server = Server(tmp_path, "server", redis.url)
        first = Process(tmp_path, "first", "worker", str(YARD), "--store", redis.url)
        with started(server, first):
            wait_until(lambda: server.is_up() and workers_of(redis) == 1)
            answer = server.call("run_tool", {"tool_id": "wait_for", "args": {"file": str(go)}, "background": True})
            assert answer is not None
            wait_until(notes.exists)
            first.process.send_signal(signal.SIGSTOP)
            second = Process(tmp_path, "second", "worker", str(YARD), "--store", redis.url)
            with started(second):
                wait_until(lambda: len(notes.read_text().splitlines()) == 2)
                go.touch()
                job = ended([server], answer["data"]["job_id"])
                first.process.send_signal(signal.SIGCONT)
                wait_until(lambda: "job_lost" in first.log.read_text())
                after = ended([server], answer["data"]["job_id"])
                first.process.terminate()
                assert first.process.wait() == 0

    assert (job["status"], job["result"]["data"]) == ("completed", second.process.pid)
    assert after == job


def test_a_worker_needs_a_store_that_servers_share(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "callyard", "worker", str(YARD), "--store", "memory"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program

    assert (done.returncode, done.stdout) == (2, "")
    assert "Redis" in done.stderr
    assert "Traceback" not in done.stderr
