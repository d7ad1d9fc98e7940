"""Processes: programs that run for us, each in a group of its own, and end with all that they started when we are done, or gone.

Every program has a keeper beside it, a shell that waits on a pipe from us: when this process is killed, the pipe breaks and the keeper
ends the whole group, also what ignores that its input ended.
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

from toolyard._internal.logfmt import log_fields
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = ["Process", "environment_of", "start"]

_KEPT: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER"},
)
_KEPT_PREFIXES: Final = ("LC_", "XDG_")
_SHELL: Final = "/bin/sh"
_KEEP: Final = 'read -r _; kill -s TERM -- "-$1" && sleep 2 && kill -s KILL -- "-$1"'
_EOF_SECONDS: Final = 1.0
_TERM_SECONDS: Final = 2.0
_KILL_SECONDS: Final = 1.0
_TICK: Final = 0.02
_log = logging.getLogger(__name__)


def environment_of(settings: UpstreamSettings, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program: the few of ours that every program needs, and its own."""
    kept = {key: value for key, value in ours.items() if key in _KEPT or key.startswith(_KEPT_PREFIXES)}
    return {**kept, **settings.env}


def start(name: str, settings: UpstreamSettings) -> "Process":
    """Start the program of an upstream.

    Raises:
        LinkError: `unavailable`: there is no such program or folder, or it cannot be run.
    """
    command = os.path.expanduser(settings.command or "")  # noqa: PTH111 - a path would lose a leading './'
    folder = Path(settings.cwd or ".").expanduser()
    if not folder.is_dir():
        raise LinkError("unavailable", f"There is no folder '{settings.cwd}', in which '{name}' is to run.")
    environment = environment_of(settings, os.environ)
    program = _find(command, folder, environment.get("PATH", os.defpath))
    if program is None:
        raise LinkError("unavailable", f"There is no program '{command}' to run for '{name}'. Install it, or give its full path.")
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
        raise LinkError("unavailable", f"The program '{command}' cannot be run for '{name}': {why}.") from None
    return Process(popen)


def _find(command: str, folder: Path, path: str) -> Path | None:
    """Return the file that a command is, if it can be run."""
    places = [""] if os.sep in command else path.split(os.pathsep)
    files = (folder.absolute() / place / command for place in places)
    return next((file for file in files if file.is_file() and os.access(file, os.X_OK)), None)


class Process:
    """A program that runs, with pipes to it."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.pid = popen.pid
        self._popen = popen
        self._gone = False
        self._pipes = [pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None]
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        self._exit = _Exit(popen)
        self._keeper = _Keeper(popen.pid)

    @property
    def exit_code(self) -> int | None:
        """Return how it ended: its exit code, or the negative number of a signal; nothing while it runs."""
        return self._popen.returncode

    def on_exit(self, tell: Callable[[], None]) -> None:
        """Call this, on the loop, when the program has ended."""
        self._exit.tell = tell

    async def end(self) -> None:
        """End the program and all that it started: its input ends, then it is asked to, then it is made to."""
        self._pipes[0].close()
        self._gone = (
            (await self._exit.within(_EOF_SECONDS) and not self._is_inhabited())
            or (self._signal(signal.SIGTERM) and await self._gone_within(_TERM_SECONDS))
            or (self._signal(signal.SIGKILL) and await self._gone_within(_KILL_SECONDS))
        )

    def close(self) -> None:
        """Let go of everything, at once; what still runs is killed."""
        if not self._gone:
            self._signal(signal.SIGKILL)
        self._exit.close()
        self._keeper.close()
        for pipe in self._pipes:
            pipe.close()

    async def _gone_within(self, seconds: float) -> bool:
        """Wait until nobody is left in the group, and return whether that came in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        has_ended = await self._exit.within(seconds)
        while has_ended and self._is_inhabited() and loop.time() < deadline:  # noqa: ASYNC110 - nobody tells when a group is empty
            await asyncio.sleep(_TICK)  # once, at the end of a process
        return has_ended and not self._is_inhabited()

    def _is_inhabited(self) -> bool:
        """Return whether anybody is left in the group of a program that has ended."""
        with contextlib.suppress(ChildProcessError):  # the first process of a container inherits what lost its parent
            os.waitpid(-self.pid, os.WNOHANG)
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        """Send a signal to the group, and return whether anybody is in it; 0 only asks."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class _Exit:
    """Waits for a program to end, and reaps it."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self.tell: Callable[[], None] = lambda: None
        self._popen = popen
        self._loop = asyncio.get_running_loop()
        self._seen = asyncio.Event()
        self._descriptor = _watch(popen.pid)
        if self._descriptor is None:
            threading.Thread(target=self._wait, name="toolyard reaper", daemon=True).start()
        else:
            self._loop.add_reader(self._descriptor, self._reap)

    async def within(self, seconds: float) -> bool:
        """Wait for the end, and return whether it came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._seen.wait()
        return self._seen.is_set()

    def close(self) -> None:
        """Reap a program that has been killed, and wait no more."""
        if not self._seen.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_KILL_SECONDS)
        self._forget()

    def _reap(self) -> None:
        self._forget()
        self._popen.wait()
        self._see()

    def _wait(self) -> None:
        self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop has ended before the program
            self._loop.call_soon_threadsafe(self._see)

    def _see(self) -> None:
        self._seen.set()
        self.tell()

    def _forget(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None


def _watch(pid: int) -> int | None:
    """Return a descriptor that can be read when the process has ended, where the system has such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


class _Keeper:
    """Ends a group of processes when this process is no more."""

    def __init__(self, group: int) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - our own words, and a number
                [_SHELL, "-c", _KEEP, "toolyard-keeper", str(group)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath},
                start_new_session=True,
            )
        except OSError as error:
            _log.warning("keeper_missing%s", log_fields({"group": group, "why": error}))

    def close(self) -> None:
        """Let the group be."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.communicate()  # it only waits, so it is gone at once
