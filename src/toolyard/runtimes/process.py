"""The backend `subprocess`: a plain child process, for the profile `dev`. It contains accidents, not attacks."""

import shutil
import sys
import tempfile
from typing import Final

from toolyard.runtimes.host import DRIVER_ARGUMENTS, Guest, GuestSettings, driver_source, start_guest
from toolyard.runtimes.interpreter import base_executable
from toolyard.runtimes.runtime import Probe, RunLimits

__all__ = ["PROCESS_LIMITS", "Subprocess"]

PROCESS_LIMITS: Final = {"CORE": 0, "NOFILE": 64, "FSIZE": 64 * 1024 * 1024}
"""Process limits of every guest."""
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
        self._folder = tempfile.mkdtemp(prefix="toolyard-dev-")

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
