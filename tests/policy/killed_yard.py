"""A yard that is killed again and again: `killed_yard.py STORE NOTES PORT`.

Each run of its tool leaves a line in the notes.
"""

import os
import sys

from callyard import Limits, Yard, serve, tool
from callyard.state.sqlite import SqliteStore


@tool(operation="destroy")
async def burn(number: int) -> int:
    """Burn something."""
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b"%d\n" % number)  # survives a kill of this process
    os.close(descriptor)
    return number


if __name__ == "__main__":
    limits = Limits(approval_hold_s=0.3, approval_ttl_s=600)
    serve(Yard(tools=[burn], store=SqliteStore(sys.argv[1]), limits=limits), transport="http", port=int(sys.argv[3]))
