"""Status: how an upstream is, as people and programs are told; also what of it is kept for commands that ask later."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from toolyard.state_dir import read_private, write_atomically

__all__ = ["State", "Status", "ask_for_restart", "keep_status", "read_status", "restart_asked_at"]

State = Literal["cold", "starting", "ready", "degraded", "backing_off", "auth_needed", "stopped"]

_STATUS: Final = "status.json"
_RESTART: Final = "restart"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How one upstream is, and why."""

    name: str
    state: State
    reason: str = ""
    since: float = 0.0
    """When it came to be so, in seconds of the wall clock."""
    server: str = ""
    """What it calls itself."""
    version: str = ""
    """The version of the protocol it speaks."""
    tools: int = 0
    resources: int = 0
    prompts: int = 0
    withheld: int = 0
    """Things that it has and that are not published."""
    warned: int = 0
    """Things that are published although nobody accepted them as they are."""
    calls: int = 0
    failures: int = 0
    latency_ms: float | None = None
    """What a call took lately, on average."""
    last_error: str = ""
    retry_at: float | None = None
    """When it may be tried again, in seconds of the wall clock."""
    seen: float | None = None
    """When what it offers was last looked at."""
    pid: int = 0
    """The yard that says so."""


def keep_status(folder: Path, status: Status) -> None:
    """Keep how an upstream is where commands of other processes find it.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(folder / _STATUS, msgspec.json.encode(status))


def read_status(folder: Path) -> Status | None:
    """Return how an upstream is, as the yard that uses it last said; nothing if no yard that still runs uses it."""
    with suppress(OSError, msgspec.DecodeError):
        status = msgspec.json.decode(read_private(folder / _STATUS), type=Status)
        return status if status.state != "stopped" and _is_alive(status.pid) else None
    return None


def ask_for_restart(folder: Path) -> None:
    """Ask whichever yard uses an upstream to start it anew.

    Raises:
        OSError: That cannot be written.
    """
    write_atomically(folder / _RESTART, b"")


def restart_asked_at(folder: Path) -> float:
    """Return when somebody last asked for that, in seconds of the wall clock."""
    with suppress(OSError):
        return (folder / _RESTART).stat().st_mtime
    return 0.0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
