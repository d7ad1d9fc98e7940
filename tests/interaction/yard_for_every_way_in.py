"""A yard with a tool for each way a call can end, for tests over every way in."""

import asyncio
from typing import Any

from callyard import Call, Session, ToolError, Yard, tool


@tool(operation="query")
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(operation="command", reasons=("empty",))
async def refuse() -> int:
    """Refuse."""
    raise ToolError("state_error", "There is nothing.", reason="empty", left=0)


@tool(operation="command")
def break_down() -> int:
    """Break."""
    raise ValueError("hunter2")


@tool(operation="command", timeout=0.01)
async def wait() -> int:
    """Wait for ever."""
    await asyncio.Event().wait()
    return 1


@tool(operation="query")
async def look(session: Session) -> str:
    """Look into a session."""
    return session.id


@tool(operation="command")
async def say_nothing() -> str:
    """Promise a text and return none."""
    return None  # pyright: ignore[reportReturnType] - a tool that breaks its word


@tool(operation="command")
async def pass_on(name: str, arguments: dict[str, Any], call: Call) -> Any:
    """Call another tool and return its answer as it is."""
    return await call.invoke(name, arguments)


@tool(operation="query", job="always")
async def take_long() -> str:
    """Take long."""
    return "at last"


TOOLS = [take_long, add, refuse, break_down, wait, look, say_nothing, pass_on]
yard = Yard("every_way_in", tools=TOOLS)
