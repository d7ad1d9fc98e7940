"""A server of the official Python SDK that asks, tells how far it is and waits: `sdk_server.py (stdio | http PORT)`."""

import os
import socket
import sys
from collections import defaultdict
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

__all__ = ["server"]

READ = ToolAnnotations(read_only_hint=True)
server = MCPServer("sdk", version="1.2.3", instructions="Use 'add' to add.", log_level="CRITICAL")
started: dict[str, anyio.Event] = defaultdict(anyio.Event)
stopped: dict[str, anyio.Event] = defaultdict(anyio.Event)


class Name(BaseModel):
    """What somebody is called."""

    name: str


@server.tool(annotations=READ)
async def add(a: int, b: int = 1) -> int:
    """Add two integers."""
    return a + b


@server.tool()
async def fail(text: str) -> None:
    """Fail with a text."""
    raise ToolError(text)


@server.tool(annotations=READ)
async def pid() -> int:
    """Tell the process."""
    return os.getpid()


@server.tool(annotations=READ)
async def headers(context: Context) -> dict[str, str]:
    """Tell the headers that came along."""
    return dict(context.headers or {})


async def ask_name(greeting: str) -> Elicit[Name]:
    """Ask whoever calls for a name."""
    return Elicit(f"{greeting}: who is there?", Name)


@server.tool()
async def greet(greeting: str, who: Annotated[Name, Resolve(ask_name)]) -> str:
    """Greet whoever calls, who is asked for a name."""
    return f"{greeting} {who.name}"


@server.tool()
async def step(word: str, count: int, context: Context) -> str:
    """Tell how far it is, step by step, each with the word."""
    for number in range(1, count + 1):
        await context.report_progress(number, count, f"{word} {number}")
    return word


@server.tool()
async def touch(uri: str, context: Context) -> None:
    """Tell those who listen that a resource changed."""
    await context.notify_resource_updated(uri)


@server.tool()
async def wait_for_ever(key: str) -> None:
    """Wait until somebody stops the call."""
    started[key].set()
    try:
        await anyio.sleep_forever()
    finally:
        stopped[key].set()


@server.tool(annotations=READ)
async def was_started(key: str) -> bool:
    """Wait until a call with this key has begun."""
    await started[key].wait()
    return True


@server.tool(annotations=READ)
async def was_stopped(key: str) -> bool:
    """Wait until a call with this key was stopped."""
    await stopped[key].wait()
    return True


@server.resource("notes://all", mime_type="text/plain")
async def notes() -> str:
    """Return every note."""
    return "Water the plants."


@server.resource("notes://{day}", mime_type="text/plain")
async def note_of(day: str) -> str:
    """Return the note of a day."""
    return f"Note of {day}."


@server.prompt()
async def review(topic: str) -> str:
    """Ask for a review."""
    return f"Review {topic}."


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        import uvicorn  # the other carrier starts sooner without it

        listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="critical")).run([listener])
