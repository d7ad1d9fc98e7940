"""Measure how much the flood of one upstream delays the calls of other tools: p50 and p99 over HTTP, and CPU time.

Each flood has a server of its own, `callyard serve` with one Python tool. The rounds of all servers take turns with
those of a server whose upstream is quiet, because the speed of a machine changes by the minute.
"""

import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from clock import cpu_seconds
from processes import environment
from tables import as_table

_UPSTREAM: Final = str(Path(__file__).parent / "servers" / "flooding_upstream.py")
_TOOL: Final = '''from callyard import Yard, tool

@tool(operation="query")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


yard = Yard(tools=[add])
'''
_STDIO: Final = ("quiet", "yes", "lines", "blank lines", "notifications", "large notifications", "stderr")
_HTTP: Final = ("events", "comments")
_FIRST_PORT: Final = 18600
_ROUNDS: Final = 7
_SECONDS: Final = 2.0
_PAUSE_S: Final = 0.002
_START_S: Final = 1.5
_CALL: Final[dict[str, Any]] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "add", "arguments": {"a": 1, "b": 2}},
}
_META: Final[dict[str, Any]] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "add",
}


def _settings(flood: str, port: int) -> str:
    if flood in _HTTP:
        upstream = f'url = "http://127.0.0.1:{port + 100}/mcp"'
    elif flood == "yes":
        upstream = 'command = "yes"'
    else:
        arguments = ["-I", "-S", _UPSTREAM, flood] if flood != "quiet" else ["-c", "import time; time.sleep(1e6)"]
        upstream = f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(arguments)}"
    return f'target = "tools.py"\n[upstreams.flood]\n{upstream}\nera = "2025"\n'


@contextlib.contextmanager
def _served(flood: str, port: int) -> Generator[tuple[int, http.client.HTTPConnection]]:
    """Yield the process of a server beside a flood, and a connection to it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        Path(folder, "tools.py").write_text(_TOOL)
        Path(folder, "callyard.toml").write_text(_settings(flood, port))
        run: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment(f"flood-{port}")}
        if flood in _HTTP:
            source = subprocess.Popen([sys.executable, "-I", "-S", _UPSTREAM, flood, str(port + 100)], **run)  # noqa: S603
            stack.callback(source.kill)
        command = [sys.executable, "-m", "callyard", "serve", "--transport", "http", "--port", str(port)]
        server = subprocess.Popen(command, cwd=folder, **run)  # noqa: S603 - our own server
        stack.callback(server.wait, 10)
        stack.callback(server.terminate)
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while server.poll() is None:
            with contextlib.suppress(OSError):
                connection.connect()
                break
            time.sleep(0.1)
        else:
            raise RuntimeError("The server did not start.")
        yield server.pid, connection


def _call(connection: http.client.HTTPConnection) -> float:
    """Return the milliseconds of one call."""
    message = {**_CALL, "params": {**_CALL["params"], "_meta": _META}}
    started = time.perf_counter()
    connection.request("POST", "/mcp", json.dumps(message), _HEADERS)
    answer = connection.getresponse().read()
    if b'"success":true' not in answer:
        raise RuntimeError(f"A call was answered with {answer!r}.")
    return (time.perf_counter() - started) * 1000


def _measure(pid: int, connection: http.client.HTTPConnection) -> tuple[list[float], float]:
    """Return the milliseconds of the calls of some seconds, and the server's share of a processor."""
    begin, cpu, taken = time.monotonic(), cpu_seconds(pid), list[float]()
    while time.monotonic() - begin < _SECONDS:
        taken.append(_call(connection))
        time.sleep(_PAUSE_S)
    return taken, (cpu_seconds(pid) - cpu) / (time.monotonic() - begin)


def main() -> None:
    """Measure all floods, or those that the command line names; every number is the median of the rounds."""
    floods = tuple(dict.fromkeys(("quiet", *sys.argv[1:]))) if sys.argv[1:] else (*_STDIO, *_HTTP)
    rounds: dict[str, list[tuple[float, float, float]]] = {flood: [] for flood in floods}
    for _ in range(_ROUNDS):
        for number, flood in enumerate(floods):
            with _served(flood, _FIRST_PORT + number) as (pid, connection):
                time.sleep(_START_S)  # the start is not measured
                taken, share = _measure(pid, connection)
            quantiles = statistics.quantiles(taken, n=100)
            rounds[flood].append((quantiles[49], quantiles[98], share))
    lines: list[list[str]] = []
    for flood in floods:
        p50, p99, share = (statistics.median(numbers) for numbers in zip(*rounds[flood], strict=True))
        pairs = zip(rounds[flood], rounds["quiet"], strict=True)
        ratio = statistics.median(ours[1] / quiet[1] for ours, quiet in pairs)
        lines.append([flood, f"{p50:.2f}", f"{p99:.2f}", f"{ratio:.2f}x", f"{share:.0%}"])
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print(as_table(("flood", "p50 ms", "p99 ms", "p99 beside quiet", "CPU of the server"), lines))


if __name__ == "__main__":
    main()
