"""Programs that end with us: each runs in a process group of its own, which ends as a whole.

Beside every program runs a guard, a shell that waits on a pipe from this process. When this process is killed, the pipe
breaks and the guard ends the group, even if the program ignores the end of its input.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

from callyard._internal.logfmt import log_fields
from callyard._internal.pipes import Reader

__all__ = ["KeptProgram", "ProgramProcess", "find_program", "is_inherited", "keep_program"]

_INHERITED: Final = frozenset(
    ["HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER"]
)
_INHERITED_PREFIXES: Final = ("LC_", "XDG_")
_SHELL: Final = "/bin/sh"
_GUARD_SCRIPT: Final = 'read -r _; kill -s TERM -- "-$1" && sleep 2 && kill -s KILL -- "-$1"'
_EOF_SECONDS: Final = 1.0
_TERM_SECONDS: Final = 2.0
_KILL_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.02
_ERROR_BYTES: Final = 64 * 1024
_log = logging.getLogger(__name__)


def is_inherited(name: str) -> bool:
    """Return whether every program that we start needs a variable of ours."""
    return name in _INHERITED or name.startswith(_INHERITED_PREFIXES)


def find_program(command: str, folder: Path, path: str) -> Path | None:
    """Return the executable file of a command, searched relative to the folder and in the program's own PATH."""
    places = [""] if os.sep in command else path.split(os.pathsep)
    files = (folder.absolute() / place / command for place in places)
    return next((file for file in files if file.is_file() and os.access(file, os.X_OK)), None)


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


class ProgramProcess:
    """A running program, with pipes to it; a thread waits for its end and reaps it."""

    def __init__(self, popen: "subprocess.Popen[bytes]", on_exit: Callable[[], None]) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._on_exit = on_exit
        self._is_gone = False
        self._pipes = [pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None]
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        threading.Thread(target=self._wait_in_thread, name="callyard reaper", daemon=True).start()
        self._guard = _start_guard(popen.pid)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, or the negative number of a signal; None while it runs."""
        return self._popen.returncode

    async def wait(self) -> None:
        """Wait until the program has ended."""
        await self._exited.wait()

    async def end(self) -> None:
        """End the program and all its descendants: close its input, then send SIGTERM, then SIGKILL."""
        self.close_input()
        self._is_gone = (
            (await self._wait(_EOF_SECONDS) and not self._group_exists())
            or (self._signal(signal.SIGTERM) and await self._wait_for_group(_TERM_SECONDS))
            or (self._signal(signal.SIGKILL) and await self._wait_for_group(_KILL_SECONDS))
        )

    def close_input(self) -> None:
        """Close our end of its stdin."""
        self._pipes[0].close()

    def close(self) -> None:
        """Release everything at once; what still runs is killed."""
        if not self._is_gone:
            self._signal(signal.SIGKILL)
        if not self._exited.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_KILL_SECONDS)
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()  # it only waits, so it is gone at once
        for pipe in self._pipes:
            pipe.close()

    def _wait_in_thread(self) -> None:
        self._popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed before the program ended
            self._loop.call_soon_threadsafe(self._set_exited)

    def _set_exited(self) -> None:
        self._exited.set()
        self._on_exit()

    async def _wait(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), seconds)
        return self._exited.is_set()

    async def _wait_for_group(self, seconds: float) -> bool:
        deadline = self._loop.time() + seconds
        has_exited = await self._wait(seconds)
        while has_exited and self._group_exists() and self._loop.time() < deadline:  # noqa: ASYNC110 - a process group has no event
            await asyncio.sleep(_POLL_SECONDS)
        return has_exited and not self._group_exists()

    def _group_exists(self) -> bool:
        """Return whether the process group of an ended program has other members."""
        # As the first process of a container we inherit orphans, and must reap them.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-self.pid, os.WNOHANG)
        return self._signal(0)

    def _signal(self, number: int) -> bool:
        """Send a signal to the process group, and return whether it has members; 0 only checks."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


class KeptProgram:
    """A running program that ends with the context that started it, and with this process however that ends."""

    def __init__(self, process: ProgramProcess, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
        self.pid = process.pid
        self.stdin = stdin
        self.stdout = stdout
        self._process = process
        self._errors = bytearray()

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, or the negative number of a signal; None while it runs."""
        return self._process.exit_code

    @property
    def errors(self) -> bytes:
        """Return the last bytes that it wrote to stderr."""
        return bytes(self._errors)

    async def wait(self) -> int:
        """Wait until it ends by itself, and return its exit code."""
        await self._process.wait()
        return cast("int", self._process.exit_code)

    def end_input(self) -> None:
        """Close its stdin once it has what was written."""
        self.stdin.close()
        self._process.close_input()

    def add_error(self, piece: bytes) -> None:
        """Take what it wrote to stderr; only the last bytes are kept."""
        self._errors += piece
        del self._errors[:-_ERROR_BYTES]


@asynccontextmanager
async def keep_program(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> AsyncGenerator[KeptProgram]:
    """Run a program while the context is open; it and all its descendants end with it, and with this process.

    Of our environment it gets what every program needs, such as PATH and HOME, and what `env` adds.

    Raises:
        OSError: It cannot be started.
    """
    inherited = {name: value for name, value in os.environ.items() if is_inherited(name)}
    popen = subprocess.Popen(  # noqa: ASYNC220, S603 - it must not be asyncio's: a cancelled start of that hangs; the caller says what is run
        list(command),
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={**inherited, **(env or {})},
        start_new_session=True,
    )
    process = ProgramProcess(popen, lambda: None)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(_end, process)
        stdin, stdout = await _open_streams(process, stack)
        program = KeptProgram(process, stdin, stdout)
        errors = Reader(process.stderr, program.add_error, is_full=bool, on_end=lambda: None)
        stack.callback(errors.close)
        yield program


async def _open_streams(
    process: ProgramProcess, stack: contextlib.AsyncExitStack
) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
    """Return streams of a program's stdin and stdout, on copies of its pipes, which the stack closes."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    output, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(process.stdout), "rb", 0)
    )
    stack.callback(output.close)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(os.dup(process.stdin), "wb", 0)
    )
    stack.callback(transport.close)
    return asyncio.StreamWriter(transport, protocol, None, loop), reader


async def _end(process: ProgramProcess) -> None:
    """End a program, also if the task that waits for that is cancelled."""

    async def end() -> None:
        try:
            await process.end()
        finally:
            process.close()

    await asyncio.wait((asyncio.ensure_future(end()),))
