"""A yard that runs programs, with a tool that a served yard asks about.

What ran is written to the file that a variable names.
"""

import os
from pathlib import Path

from callyard import Limits, RuntimeSettings, SqliteStore, Yard, tool


def note(text: str) -> str:
    """Write one line, which survives a kill of this process."""
    with Path(os.environ["NOTES"]).open("a") as file:
        file.write(f"{text}\n")
    return text


@tool(operation="destroy")
async def wipe(name: str) -> str:
    """Delete something."""
    return note(f"wiped {name}")


@tool
async def look() -> str:
    """Look around."""
    return note("looked")


yard = Yard(
    "shop",
    tools=[wipe, look],
    store=SqliteStore(os.environ["STORE"]),
    limits=Limits(approval_hold_s=float(os.environ.get("HOLD", "0.2"))),
    runtime=RuntimeSettings(enabled=True, backend="bubblewrap"),
)
