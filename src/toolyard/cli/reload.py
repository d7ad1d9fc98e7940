"""Reloading: a server in a process of its own, started anew when a file beside the yard changes.

It knows no yard: what it starts is the program that it is part of, once more.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from toolyard.cli.terminal import Terminal

__all__ = ["Beginning", "beginning_of", "end_with_supervisor", "kept_port", "stop", "supervise"]

_MARK: Final = "_TOOLYARD_RELOAD"
_PORT: Final = "_TOOLYARD_RELOAD_PORT"
_SECONDS: Final = 0.5
_ENDINGS: Final = (".py", ".toml")
_STRANGE: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Beginning = Literal["", "first", "again"]
"""Whether a process that watches has started this one, for the first time or anew."""

Snapshot = dict[str, int]


def beginning_of() -> Beginning:
    """Return who has started this process, and forget how it was told, so that no program it starts takes it for its own."""
    marked = os.environ.pop(_MARK, "")
    return "first" if marked == "first" else "again" if marked else ""


def kept_port() -> int:
    """Return the port that stays the same from one start to the next where any is wanted, or 0, and forget how it was told."""
    return int(os.environ.pop(_PORT, "0"))


def end_with_supervisor() -> None:
    """End this process when the one that watches is gone, however that went."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(0)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(0, end)  # nothing is ever written there, so it can only be closed


async def supervise(folder: Path, terminal: Terminal, *, patience: float, port: int = 0) -> None:
    """Start this program once more as a server, and anew after every change, until cancelled; a port is for all of them."""
    beginning: Beginning = "first"
    while True:
        seen = _snapshot(folder)
        server = await _start(beginning, port)
        try:
            changed = await _change(folder, seen, server=server, terminal=terminal)
        finally:
            await stop(server, patience)
        if not terminal.quiet:
            terminal.say(f"'{changed}' changed: starting anew.")
        beginning = "again"


async def _start(beginning: Beginning, port: int) -> asyncio.subprocess.Process:
    # In a group of its own it does not hear Ctrl-C, which reaches it once, from here.
    told: dict[str, str] = {_MARK: beginning, **({_PORT: str(port)} if port else {})}
    return await asyncio.create_subprocess_exec(
        sys.executable, *sys.orig_argv[1:], stdin=asyncio.subprocess.PIPE, process_group=0, env={**os.environ, **told}
    )


async def _change(folder: Path, seen: Snapshot, *, server: asyncio.subprocess.Process, terminal: Terminal) -> str:
    """Wait until a file is changed, added or removed, and return its name."""
    told = False
    while True:
        await asyncio.sleep(_SECONDS)  # files are looked at, since nothing here tells of their changes
        now = _snapshot(folder)
        if now != seen:
            changed = min(dict(seen.items() ^ now.items()))
            return str(Path(changed).relative_to(folder))
        if server.returncode is not None and not told:
            told = True
            terminal.say(f"The server ended with status {server.returncode}; it starts anew when a file changes.")


async def stop(server: asyncio.subprocess.Process, patience: float) -> None:
    """End a process, with force if it has not ended after so many seconds."""
    if server.returncode is not None:
        return
    server.terminate()
    try:
        async with asyncio.timeout(patience):
            await server.wait()
    except TimeoutError:
        server.kill()
        await server.wait()


def _snapshot(folder: Path) -> Snapshot:
    """Return when each file was last changed."""
    found: Snapshot = {}
    for path in _files(folder):
        try:
            found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - it runs twice a second over many files
        except FileNotFoundError:  # removed meanwhile
            continue
    return found


def _files(folder: Path) -> Iterator[str]:
    for place, inside, files in os.walk(folder):
        inside[:] = [name for name in inside if not name.startswith(".") and name not in _STRANGE and not _is_environment(place, name)]
        yield from (os.path.join(place, name) for name in files if name.endswith(_ENDINGS))  # noqa: PTH118 - the same


def _is_environment(place: str, name: str) -> bool:
    return os.path.exists(os.path.join(place, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - the same
