"""Print the files of `src/callyard` that one `tools/call` over HTTP passes through, in the order of entry.

It serves a yard with our own HTTP server in this process, warms it up, and profiles a single call of the 2026-07-28
era. Then it counts the functions that a chain of one step enters in the library, when the step waits for an approval
that comes from another task. A coroutine that goes on is not counted again. `--functions` prints the functions.

    .venv/bin/python bench/path.py
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import callyard
from callyard import Operation, Rule, Yard, tool
from callyard.config.settings import Serving
from callyard.policy.approvals import Approvals
from callyard.transports.http import Http

_ROOT = Path(callyard.__file__).parent
_WARM_UP_CALLS = 50
_LIMIT = 350
_PARAMS: dict[str, Any] = {
    "name": "add",
    "arguments": {"a": 1, "b": 2},
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    },
}
_HEADERS = """POST /mcp HTTP/1.1
Host: localhost
Accept: application/json, text/event-stream
Content-Type: application/json
MCP-Protocol-Version: 2026-07-28
Mcp-Method: tools/call
Mcp-Name: add
Content-Length: %d

"""


@tool(operation="query")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(operation="destroy")
async def burn(letter: str) -> str:
    """Burn a letter."""
    return f"{letter} is ash"


async def _call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _PARAMS}).encode()
    writer.write((_HEADERS % len(body)).replace("\n", "\r\n").encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return json.loads(await reader.readexactly(length))


async def _entered_files() -> list[str]:
    """Return the files that one warm call enters, each once, in order."""
    transport = Http(Serving(transport="http", port=0))
    async with Yard(tools=[add]) as yard:
        serving = asyncio.create_task(transport.serve(yard))
        reader, writer = await asyncio.open_connection(*transport.listeners[0].getsockname()[:2])
        for _ in range(_WARM_UP_CALLS):
            await _call(reader, writer)
        reply = await _call(reader, writer)
        if reply["result"]["structuredContent"]["data"] != 3:
            raise SystemExit(f"The call failed: {reply}")
        with _profiled() as frames:
            await _call(reader, writer)
        writer.close()
        await transport.close()
        await serving
    return list(dict.fromkeys(map(_file_of, frames)))


async def _entered_functions() -> Counter[str]:
    """Return how often each function is entered by a warm chain of one step that waits for an approval."""
    rules = [Rule(decision="ask", operations=(Operation.DESTROY,))]
    async with Yard(tools=[burn], rules=rules) as yard:
        assert yard.gate is not None  # noqa: S101 - it has a rule
        approvals = yard.gate.approvals
        await _chain(yard, approvals, "warm")
        with _profiled(ignored="approver") as frames:
            await _chain(yard, approvals, "measured")
    return Counter(f"{_file_of(frame)}:{frame.f_code.co_qualname}" for frame in frames)


async def _chain(yard: Yard, approvals: Approvals, letter: str) -> None:
    """Run the chain, and approve its step from another task."""
    approver = asyncio.create_task(_approve(approvals), name="approver")
    answer = await yard.call("run_chain", {"steps": [{"tool_id": "burn", "args": {"letter": letter}}]})
    await approver
    if not answer.success:
        raise SystemExit(f"The chain failed: {answer.error}")


async def _approve(approvals: Approvals) -> None:
    waiting = await approvals.watch(set())
    await approvals.decide(waiting.id, "approve", by="bench")


@contextmanager
def _profiled(ignored: str = "") -> Generator[list[FrameType]]:
    """Yield the frames of the library that are entered meanwhile, each once, but none in tasks of that name."""
    frames: dict[FrameType, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not Path(frame.f_code.co_filename).is_relative_to(_ROOT):
            return
        task = asyncio.current_task()
        if task is None or task.get_name() != ignored:
            frames[frame] = None

    entered: list[FrameType] = []
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        entered += frames


def _file_of(frame: FrameType) -> str:
    return str(Path(frame.f_code.co_filename).relative_to(_ROOT))


def main() -> None:
    """Print the files and their number, then the number of functions of a chain."""
    files = asyncio.run(_entered_files())
    print(*files, len(files), sep="\n")
    functions = asyncio.run(_entered_functions())
    if "--functions" in sys.argv:
        for name, times in functions.most_common():
            print(f"{times:4} {name}")
    print(f"a chain of one step that waits for an approval enters {functions.total()} functions; the limit is {_LIMIT}")


if __name__ == "__main__":
    main()
