"""The supervisor of `--reload`: runs its own program as a server, and again after every change of a file. It knows no yard."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from callyard.launch.notices import Notices

__all__ = ["Start", "read_port", "read_start", "stop", "supervise"]

_POLL_S: Final = 0.5
"""How often files are compared; the standard library has no file notifications."""
_START: Final = "_CALLYARD_RELOAD"
_PORT: Final = "_CALLYARD_RELOAD_PORT"
_SUFFIXES: Final = (".py", ".toml")
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
Start = Literal["", "first", "again"]
"""Whether a supervisor started this process, for the first time or again; empty without a supervisor."""
Snapshot = dict[str, int]
"""Modification times of files by path."""


def read_start() -> Start:
    """Return how this process was started, and remove the variable, lest a child process inherits it."""
    start = os.environ.pop(_START, "")
    return "first" if start == "first" else "again" if start else ""


def read_port() -> int:
    """Return the port that the supervisor chose for all starts, or 0, and remove the variable."""
    return int(os.environ.pop(_PORT, "0"))


async def supervise(folder: Path, notices: Notices, *, kill_delay_s: float, port: int = 0) -> None:
    """Run this program again as a server and restart it after every change, until cancelled; every start gets the port."""
    start: Start = "first"
    while True:
        seen = _snapshot(folder)
        server = await _start_server(start, port)
        try:
            changed = await _wait_for_change(folder, seen, server=server, notices=notices)
        finally:
            await stop(server, kill_delay_s)
        notices.inform(f"'{changed}' changed: restarting the server.")
        start = "again"


async def _start_server(start: Start, port: int) -> asyncio.subprocess.Process:
    # A process group of its own keeps Ctrl-C away: the supervisor ends the server, and once is enough.
    variables: dict[str, str] = {_START: start, **({_PORT: str(port)} if port else {})}
    return await asyncio.create_subprocess_exec(
        sys.executable, *sys.orig_argv[1:], stdin=asyncio.subprocess.PIPE, process_group=0, env={**os.environ, **variables}
    )


async def _wait_for_change(folder: Path, seen: Snapshot, *, server: asyncio.subprocess.Process, notices: Notices) -> str:
    """Wait until a file is changed, added or removed, and return its path; say once if the server has ended meanwhile."""
    is_reported = False
    while True:
        await asyncio.sleep(_POLL_S)
        now = _snapshot(folder)
        if now != seen:
            changed = min(dict(seen.items() ^ now.items()))
            return str(Path(changed).relative_to(folder))
        if server.returncode is not None and not is_reported:
            is_reported = True
            notices.say(f"The server ended with status {server.returncode}; it restarts when a file changes.")


async def stop(server: asyncio.subprocess.Process, kill_delay_s: float) -> None:
    """Terminate a process, and kill it if it has not ended after so many seconds."""
    if server.returncode is not None:
        return
    server.terminate()
    try:
        async with asyncio.timeout(kill_delay_s):
            await server.wait()
    except TimeoutError:
        server.kill()
        await server.wait()


def _snapshot(folder: Path) -> Snapshot:
    """Return the modification time of each watched file."""
    found: Snapshot = {}
    for path in _files(folder):
        try:
            found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - faster than pathlib, and runs twice a second over many files
        except FileNotFoundError:  # removed since it was listed
            continue
    return found


def _files(folder: Path) -> Iterator[str]:
    for place, inside, files in os.walk(folder):
        inside[:] = [name for name in inside if not name.startswith(".") and name not in _SKIPPED and not _is_environment(place, name)]
        yield from (os.path.join(place, name) for name in files if name.endswith(_SUFFIXES))  # noqa: PTH118 - the same


def _is_environment(place: str, name: str) -> bool:
    return os.path.exists(os.path.join(place, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - the same
