"""The process of an upstream: starts a program in a process group of its own, and ends the whole group.

Beside every program runs a guard, a shell that waits on a pipe from this process. When this process is killed, the pipe breaks and
the guard ends the group, even if the program ignores the end of its input.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from callyard._internal.logfmt import log_fields
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.settings import UpstreamSettings

__all__ = ["Process", "environment_of", "start"]

_INHERITED: Final = frozenset(["HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER"])
_INHERITED_PREFIXES: Final = ("LC_", "XDG_")
_SHELL: Final = "/bin/sh"
_GUARD_SCRIPT: Final = 'read -r _; kill -s TERM -- "-$1" && sleep 2 && kill -s KILL -- "-$1"'
_EOF_SECONDS: Final = 1.0
_TERM_SECONDS: Final = 2.0
_KILL_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.02
_log = logging.getLogger(__name__)


def environment_of(settings: UpstreamSettings, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: the few of our variables that every program needs, and its own."""
    inherited = {key: value for key, value in ours.items() if key in _INHERITED or key.startswith(_INHERITED_PREFIXES)}
    return {**inherited, **settings.env}


def start(name: str, settings: UpstreamSettings) -> "Process":
    """Start the program of an upstream.

    Raises:
        LinkError: `unavailable`: there is no such program or folder, or it cannot be run.
    """
    command = os.path.expanduser(settings.command or "")  # noqa: PTH111 - a path would lose a leading './'
    folder = Path(settings.cwd or ".").expanduser()
    if not folder.is_dir():
        raise _cannot_start(name, f"There is no folder '{settings.cwd}' to run it in.")
    environment = environment_of(settings, os.environ)
    program = _find(command, folder, environment.get("PATH", os.defpath))
    if program is None:
        raise _cannot_start(name, f"There is no program '{command}'. Install it, or give its full path.")
    try:
        popen = subprocess.Popen(  # noqa: S603 - the configuration says what is run
            [command, *settings.args],
            executable=program,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise _cannot_start(name, f"The program '{command}' cannot be run: {why}.") from None
    return Process(popen)


def _cannot_start(name: str, why: str) -> LinkError:
    """Return the error of a program that cannot be started; why is for the operator, because it names paths of the machine."""
    return LinkError("unavailable", f"'{name}' cannot be started.", private=why)


def _find(command: str, folder: Path, path: str) -> Path | None:
    """Return the executable file of a command, searched relative to the folder and in the program's own PATH."""
    places = [""] if os.sep in command else path.split(os.pathsep)
    files = (folder.absolute() / place / command for place in places)
    return next((file for file in files if file.is_file() and os.access(file, os.X_OK)), None)


class Process:
    """A running program, with pipes to it."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.pid = popen.pid
        self._popen = popen
        self._is_gone = False
        self._pipes = [pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None]
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        self._exit = _ExitWatcher(popen)
        self._guard = _start_guard(popen.pid)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, or the negative number of a signal; None while it runs."""
        return self._popen.returncode

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Call this on the event loop when the program has ended."""
        self._exit.callback = callback

    async def end(self) -> None:
        """End the program and all its descendants: close its input, then send SIGTERM, then SIGKILL."""
        self._pipes[0].close()
        self._is_gone = (
            (await self._exit.wait(_EOF_SECONDS) and not self._group_exists())
            or (self._signal(signal.SIGTERM) and await self._wait_for_group(_TERM_SECONDS))
            or (self._signal(signal.SIGKILL) and await self._wait_for_group(_KILL_SECONDS))
        )

    def close(self) -> None:
        """Release everything at once; what still runs is killed."""
        if not self._is_gone:
            self._signal(signal.SIGKILL)
        self._exit.close()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()  # it only waits, so it is gone at once
        for pipe in self._pipes:
            pipe.close()

    async def _wait_for_group(self, seconds: float) -> bool:
        """Wait until the process group is empty, and return whether it is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        has_ended = await self._exit.wait(seconds)
        while has_ended and self._group_exists() and loop.time() < deadline:  # noqa: ASYNC110 - a process group has no event
            await asyncio.sleep(_POLL_SECONDS)
        return has_ended and not self._group_exists()

    def _group_exists(self) -> bool:
        """Return whether the process group of an ended program has other members."""
        with contextlib.suppress(ChildProcessError):  # as the first process of a container we inherit orphans, and must reap them
            os.waitpid(-self.pid, os.WNOHANG)
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        """Send a signal to the process group, and return whether it has members; 0 only checks."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class _ExitWatcher:
    """Waits for a program to end, and reaps it."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.callback: Callable[[], None] = lambda: None
        self._popen = popen
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._descriptor = _open_pidfd(popen.pid)
        if self._descriptor is None:
            threading.Thread(target=self._wait_in_thread, name="callyard reaper", daemon=True).start()
        else:
            self._loop.add_reader(self._descriptor, self._reap)

    async def wait(self, seconds: float) -> bool:
        """Wait for the end, and return whether it came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return self._ended.is_set()

    def close(self) -> None:
        """Reap a killed program, and stop watching."""
        if not self._ended.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_KILL_SECONDS)
        self._close_pidfd()

    def _reap(self) -> None:
        self._close_pidfd()
        self._popen.wait()
        self._set_ended()

    def _wait_in_thread(self) -> None:
        self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed before the program ended
            self._loop.call_soon_threadsafe(self._set_ended)

    def _set_ended(self) -> None:
        self._ended.set()
        self.callback()

    def _close_pidfd(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, where the system supports it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _start_guard(group: int) -> "subprocess.Popen[bytes] | None":
    """Start the guard of a process group; without a shell there is none."""
    try:
        return subprocess.Popen(  # noqa: S603 - our own script, and a number
            [_SHELL, "-c", _GUARD_SCRIPT, "callyard-guard", str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,
        )
    except OSError as error:
        _log.warning("keeper_missing%s", log_fields({"group": group, "why": error}))
        return None
