"""The backend `subprocess`: a plain child process, for the profile `dev`. It contains accidents, not attacks."""

import os
import shutil
import socket
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from callyard.runtimes.host import DRIVER_ARGUMENTS, Guest, GuestSettings, driver_source, start_guest
from callyard.runtimes.interpreter import base_executable
from callyard.runtimes.runtime import Probe, RunLimits

__all__ = ["PROCESS_LIMITS", "Subprocess", "is_orphan", "make_folder", "remove_orphans", "server_id"]

PROCESS_LIMITS: Final = {"CORE": 0, "NOFILE": 64, "FSIZE": 64 * 1024 * 1024}
"""Process limits of every guest."""
_FOLDER: Final = "callyard-guests-"
_SEPARATOR: Final = "+"
"""Between the parts of a folder's name; the name of a machine cannot have it."""
_NO_ISOLATION: Final = "a plain process is not isolated"


class Subprocess:
    """Starts guests as plain processes, with nothing of our environment."""

    name = "subprocess"

    def __init__(self) -> None:
        self._folder = ""

    async def probe(self) -> Probe:
        """Return that it runs everywhere and protects from nothing."""
        return Probe(
            backend=self.name,
            available=True,
            sandboxed=False,
            python=sys.version.split()[0],
            enforced=("timeout", "tool_calls", "output", "cpu", "disk"),
            unenforced={"memory": _NO_ISOLATION, "pids": _NO_ISOLATION, "files": _NO_ISOLATION, "network": _NO_ISOLATION},
        )

    async def open(self) -> None:
        """Make the working directory of the guests."""
        self._folder = make_folder()

    async def launch(self, limits: RunLimits) -> Guest:
        """Start a process."""
        argv = [base_executable(), *DRIVER_ARGUMENTS, str(len(driver_source()))]
        own = {**PROCESS_LIMITS, "CPU": limits.cpu_seconds}
        settings = GuestSettings(limits=own, dies_with_parent=sys.platform == "linux")
        return await start_guest(argv, settings, env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, cwd=self._folder or "/")

    async def close(self) -> None:
        """Remove the working directory."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def make_folder() -> str:
    """Make a temporary directory that names this server, so that a later one can remove it if this one is killed."""
    return tempfile.mkdtemp(prefix=f"{_FOLDER}{server_id().replace('/', _SEPARATOR)}{_SEPARATOR}")


def remove_orphans() -> None:
    """Remove the temporary directories of this user whose servers are dead."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        server = path.name.removeprefix(_FOLDER).rpartition(_SEPARATOR)[0].replace(_SEPARATOR, "/")
        if not is_orphan(server):
            continue
        with suppress(OSError):  # another server removed it first
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)


def server_id() -> str:
    """Return a unique id of this process: its machine with the pid namespace, its pid and its start time."""
    pid = os.getpid()
    return f"{_machine()}/{pid}/{_started(pid)}"


def _machine() -> str:
    """Return the names of the machine and of the pid namespace: containers that share a name have pids of their own."""
    try:
        return f"{socket.gethostname()}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """Return the start time of a process as the system counts it, or nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_orphan(server: str) -> bool:
    """Return whether a server of this machine is dead, so that nobody needs what it left behind."""
    machine, _, rest = server.partition("/")
    pid, _, started = rest.partition("/")
    if machine != _machine() or not pid.isdigit():
        return False
    now = _started(int(pid))
    return now != started if now else not _exists(int(pid))


def _exists(pid: int) -> bool:
    """Return whether there is a process; the system may hide those of other users in '/proc'."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True
