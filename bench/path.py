"""Print the files of `src/callyard` that one `tools/call` over HTTP passes through, in the order in which they are entered.

It serves a yard with our own HTTP server in this process, warms it up, and profiles a single call of the 2026-07-28 era.

    .venv/bin/python bench/path.py
"""

import asyncio
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import callyard
from callyard import Yard, tool
from callyard.config.settings import Serving
from callyard.transports.http import Http

_ROOT = Path(callyard.__file__).parent
_WARM_UP_CALLS = 50
_PARAMS: dict[str, Any] = {
    "name": "add",
    "arguments": {"a": 1, "b": 2},
    "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}},
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


async def _call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": _PARAMS}).encode()
    writer.write((_HEADERS % len(body)).replace("\n", "\r\n").encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return json.loads(await reader.readexactly(length))


async def _entered_files() -> list[str]:
    """Return the files that one warm call enters, each once, in order."""
    transport = Http(Serving(transport="http", port=0))
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(_ROOT):
            entered[str(path.relative_to(_ROOT))] = None

    async with Yard(tools=[add]) as yard:
        serving = asyncio.create_task(transport.serve(yard))
        reader, writer = await asyncio.open_connection(*transport.listener.getsockname()[:2])
        for _ in range(_WARM_UP_CALLS):
            await _call(reader, writer)
        reply = await _call(reader, writer)
        if reply["result"]["structuredContent"]["data"] != 3:
            raise SystemExit(f"The call failed: {reply}")
        sys.setprofile(note)
        try:
            await _call(reader, writer)
        finally:
            sys.setprofile(None)
        writer.close()
        await transport.close()
        await serving
    return list(entered)


def main() -> None:
    """Print the files and their number."""
    files = asyncio.run(_entered_files())
    print(*files, len(files), sep="\n")


if __name__ == "__main__":
    main()
