"""Real Redis servers for tests: one, with TLS, with a replica and a Sentinel, a cluster; and a line that is cut."""

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import redis

PROGRAM: Final = shutil.which("redis-server")
NEEDS_REDIS: Final = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")
WAIT_S: Final = 60.0
_SLOTS: Final = 16384
_NODES: Final = 3
_READY: Final = ("Ready to accept connections", "Sentinel ID is")


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Program:
    """One Redis server in a process of its own."""

    def __init__(self, folder: Path, *options: str, tls: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._is_tls = tls
        ports = ("--port", "0", "--tls-port", str(self.port)) if tls else ("--port", str(self.port))
        common = ("--bind", "127.0.0.1", "--dir", str(folder), "--save", "")
        self._command = [PROGRAM or "redis-server", *options, *ports, *common]
        self.process = self._start()

    @property
    def url(self) -> str:
        """Return the URL of a store here."""
        return f"redis{'s' * self._is_tls}://127.0.0.1:{self.port}"

    def ask(self, *command: Any) -> Any:
        """Run one command on a connection of its own."""
        with client_of(self) as client:
            return client.execute_command(*command)

    def stats(self, command: str) -> int:
        """Return how often a command ran."""
        facts: Any = self.ask("INFO", "commandstats")
        return int(facts.get(f"cmdstat_{command}", {}).get("calls", 0))

    def kill(self) -> None:
        """Kill the process."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def start_again(self) -> None:
        """Start a new process after the last one was killed."""
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603 - a fixed program
        assert process.stdout is not None
        for line in process.stdout:
            if any(ready in line for ready in _READY):
                return process
        process.stdout.close()
        raise AssertionError(f"Redis does not start, and exits with {process.wait()}.")


@contextmanager
def client_of(program: Program) -> Generator[Any]:
    """Open a connection of redis-py, whose types are partly unknown."""
    with redis.Redis(port=program.port, socket_timeout=WAIT_S) as client:
        yield client


@contextmanager
def one_server(folder: Path, *options: str, tls: bool = False) -> Generator[Program]:
    """Start one server."""
    program = Program(folder, *options, tls=tls)
    try:
        yield program
    finally:
        if program.process.returncode is None:
            program.kill()


@contextmanager
def cluster_of(folder: Path) -> Generator[list[Program]]:
    """Start a cluster of three masters, and wait until all of them know all slots."""
    with ExitStack() as stack:
        nodes: list[Program] = []
        buses: list[int] = []
        for number in range(_NODES):
            buses.append(free_port())
            options = ("--cluster-enabled", "yes", "--cluster-port", str(buses[-1]))
            nodes.append(stack.enter_context(one_server(folder / str(number), *options)))
            first, last = number * _SLOTS // _NODES, (number + 1) * _SLOTS // _NODES - 1
            nodes[-1].ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            nodes[-1].ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        for node in nodes:
            wait_until(lambda node=node: _has_settled(node))
        yield nodes


def _has_settled(node: Program) -> bool:
    facts: Any = node.ask("CLUSTER INFO")
    return facts["cluster_state"] == "ok" and int(facts["cluster_slots_ok"]) == _SLOTS


@contextmanager
def watched_by_sentinel(folder: Path) -> Generator[tuple[Program, Program, Program]]:
    """Start a master, its replica, and a Sentinel that watches them under the name 'mine'."""
    with ExitStack() as stack:
        master = stack.enter_context(one_server(folder / "master"))
        replica = stack.enter_context(replica_of(master, folder / "replica"))
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor mine 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds mine 2000\nsentinel failover-timeout mine 10000\n"
        )
        sentinel = stack.enter_context(one_server(folder / "sentinel", str(config), "--sentinel"))
        wait_until(lambda: len(sentinel.ask("SENTINEL REPLICAS", "mine")) == 1)
        yield master, replica, sentinel


@contextmanager
def replica_of(master: Program, folder: Path) -> Generator[Program]:
    """Start a replica, and wait until it follows its master."""
    with one_server(folder, "--replicaof", f"127.0.0.1 {master.port}") as program:
        wait_until(lambda: master.ask("INFO", "replication").get("slave0", {}).get("state") == "online")
        yield program


def wait_until(is_true: Callable[[], object]) -> None:
    """Ask again until something is true, of which Redis gives no sign."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        with suppress(redis.RedisError):
            if is_true():
                return
        time.sleep(0.05)
    raise AssertionError("It never became true.")


def pass_time(programs: Sequence[Program], prefix: str, seconds: float) -> None:
    """Let time pass for the keys with a prefix: whatever expires does so that much earlier."""
    passed = int(seconds * 1000)
    for program in programs:
        with client_of(program) as client:
            for key in client.scan_iter(match=f"{prefix}:*", count=1000):
                expiry = client.pexpiretime(key)
                if key.endswith(b":expiries"):
                    for name in client.zrange(key, 0, -1):
                        client.zincrby(key, -passed, name)
                elif expiry > 0:
                    client.pexpireat(key, expiry - passed)


class Line:
    """A TCP line to a server that can be cut after a request has passed, and before its answer does."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self.cuts = 0
        """How many answers are still to be cut."""
        self.cut = 0
        """How many were."""
        self.tasks = set[asyncio.Task[Any]]()

    @property
    def url(self) -> str:
        """Return the URL of a store behind the line."""
        return f"redis://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either end closes it, or it is cut."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
        forth = asyncio.create_task(self._carry(reader, requests))
        try:
            while data := await answers.read(65536):
                if self.cuts:
                    self.cuts -= 1
                    self.cut += 1
                    break
                writer.write(data)
        except OSError:
            pass
        finally:
            forth.cancel()
            for end in (requests, writer):
                end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
            writer.write_eof()


@asynccontextmanager
async def line_to(program: Program) -> AsyncGenerator[Line]:
    """Open a line to a server."""
    line = Line(program.port)
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    line.port = server.sockets[0].getsockname()[1]
    async with server:
        yield line
    await asyncio.gather(*line.tasks, return_exceptions=True)
