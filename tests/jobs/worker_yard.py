"""The yard of servers and workers that are killed; each run of a tool leaves a line in the file `$NOTES`."""

import asyncio
import os
from pathlib import Path

from callyard import Limits, Yard, tool


def note(line: str) -> None:
    """Append a line, which survives a kill of this process."""
    descriptor = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@tool(operation="command")
async def act(number: int, seconds: float = 0.0) -> int:
    """Do something that must not be done twice."""
    note(f"act {number}")
    await asyncio.sleep(seconds)
    return number


@tool(operation="command", idempotent=True)
async def put(number: int, seconds: float = 0.0) -> int:
    """Do something that may be done twice."""
    note(f"put {number}")
    await asyncio.sleep(seconds)
    return number


@tool(operation="query")
async def wait_for(file: str) -> int:
    """Wait for a file; return the id of the process."""
    note(f"wait {os.getpid()}")
    while not await asyncio.to_thread(Path(file).exists):  # noqa: ASYNC110 - a file gives no sign
        await asyncio.sleep(0.05)
    return os.getpid()


yard = Yard(tools=[act, put, wait_for], limits=Limits(jobs=10_000))
