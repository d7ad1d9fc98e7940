"""The backend `bubblewrap`: namespaces, two stages of seccomp, process limits, and a zygote that forks guests.

The sandbox sees an interpreter, its standard library and the shared libraries that these load; no home, no /proc,
nothing to write.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from callyard.runtimes.host import Guest, GuestSettings, driver_arguments, start_message
from callyard.runtimes.library import PreparedLibrary, find_library
from callyard.runtimes.process import (
    DATA,
    HOME,
    PROCESS_LIMITS,
    Child,
    Interpreter,
    base_executable,
    find_interpreter,
    run_program,
    spawn,
)
from callyard.runtimes.runtime import PYTHON, Probe, RunLimits, RuntimeBusyError, RuntimeMissingError
from callyard.runtimes.seccomp import is_supported, launcher_filter, program_filter

__all__ = ["Bubblewrap"]

_INSTALL: Final = "Install bubblewrap (Debian: 'apt install bubblewrap') on a Linux that allows user namespaces."
_DEVICES: Final = ("null", "zero", "random", "urandom")  # '--dev' would bring a writable file system without a limit
_START_S: Final = 20.0
_PROCESSES: Final = 256
"""Threads of all guests together."""
_ROOT_PIDS: Final = (
    "the kernel does not count threads of root, and this host does not let the user 'nobody' start a sandbox"
)
_AS_NOBODY: Final = """
import ctypes, os, sys
call, argv = ctypes.CDLL(None), sys.argv[1:]
def mount(*arguments):
    if call.mount(*arguments, None): os._exit(96)
sources = [number + 1 for number, part in enumerate(argv) if part == '--ro-bind']
if call.unshare(0x20000): os._exit(96)
mount(b'none', b'/', None, 0x44000)
held = [os.open(argv[number], os.O_PATH) for number in sources]
mount(b'none', b'/tmp', b'tmpfs', 0)
os.chmod('/tmp', 0o755)
for number, handle in zip(sources, held):
    path, argv[number] = f'/proc/self/fd/{handle}', f'/tmp/{number}'
    os.mkdir(argv[number]) if os.path.isdir(path) else os.close(os.open(argv[number], os.O_CREAT | os.O_WRONLY))
    mount(path.encode(), argv[number].encode(), None, 0x5000)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.execv(argv[0], argv)
"""
"""Starts bubblewrap as the user 'nobody'.

The interpreter may be in the home of root, so it is bound to a place that all can read, in a file system that only this
process and its children see.
"""


def _binds(interpreter: Interpreter, library: PreparedLibrary) -> Iterator[str]:
    """Yield the arguments that put an interpreter into a sandbox, below a fixed prefix."""
    inside = f"{HOME}/{interpreter.inside}"
    yield from ("--ro-bind", interpreter.executable, f"{HOME}/bin/python3")
    yield from ("--ro-bind", interpreter.stdlib, inside)
    for folder in library.left_out:
        yield from ("--size", "4096", "--tmpfs", f"{inside}/{folder}", "--remount-ro", f"{inside}/{folder}")
    for place, source in library.replaced.items():
        yield from ("--ro-bind", source, f"{inside}/{place}")
    for path in interpreter.libraries:
        yield from ("--ro-bind", os.path.realpath(path), path)
    for data in DATA:
        if Path(data).is_dir():
            yield from ("--ro-bind", data, data)


class Bubblewrap:
    """Starts guests by asking a sandboxed zygote to fork."""

    name = "bubblewrap"

    def __init__(self) -> None:
        self._child: Child | None = None
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._owed = 0
        """Answers of the zygote that are still to come."""
        self._unenforced: dict[str, str] = {}

    async def probe(self) -> Probe:
        """Start a sandbox once and end it."""
        try:
            program = _program()
        except RuntimeMissingError as error:
            return Probe.missing(self.name, error, install=_INSTALL)
        version = (await _output(program, "--version")).removeprefix("bubblewrap ").strip()
        try:
            if self._child is None:
                await self.open()
                await self.close()
        except RuntimeMissingError as error:
            return Probe.missing(self.name, error, install=_INSTALL, version=version)
        return Probe.sandbox(self.name, version=version, python=PYTHON, unenforced=self._unenforced)

    async def open(self) -> None:
        """Start the zygote.

        In place of root it runs as 'nobody', so that a guest owns no file and its threads are counted.

        Raises:
            RuntimeMissingError: No sandbox can be started here.
        """
        interpreter = await find_interpreter()
        self._unenforced = {}
        if os.geteuid():
            await self._start(interpreter)
            return
        try:
            await self._start(interpreter, prefix=(base_executable(), "-I", "-S", "-B", "-c", _AS_NOBODY))
        except RuntimeMissingError:
            await self._start(interpreter)
            self._unenforced = {"pids": _ROOT_PIDS}

    async def _start(self, interpreter: Interpreter, *, prefix: Sequence[str] = ()) -> None:
        bpf = os.memfd_create("seccomp")
        try:
            os.write(bpf, launcher_filter())
            os.lseek(bpf, 0, os.SEEK_SET)
            self._child = await spawn([*prefix, *await self._argv(interpreter, bpf)], env={}, pass_fds=(bpf,))
        finally:
            os.close(bpf)
        control = self._control = self._child.connection
        limits = {**PROCESS_LIMITS, "AS": RunLimits().memory_bytes, "NPROC": _PROCESSES, "CPU": RunLimits().cpu_seconds}
        settings = GuestSettings(zygote=True, limits=limits, seccomp=program_filter(changes_files=False).hex())
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_S):
                await loop.sock_sendall(control, start_message(settings))
                answer = await loop.sock_recv(control, 1)
        except (OSError, TimeoutError):
            answer = b""
        except BaseException:  # cancelled, such as by the end of the server
            await self._stop()
            raise
        if answer != b"r":
            errors = await self._stop()
            raise RuntimeMissingError(
                f"bubblewrap cannot start a sandbox: {errors or 'it ended without a word'}", install=_INSTALL
            )

    async def launch(self, limits: RunLimits) -> Guest:
        """Ask the zygote for a guest.

        A zygote that died is started anew; one that refuses is left alone, because it has other guests.

        Raises:
            RuntimeBusyError: There is no guest now, because processes or file descriptors are used up.
        """
        del limits  # the zygote has them
        async with self._lock:
            if not _is_at_end(self._control):
                try:
                    return await self._fork()
                except (OSError, TimeoutError, RuntimeMissingError) as error:
                    if not _is_at_end(self._control):
                        raise RuntimeBusyError("The sandbox cannot start another program now.") from error
            await self._stop()
            await self.open()
            return await self._fork()

    async def _fork(self) -> Guest:
        if self._control is None:
            raise RuntimeMissingError("The sandbox is closed.")
        ours, theirs = socket.socketpair()
        process: _Forked | None = None
        try:
            with theirs:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            self._owed += 1
            ours.setblocking(False)  # noqa: FBT003 - the signature of the standard library
            process = _Forked(await self._receive(self._control))
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            if process is not None:
                await process.end(0)
            raise
        guest = Guest(reader, writer, process)
        try:
            await guest.greet()
        except BaseException:
            await guest.close()
            raise
        return guest

    async def _receive(self, control: socket.socket) -> int:
        """Return the pidfd of the forked guest. The answers to requests that were given up come first."""
        loop = asyncio.get_running_loop()
        while True:
            ready = loop.create_future()
            loop.add_reader(control, ready.set_result, None)
            try:
                async with asyncio.timeout(_START_S):
                    await ready
            finally:
                loop.remove_reader(control)
            answer, handles, _, _ = socket.recv_fds(control, 1, 1)
            self._owed -= 1
            if not self._owed:
                break
            for handle in handles:
                os.close(handle)
        if answer != b"p" or not handles:
            raise RuntimeMissingError("The sandbox could not fork a guest.")
        return handles[0]

    async def close(self) -> None:
        """End the sandbox with every guest in it."""
        await self._stop()

    async def _stop(self) -> str:
        child, self._control, self._child, self._owed = self._child, None, None, 0
        if child is None:
            return ""
        child.connection.close()
        try:
            await child.kill()
            return child.stderr_tail()
        finally:
            await child.end(0)

    async def _argv(self, interpreter: Interpreter, bpf: int) -> list[str]:
        program = _program()
        options = await _output(program, "--help")
        return [
            *(program, "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session"),
            *("--as-pid-1", "--clearenv"),
            *(["--disable-userns"] if "--disable-userns" in options else []),
            *("--setenv", "LANG", "C.UTF-8", "--setenv", "HOME", "/", "--setenv", "MALLOC_ARENA_MAX", "1"),
            *("--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox"),
            *_binds(interpreter, await find_library(interpreter)),
            *(part for device in _DEVICES for part in ("--dev-bind", f"/dev/{device}", f"/dev/{device}")),
            *("--chdir", "/", "--remount-ro", "/", "--seccomp", str(bpf)),
            *(f"{HOME}/bin/python3", *driver_arguments()),
        ]


def _program() -> str:
    """Return the path of bubblewrap.

    Raises:
        RuntimeMissingError: It is not installed, or this system cannot run it.
    """
    if sys.platform != "linux" or not is_supported():
        raise RuntimeMissingError("It needs Linux on x86-64 or aarch64.", install=_INSTALL)
    program = shutil.which("bwrap")
    if program is None:
        raise RuntimeMissingError("'bwrap' is not installed.", install=_INSTALL)
    return program


def _is_at_end(control: socket.socket | None) -> bool:
    """Return whether nobody is at the other end of the control socket any more."""
    if control is None:
        return True
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


class _Forked:
    """A forked guest behind its pidfd, which never names another process. Only the zygote gets its exit status."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    async def send_signal(self, number: int) -> bool:
        """Send a signal to the process, and return whether it is there; it has no others."""
        try:
            signal.pidfd_send_signal(self._handle, number)
        except OSError:
            return False
        return True

    async def end(self, grace: float) -> int | None:
        loop, handle = asyncio.get_running_loop(), self._handle
        gone = loop.create_future()
        loop.add_reader(handle, lambda: gone.done() or gone.set_result(None))
        try:
            if not (await asyncio.wait({gone}, timeout=grace))[0]:
                await self.send_signal(signal.SIGKILL)
            async with asyncio.timeout(5):
                await gone
        finally:
            await self.send_signal(signal.SIGKILL)  # it never waits, so it is sent even if this is cancelled
            self._handle = -1
            loop.remove_reader(handle)
            os.close(handle)
        return None


async def _output(*argv: str) -> str:
    _, out, _ = await run_program(*argv, stderr=asyncio.subprocess.STDOUT)
    return out.decode(errors="replace")
