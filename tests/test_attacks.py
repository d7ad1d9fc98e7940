"""Attacks on a real HTTP server: other clients are answered, memory stays bounded, and SIGTERM ends the server.

A row of `ATTACKS` is the tool and the arguments, as JSON text, that one client sends while another one calls a cheap
tool.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from callyard.model.schema import MAX_ISSUES

NOISE = 4 if "coverage" in sys.modules else 2  # measuring coverage takes as long as the code itself
"""How much longer than 250 ms a client may wait here."""
LONGEST_WAIT_S = 0.5 * NOISE
"""In seconds of the server's own processor time, so that other work of the machine does not count."""
MOST_MEMORY_KB = 400 * 1024
LAST_S = 5.0

APP = """
import json, sys
from typing import Literal
from pydantic import BaseModel
from callyard import Yard, tool

class A(BaseModel):
    a: int
class B(BaseModel):
    x: str
    y: int
class C(BaseModel):
    k: Literal["q"]
    inner: list["A | C"] = []

@tool(operation="query")
async def ping() -> str:
    '''Answer at once.'''
    return "pong"

@tool(operation="query")
async def numbers(a: list[int]) -> int:
    '''Take numbers.'''
    return len(a)

@tool(operation="query")
async def either(a: list[A | B | C]) -> int:
    '''Take one of three.'''
    return len(a)

@tool(operation="query")
async def many(a: int, b: int, c: int, d: int, e: int, f: int, g: int, h: int, i: int, j: int) -> int:
    '''Take ten numbers.'''
    return a

@tool(operation="query")
async def large(megabytes: int) -> str:
    '''Make a long text.'''
    return "x" * (megabytes * 1_000_000)

@tool(operation="query")
async def take(a: list[object]) -> int:
    '''Take anything.'''
    return len(a)

@tool(operation="query")
async def one(a: A | B | C) -> int:
    '''Take one of three.'''
    return 1

@tool(operation="query")
async def grid(a: list[list[list[int]]]) -> int:
    '''Take a grid.'''
    return len(a)

@tool(operation="query")
async def named(a: dict[str, int]) -> int:
    '''Take a map.'''
    return len(a)

yard = Yard("app", tools=[ping, numbers, either, many, large, take, one, grid, named])
"""


def chain(*steps: dict[str, Any]) -> str:
    return json.dumps({"steps": list(steps)})


def repeated(item: str) -> str:
    """Return as many items as arguments may have."""
    return ",".join([item] * 490_000)


def linked(references: int, megabytes: int) -> str:
    return chain(
        {"tool_id": "large", "args": {"megabytes": megabytes}},
        {"tool_id": "take", "args": {"a": [{"$from": 0} for _ in range(references)]}},
    )


ATTACKS: dict[str, tuple[str, Callable[[], str], str]] = {
    "a million texts for numbers": ("numbers", lambda: '{"a":[' + ",".join(['"a"'] * 990_000) + "]}", "too_large"),
    "a million empty objects for a union": (
        "either",
        lambda: '{"a":[' + ",".join(["{}"] * 1_300_000) + "]}",
        "too_large",
    ),
    "texts for numbers": ("numbers", lambda: '{"a":[' + repeated('"a"') + "]}", "invalid_input"),
    "fractions for numbers": ("numbers", lambda: '{"a":[' + repeated("1.5") + "]}", "invalid_input"),
    "whole fractions for numbers": ("numbers", lambda: '{"a":[' + repeated("1.0") + "]}", "invalid_input"),
    "empty objects for a union": ("either", lambda: '{"a":[' + repeated("{}") + "]}", "invalid_input"),
    "a whole fraction beside a large value in a union": (
        "one",
        lambda: '{"a":{"a":5.0,"q":[' + repeated("{}") + "]}}",
        "invalid_input",
    ),
    "a whole fraction beside a large argument": (
        "many",
        lambda: '{"a":5.0,"q":[' + repeated("{}") + "]}",
        "invalid_input",
    ),
    "lists in lists, the last of which is none": (
        "grid",
        lambda: '{"a":[' + repeated("[[]]") + ",1]}",
        "invalid_input",
    ),
    "a map whose last value is wrong": (
        "named",
        lambda: json.dumps({"a": {f"{index:x}": 1 for index in range(330_000)} | {"z": "z"}}),
        "invalid_input",
    ),
    "half-right objects for a union": (
        "either",
        lambda: '{"a":[' + ",".join(['{"k":"q","inner":[{}]}'] * 170_000) + "]}",
        "invalid_input",
    ),
    "many missing arguments beside a large one": ("many", lambda: '{"q":[' + repeated("{}") + "]}", "invalid_input"),
    "many unknown arguments": (
        "numbers",
        lambda: json.dumps({f"{index:x}": 1 for index in range(350_000)}),
        "invalid_input",
    ),
    "a chain of many steps": ("run_chain", lambda: chain(*[{"tool_id": "ping", "wrong": 1}] * 50_000), "invalid_input"),
    "a chain of large wrong steps": (
        "run_chain",
        lambda: chain(*[{"tool_id": "numbers", "args": {"a": ["a"] * 20_000}}] * 20),
        "invalid_input",
    ),
    "a chain that refers to a large result often": ("run_chain", lambda: linked(150, 14), "chain_step_failed"),
    "a chain with many references": ("run_chain", lambda: linked(100_000, 0), ""),
}


@contextmanager
def served(folder: Path) -> "Generator[tuple[subprocess.Popen[str], str]]":
    """Serve the app over HTTP, and return the process and its address."""
    (folder / "app.py").write_text(APP)
    command = [sys.executable, "-m", "callyard", "serve", str(folder / "app.py"), "--transport", "http", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as process:  # noqa: S603 - our own
        assert process.stderr is not None
        try:
            found = next(match[0] for line in process.stderr if (match := re.search(r"http://[^/\s]+/mcp", line)))
            reader = threading.Thread(target=process.stderr.read, daemon=True)  # so that a full pipe never stops it
            reader.start()
            yield process, found
        finally:
            process.kill()


def call(address: str, tool: str, arguments: str) -> dict[str, Any]:
    """Call a tool and return the envelope."""
    meta = (
        '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
        '"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}'
    )
    body = (
        f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},{meta}}}}}'
    )
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    request = urllib.request.Request(address, body.encode(), headers)  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - as above
        text = response.read().decode()
    data = (
        text
        if text.startswith("{")
        else next(line[5:] for line in text.splitlines() if line.startswith("data:") and '"result"' in line)
    )
    return json.loads(data)["result"]["structuredContent"]


class Prober:
    """Another client, which calls a cheap tool again and again and notes its longest wait."""

    def __init__(self, address: str, pid: int) -> None:
        self._address = address
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._probe, daemon=True)
        self.longest_wait_s = 0.0
        self.answers = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def _probe(self) -> None:
        while not self._ended.is_set():
            began = processor_s(self._pid)
            assert call(self._address, "ping", "{}")["data"] == "pong"
            self.longest_wait_s = max(self.longest_wait_s, processor_s(self._pid) - began)
            self.answers += 1


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def peak_memory_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("attack", ATTACKS)
def test_other_clients_are_answered_while_an_attack_runs(attack: str, tmp_path: Path) -> None:
    tool, make, code = ATTACKS[attack]
    arguments = make()
    with served(tmp_path) as (process, address):
        call(address, "ping", "{}")
        sender = [sys.executable, "-c", SENDER, str(Path(__file__).parent), address, tool]
        with Prober(
            address, process.pid
        ) as prober:  # the attacker is another process, so that it does not slow the prober down
            sent = subprocess.run(sender, input=arguments, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - our own
        answer = json.loads(sent.stdout)
        memory = peak_memory_kb(process.pid)
        process.send_signal(signal.SIGTERM)
        process.wait(LAST_S)

    assert ("" if answer["success"] else answer["error"]["code"]) == code
    assert answer["success"] or len(answer["error"]["details"].get("issues", [])) <= MAX_ISSUES
    assert prober.answers
    assert prober.longest_wait_s < LONGEST_WAIT_S
    assert memory < MOST_MEMORY_KB


SENDER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_attacks import call
print(json.dumps(call(sys.argv[2], sys.argv[3], sys.stdin.read())))
"""
