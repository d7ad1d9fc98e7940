"""Fixtures that the tests of several floors share: a yard in a file, and programs in processes of their own."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from callyard.cli import main

TIMEOUT = 60.0
SHOP = '''
"""A shop to try commands on."""

from typing import Literal

from callyard import Call, Envelope, Image, Profile, Reason, ToolError, Toolset, Yard, tool
from callyard.model.content import ResourceLink, Text


@tool(operation="query", tags=("orders",), examples=[{"limit": 2}])
def list_orders(limit: int = 10, kind: Literal["open", "closed"] = "open") -> list[int]:
    """List the orders, newest first.

    Args:
        limit: How many.
        kind: Which.
    """
    print("a print of the tool")
    return list(range(limit))


@tool
def echo(
    text: str, number: float = 0, flag: bool = False, items: list[int] | None = None, either: int | str = 0
) -> dict:
    """Answer with the arguments."""
    return {"text": text, "number": number, "flag": flag, "items": items, "either": either}


@tool
async def fail(code: str, call: Call) -> None:
    """Fail with a code."""
    raise ToolError(code, "No.", next_actions=["echo(text=…)"], wanted=code)


@tool(operation="destroy", timeout=3, reasons={"busy": Reason("state_error", ("who",))}, aliases=("erase",))
def wipe(name: str) -> None:
    """Wipe | everything."""
    raise ToolError("state_error", f"'{name}' is busy.", reason="busy", who="me")


@tool
async def paint() -> Envelope:
    """Paint a picture."""
    return Envelope.ok("painted", content=[Image(b"12345"), Text("a picture"), ResourceLink("a://b", "b")])


@tool
async def work(call: Call) -> str:
    """Work, and tell of it."""
    call.progress(1, 2, "half")
    call.log("debug", "small", n=1)
    call.log("info", "large", n=2)
    call.log("error", "wrong", n=3)
    return "\\x1b[2Jdone\\u009b"


@tool
async def start(call: Call) -> str:
    """Start a session."""
    return call.start_session(kind="demo").id


@tool(session="required")
async def use() -> None:
    """Use a session."""


@tool(operation="eval")
def evaluate(code: str) -> str:
    """Evaluate code."""
    return code


READERS = Profile(name="readers", toolsets=(Toolset(name="queries", operations=("query",)),))
TOOLS = [list_orders, echo, fail, wipe, paint, work, start, use, evaluate]
yard = Yard("shop", tools=TOOLS, profiles=[READERS], version="1.2.3")
'''


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a file into the folder that the test runs in."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str, name: str = "app.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_file


@pytest.fixture
def shop(write: Callable[..., Path]) -> str:
    """Return the target of the shop, in the folder that the test runs in."""
    return write(SHOP, "shop.py").name


@pytest.fixture(name="until")
def make_until() -> Callable[[Callable[[], object]], Any]:
    """Return a function that waits for a condition."""

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.002)  # a polling interval

    return until


class Program:
    """A process of its own that runs a Python program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> bytes:
        """Return the next line of its stdout."""
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            return await self.process.stdout.readline()

    async def said(self, text: bytes) -> bytes:
        """Return the line of its stderr that has that text."""
        assert self.process.stderr is not None
        async with asyncio.timeout(TIMEOUT):
            while line := await self.process.stderr.readline():
                if text in line:
                    return line
        raise AssertionError(f"It never said {text!r}.")

    async def write(self, *messages: object) -> None:
        """Write messages to its stdin, one to a line."""
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
        async with asyncio.timeout(TIMEOUT):
            await self.process.stdin.drain()

    async def end(self) -> tuple[int | None, bytes, bytes]:
        """End its stdin, and return its status and what is left of its stdout and its stderr, once it ended."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        async with asyncio.timeout(TIMEOUT):
            out, err = await self.process.communicate()
        return self.process.returncode, out, err


def _heed_ctrl_c() -> None:
    """Restore SIGINT, which a shell ignores in background processes and their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
async def program(tmp_path: Path) -> AsyncGenerator[Callable[..., Any]]:
    """Return a function that runs a Python program in a process of its own."""
    started: list[asyncio.subprocess.Process] = []

    async def run(source: str, *arguments: str, stdin: Any = asyncio.subprocess.PIPE, **environment: str) -> Program:
        path = tmp_path / "program.py"
        path.write_text(source)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(path),
            *arguments,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
            preexec_fn=_heed_ctrl_c,
        )
        started.append(process)
        return Program(process)

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
def callyard(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process: its status, its stdout and its stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
