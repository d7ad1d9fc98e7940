"""A yard that is killed again and again: `killed_yard.py STORE NOTES PORT`.

Each run of a tool leaves a line in the notes.
"""

import asyncio
import os
import sys

from callyard import Limits, Yard, serve, tool
from callyard.state.sqlite import SqliteStore
from callyard.transports.auth import ApiKey, ApiKeys, digest_of

KEY = "cy_test"


def note(line: str) -> None:
    """Append a line, which survives a kill of this process."""
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@tool(operation="query")
async def much(number: int) -> str:
    """Return more than an answer holds."""
    return f"{number}:" + "x" * 60_000


@tool(operation="command")
async def act(number: int, seconds: float = 0.0) -> int:
    """Do something that must not be done twice."""
    note(f"act {number}")
    await asyncio.sleep(seconds)
    return number


@tool(operation="query")
async def look(number: int, seconds: float = 0.0) -> int:
    """Look something up."""
    note(f"look {number}")
    await asyncio.sleep(seconds)
    return number


@tool(operation="command", idempotent=True)
async def put(number: int, seconds: float = 0.0) -> int:
    """Do something that may be done twice."""
    note(f"put {number}")
    await asyncio.sleep(seconds)
    return number


if __name__ == "__main__":
    store = SqliteStore(sys.argv[1])
    keys = ApiKeys([ApiKey("ada", digest_of(KEY))])
    limits = Limits(stored_results=5000)  # all results that the test asks for
    serve(
        Yard(tools=[much, act, look, put], store=store, limits=limits),
        transport="http",
        port=int(sys.argv[3]),
        authenticator=keys,
    )
