"""A yard whose policy denies destroying; it writes its records and runs to the file that a variable names."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from callyard import Call, Envelope, Operation, Record, ToolError, Yard, tool


def note(**facts: Any) -> None:
    """Write one line."""
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(json.dumps(facts) + "\n")


@tool(operation="query")
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    note(ran="add")
    return a + b


@tool(operation="destroy")
async def wipe() -> str:
    """Delete everything."""
    note(ran="wipe")
    return "gone"


@tool(operation="command", timeout=0.01)
async def wait() -> int:
    """Wait for ever."""
    await asyncio.Event().wait()
    return 1


async def decide(call: Call) -> Envelope | None:
    """Forbid what destroys."""
    if call.spec.operation == Operation.DESTROY:
        raise ToolError("permission_denied", "Nothing is destroyed here.")
    return None


def keep(record: Record) -> None:
    """Note a record."""
    note(
        tool=record.tool,
        id=record.call_id,
        parent=record.parent_id,
        code=record.code,
        depth=record.depth,
        channel=record.channel,
    )


yard = Yard("guarded", tools=[add, wipe, wait], policies=[decide], sinks=[keep])
