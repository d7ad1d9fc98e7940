"""A yard that has nothing of its own and one upstream: `gate.py ERA STATE (FILE | URL) --port PORT`."""

import sys
from pathlib import Path

from callyard import Limits, Yard, serve
from callyard.providers.upstream.provider import make_upstream
from callyard.providers.upstream.settings import UpstreamSettings

era, state, upstream, _, port = sys.argv[1:]
reached = {"url": upstream} if upstream.startswith("http") else {"command": sys.executable, "args": (upstream,)}
# A yard passes no tasks on: these tools would run as ordinary calls, and the suite would wait for each in vain.
TASKS = ("slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input", "test_tool_with_task")
# No person is there to settle what tools without hints do.
shared = {"forward_meta": ("*",), "forward_roots": True, "unannotated": "allow"}
settings = UpstreamSettings(**reached, **shared, prefix="", era=era, without=TASKS)  # pyright: ignore[reportArgumentType] - a test says what it wants

yard = Yard(
    "gate",
    providers=[make_upstream("up", settings, state=Path(state))],
    metatools=False,
    limits=Limits(result_characters=10**9),
)

if __name__ == "__main__":
    serve(yard, transport="http", port=int(port))
