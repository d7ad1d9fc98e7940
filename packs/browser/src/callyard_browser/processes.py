"""Processes and folders of a yard's browsers: found by the profile that they use, ended, and swept after a kill."""

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["children", "end_processes", "is_running", "make_run_folder", "remove", "started_at", "sweep", "users_of"]

_PROC: Final = Path("/proc")
_RUN: Final = re.compile(r"run-(\d+)-(\d+)-[0-9a-f]+")
_DRIVER: Final = b"run-driver"
_POLL_S: Final = 0.02


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name: state, parent and so on; none if there is no such process."""
    try:
        return (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def started_at(pid: int) -> int:
    """Return when a process started, in ticks since the boot; 0 if there is none."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_running(pid: int) -> bool:
    """Return whether there is a process that has not ended."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def _command(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def children(parent: int) -> set[int]:
    """Return the drivers that a process has started."""
    return {pid for pid in _pids() if _stat(pid)[1:2] == [str(parent)] and _DRIVER in _command(pid)}


def users_of(folder: Path) -> set[int]:
    """Return the processes whose command names a folder or something in it."""
    name = os.fsencode(folder)
    return {pid for pid in _pids() if name in _command(pid) and pid != os.getpid() and is_running(pid)}


async def end_processes(pids: set[int], seconds: float = 2.0) -> None:
    """Kill processes and wait until they have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while any(is_running(pid) for pid in pids):  # noqa: ASYNC110 - the process of another parent has no event
                await asyncio.sleep(_POLL_S)


def make_run_folder(folder: Path) -> Path:
    """Return a fresh folder that is named after this process, so that a later one can tell that it has ended."""
    own = folder / f"run-{os.getpid()}-{started_at(os.getpid())}-{secrets.token_hex(4)}"
    own.mkdir(mode=0o700)
    return own


async def remove(folder: Path) -> None:
    """Remove a folder, also one that an ending process still writes to."""
    for _ in range(5):
        if await asyncio.to_thread(_try_to_remove, folder):
            return
        await asyncio.sleep(_POLL_S)


def _try_to_remove(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


async def sweep(folder: Path) -> None:
    """End what processes that have died left behind, and remove their folders."""
    for path in await asyncio.to_thread(lambda: list(folder.glob("run-*-*-*"))):
        match = _RUN.fullmatch(path.name)
        if match is None or started_at(int(match[1])) == int(match[2]):
            continue
        browsers = users_of(path)
        parents = {int(fields[1]) for pid in browsers if (fields := _stat(pid))}
        drivers = {pid for pid in parents if _DRIVER in _command(pid)}
        await end_processes(browsers | drivers)
        await remove(path)
