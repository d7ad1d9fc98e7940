"""A yard whose tools are tasks, on stdio: `tasks_server.py FILE`; the file gets a line when a task is cancelled."""

import asyncio
import sys
from pathlib import Path

from callyard import Call, ToolError, Yard, serve, tool

__all__ = ["ask", "crash", "double", "quick", "wait"]

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@tool(operation="query")
def quick() -> str:
    """Answer at once."""
    return "quick"


@tool(operation="command", job="optional")
async def double(number: int, call: Call) -> int:
    """Double a number."""
    await call.progress(1, 2, "halfway")
    return 2 * number


@tool(operation="command", job="optional")
async def ask(call: Call) -> str:
    """Ask for a name."""
    return f"Hello {(await call.ask(FORM, 'Who?'))['name']}"


@tool(operation="command", job="optional")
async def crash() -> None:
    """Crash."""
    raise LookupError


@tool(operation="command", job="optional")
async def refuse() -> None:
    """Fail."""
    raise ToolError("state_error", "Not now.")


@tool(operation="command", job="optional")
async def wait() -> None:
    """Wait until it is cancelled."""
    file = Path(sys.argv[1])
    await asyncio.to_thread(file.write_text, "begun")
    try:
        await asyncio.Event().wait()
    finally:
        file.write_text("cancelled")  # noqa: ASYNC240 - the task is cancelled, and cannot wait


if __name__ == "__main__":
    serve(Yard("inner", tools=[quick, double, ask, crash, refuse, wait]))
