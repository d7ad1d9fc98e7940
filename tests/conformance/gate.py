"""A yard that has nothing of its own and one upstream: `gate.py ERA STATE (FILE | URL) --port PORT`."""

import sys
from pathlib import Path

from toolyard import Limits, Yard, serve
from toolyard.providers.upstream.provider import make_upstream
from toolyard.providers.upstream.settings import UpstreamSettings

era, state, upstream, _, port = sys.argv[1:]
reached = {"url": upstream} if upstream.startswith("http") else {"command": sys.executable, "args": (upstream,)}
settings = UpstreamSettings(**reached, prefix="", era=era)  # pyright: ignore[reportArgumentType] - a test says what it wants

yard = Yard("gate", providers=[make_upstream("up", settings, state=Path(state))], metatools=False, limits=Limits(result_characters=10**9))

if __name__ == "__main__":
    serve(yard, transport="http", port=int(port))
