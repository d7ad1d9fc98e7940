"""The measured servers: each is a process on one core, while the load generator runs on another."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, Self

from clock import cpu_seconds, memory_kb
from environments import cache
from protocol import FIRST_ID, Message, body_of, handshake, headers_of, listing

__all__ = ["HttpServer", "Server", "ServerError", "StdioServer", "environment"]

_CORES: Final = sorted(os.sched_getaffinity(0))
_SERVER: Final = _CORES[0]
_GENERATOR: Final = _CORES[min(1, len(_CORES) - 1)]
_STARTING: Final = 180.0
"""Seconds a server may take until it listens; some need long for 10,000 tools."""
_GENERATOR_SCRIPT: Final = str(Path(__file__).with_name("load.py"))
_UNKNOWN: Final = 1_000_000
"""More ids than a generator that failed can have used."""
_QUIET: Final = {"FASTMCP_CHECK_FOR_UPDATES": "off", "FASTMCP_SHOW_SERVER_BANNER": "false", "NODE_ENV": "production"}


class ServerError(RuntimeError):
    """A server did not start or did not answer; the text has the end of its output."""


def environment(name: str = "") -> dict[str, str]:
    """Return our environment without Python's variables, with those that silence servers and a state directory."""
    state = {"CALLYARD_STATE_DIR": str(cache() / "state" / name)}
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | _QUIET | state


class Server:
    """A server process, with its stderr in a file and its CPU time and memory, with or without its children."""

    transport = ""

    def __init__(self, name: str, command: Sequence[str], *, piped: bool, below: bool = True) -> None:
        self.name = name
        self._below = below
        self._next = FIRST_ID + 1
        logs = cache() / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._said = logs / f"{name}-{self.transport}.log"
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        with self._said.open("wb") as said, _on_core(_SERVER):
            self.started = time.perf_counter()
            self.process = subprocess.Popen(  # noqa: S603 - our own servers
                command, stdin=pipe, stdout=pipe if piped else said, stderr=said, env=environment(name)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def cpu_seconds(self) -> float:
        """Return the CPU time since the start."""
        return cpu_seconds(self.process.pid)

    def memory_kb(self) -> int:
        """Return the resident memory."""
        return memory_kb(self.process.pid)

    def fail(self, what: str) -> ServerError:
        """Return an error with the end of the server's output."""
        return ServerError(f"'{self.name}' {what} {self._said.read_text(errors='replace')[-1500:]}".strip())

    def load(
        self,
        messages: Sequence[Message],
        era: str,
        *,
        width: int,
        seconds: float = 0.0,
        warm: float = 0.0,
        count: int = 0,
    ) -> dict[str, Any]:
        """Let the generator send these messages in turn, and return its result; `fault` has the first failure."""
        plan = {
            "transport": self.transport,
            "pid": self.process.pid,
            "below": self._below,
            "core": _GENERATOR,
            "width": width,
            "seconds": seconds,
            "warm": warm,
            "count": count,
            "first": self._next,
            "messages": [
                {"head": self._head(message, era), "body": body_of(message, era), "expect": message.expect}
                for message in messages
            ],
        } | self._address()
        done = subprocess.run(  # noqa: S603 - our own generator
            [sys.executable, _GENERATOR_SCRIPT],
            input=json.dumps(plan),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            pass_fds=self._descriptors(),
        )
        found = json.loads(done.stdout)
        self._next = found.pop("next", self._next + _UNKNOWN)  # no client may use an id twice
        return found

    def _head(self, _message: Message, _era: str) -> str:
        return ""

    def _address(self) -> dict[str, int]:
        return {}

    def _descriptors(self) -> tuple[int, ...]:
        return ()


class HttpServer(Server):
    """A server on a port of this machine."""

    transport = "http"

    def __init__(self, name: str, command: Sequence[str], *, below: bool = True) -> None:
        self._port = _free_port()
        super().__init__(name, [part.replace("PORT", str(self._port)) for part in command], piped=False, below=below)
        self._sessions: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Return the address of the endpoint."""
        return f"http://127.0.0.1:{self._port}/mcp"

    def wait(self) -> None:
        """Wait until it listens.

        Raises:
            ServerError: It ended, or took too long.
        """
        while time.perf_counter() - self.started < _STARTING and self.process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.02)  # an open port is the only sign that it is up
        raise self.fail("did not start.")

    def wait_for_tool(self, name: str) -> None:
        """Wait until it lists a tool: a gateway gets the tools of its upstream only after a while.

        Raises:
            ServerError: It took too long.
        """
        while f'"{name}"' not in self.ask(listing(name), "2026"):
            if time.perf_counter() - self.started > _STARTING:
                raise self.fail(f"did not list '{name}'.")
            time.sleep(0.05)  # a list is the only sign that it is ready

    def read_stream(self, path: str) -> None:
        """Read an event stream until the server ends, as a browser does, in a thread of this process.

        Raises:
            ServerError: There is no such stream.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("GET", path, headers={"Accept": "text/event-stream"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise self.fail(f"answers '{path}' with {response.status}.")

        def read() -> None:
            with suppress(OSError, http.client.HTTPException), closing(connection):
                while response.read1():
                    pass

        threading.Thread(target=read, daemon=True).start()

    def ask(self, message: Message, era: str) -> str:
        """Return the answer to one request."""
        return self._post(body_of(message, era), headers_of(message, era, self._session(era)))[1]

    def _session(self, era: str) -> str:
        """Return the session id of the older era, after a handshake if needed; a server may send none."""
        if era not in self._sessions:
            self._sessions[era] = ""
            if era == "2025":
                first, then = handshake()
                headers = headers_of(Message("initialize", {}, ""), era)
                self._sessions[era], _ = self._post(first, headers)
                self._post(then, headers | ({"Mcp-Session-Id": self._sessions[era]} if self._sessions[era] else {}))
        return self._sessions[era]

    def _post(self, body: str, headers: dict[str, str]) -> tuple[str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            connection.request("POST", "/mcp", body, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status not in {200, 202}:
            raise self.fail(f"answered {response.status}: {text[:400]}")
        return response.headers.get("Mcp-Session-Id", ""), text

    def _head(self, message: Message, era: str) -> str:
        headers = {
            "Host": f"127.0.0.1:{self._port}",
            **headers_of(message, era, self._session(era)),
            "Content-Length": str(len(body_of(message, era).encode())),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST /mcp HTTP/1.1\r\n{lines}\r\n"

    def _address(self) -> dict[str, int]:
        return {"port": self._port}


class StdioServer(Server):
    """A server at the other end of two pipes."""

    transport = "stdio"

    def __init__(self, name: str, command: Sequence[str]) -> None:
        super().__init__(name, command, piped=True)

    def open(self, era: str) -> None:
        """Do the handshake, if the era has one."""
        if era == "2025":
            first, then = handshake()
            self._write(first)
            self._line_with('"result"')
            self._write(then)

    def ask(self, message: Message, era: str) -> str:
        """Return the answer to one request."""
        self._write(body_of(message, era))
        return self._line_with(message.expect)

    def _write(self, text: str) -> None:
        stream = _open(self.process.stdin)
        stream.write(text.encode() + b"\n")
        stream.flush()

    def _line_with(self, expect: str) -> str:
        """Return the next line that is a reply, not a notification."""
        for line in _open(self.process.stdout):
            if b'"id"' in line:
                if expect.encode() not in line:
                    raise self.fail(f"answered {line[:400]!r}.")
                return line.decode()
        raise self.fail("ended.")

    def _address(self) -> dict[str, int]:
        return {"write": _open(self.process.stdin).fileno(), "read": _open(self.process.stdout).fileno()}

    def _descriptors(self) -> tuple[int, ...]:
        return tuple(self._address().values())


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ServerError("A server without pipes was asked for one.")
    return stream


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _on_core(core: int) -> Generator[None]:
    """Run processes that are started in this block on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
