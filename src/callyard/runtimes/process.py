"""Child processes: how they are started and ended, the interpreter that they run, and what killed servers left."""

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from callyard.runtimes.runtime import RuntimeMissingError

__all__ = [
    "DATA",
    "HOME",
    "PROCESS_LIMITS",
    "Child",
    "Interpreter",
    "base_executable",
    "find_interpreter",
    "is_orphan",
    "make_folder",
    "remove_orphans",
    "run_program",
    "server_id",
    "spawn",
]

PROCESS_LIMITS: Final = {"CORE": 0, "NOFILE": 64, "FSIZE": 64 * 1024 * 1024}
_FOLDER: Final = "callyard-guests-"
_SEPARATOR: Final = "+"
"""Between the parts of a folder's name; the name of a machine cannot have it."""
_STDERR_BYTES: Final = 4096
_MESSAGE_CHARACTERS: Final = 300
HOME: Final = "/python"
"""Where a sandbox has the interpreter: a fixed place, because the real one may name a person."""
DATA: Final = ("/usr/share/zoneinfo",)
"""Data of the system that the standard library reads."""
_INSPECT: Final = """
import ctypes, importlib, json, pathlib, sys, sysconfig
stdlib = sysconfig.get_path('stdlib')
for found in (pathlib.Path(sysconfig.get_path('platstdlib')) / 'lib-dynload').glob('*.so'):
    name = found.name.split('.')[0]
    if not name.startswith(('_test', '_tkinter', 'xx', '_xx')):
        try: importlib.import_module(name)
        except ImportError: pass
names = []
class Info(ctypes.Structure):
    _fields_ = (('address', ctypes.c_void_p), ('name', ctypes.c_char_p))
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def note(info, size, data):
    names.append((info.contents.name or b'').decode())
    return 0
ctypes.CDLL(None).dl_iterate_phdr(note, None)
print(json.dumps([stdlib, sys.base_prefix, names]))
"""
"""Loads every extension of the standard library and prints the shared libraries that the linker took, by name."""


class Child:
    """A process whose standard input and output are one socket, and whose errors go to a file.

    There are no pipes, because a helper process of a container engine keeps them open. It is no process of asyncio
    either: when the start of one is cancelled, Python 3.11 waits for its end forever.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", connection: socket.socket, errors: IO[bytes]) -> None:
        self.connection = connection
        self._process, self._errors = process, errors
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        threading.Thread(target=_wait_for, args=(process, self._exited), name="callyard-guest", daemon=True).start()

    async def send_signal(self, number: int) -> bool:
        """Send a signal to its process group, and return whether there is one."""
        try:
            os.killpg(self._process.pid, number)
        except OSError:
            return False
        return True

    async def kill(self, grace: float = 0) -> int | None:
        """Wait so many seconds for its end, then kill its process group; return its exit status if it is its own."""
        status = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    status = await asyncio.shield(self._exited)
        finally:
            await self.send_signal(signal.SIGKILL)  # it never waits, so it is sent even if this is cancelled
        await asyncio.shield(self._exited)
        return status

    def stderr_tail(self) -> str:
        """Return the end of what it wrote to standard error."""
        if self._errors.closed:
            return ""
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _STDERR_BYTES, 0))
        return self._errors.read(_STDERR_BYTES).decode(errors="replace").strip()[-_MESSAGE_CHARACTERS:]

    async def end(self, grace: float) -> int | None:
        """Kill it as `kill` does, and forget what it wrote."""
        try:
            return await self.kill(grace)
        finally:
            self._errors.close()


def _wait_for(process: "subprocess.Popen[bytes]", exited: "asyncio.Future[int]") -> None:
    status = process.wait()
    with suppress(RuntimeError):  # the loop is closed
        exited.get_loop().call_soon_threadsafe(lambda: exited.done() or exited.set_result(status))


async def run_program(
    *argv: str,
    env: Mapping[str, str] | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    stderr: int = asyncio.subprocess.DEVNULL,
) -> tuple[int, bytes, bytes]:
    """Run a program to its end, and return its exit status, output and errors.

    If this is cancelled, the program is killed.
    """
    process = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, env=env)  # noqa: ASYNC220, S603 - our own argv; asyncio's own start hangs when cancelled, see `Child`
    communicating = asyncio.get_running_loop().run_in_executor(None, process.communicate)
    try:
        out, errors = await asyncio.shield(communicating)
    except BaseException:
        process.kill()
        await communicating  # closes its pipes
        raise
    return process.returncode or 0, out, errors or b""


async def spawn(argv: Sequence[str], *, env: Mapping[str, str], cwd: str = "/", pass_fds: Sequence[int] = ()) -> Child:
    """Start a process in a session of its own.

    Raises:
        RuntimeMissingError: There is no such program.
    """
    ours, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - the child closes it
    try:
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - our own argv; asyncio's own start hangs when cancelled, see `Child`
                argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=errors,
                env=env,
                cwd=cwd,
                pass_fds=pass_fds,
                start_new_session=True,
            )
    except BaseException as error:
        ours.close()
        errors.close()
        if isinstance(error, OSError):
            raise RuntimeMissingError(f"'{argv[0]}' cannot be started: {error.strerror}.") from None
        raise
    ours.setblocking(False)  # noqa: FBT003 - the signature of the standard library
    return Child(process, ours, errors)


def base_executable() -> str:
    """Return the interpreter that runs this process, behind its virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


class Interpreter(NamedTuple):
    """What a sandbox needs of a Python: its program, its standard library and the shared libraries they load."""

    executable: str
    stdlib: str
    inside: str
    """The path of the standard library below the prefix, such as 'lib/python3.11'."""
    libraries: tuple[str, ...]


_found: dict[str, Interpreter] = {}
"""An interpreter does not change while this process lives, and its inspection takes 0.2 s."""


async def find_interpreter() -> Interpreter:
    """Return the interpreter of this process, for every kind of installation.

    Raises:
        RuntimeMissingError: It cannot be inspected.
    """
    executable = base_executable()
    if executable in _found:
        return _found[executable]
    argv = (executable, "-I", "-S", "-B", "-W", "ignore", "-c", _INSPECT)
    status, out, _ = await run_program(*argv, env={})
    if status:
        raise RuntimeMissingError(f"The interpreter '{executable}' cannot be inspected.")
    stdlib, prefix, names = json.loads(out)
    libraries = {name for name in names if name.startswith("/") and not name.startswith(f"{stdlib}/")}
    found = _found[executable] = Interpreter(
        executable, stdlib, stdlib.removeprefix(f"{prefix}/"), tuple(sorted(libraries))
    )
    return found


def make_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary directory that names this server, so that a later one can remove it if this one is killed."""
    prefix = f"{_FOLDER}{server_id().replace('/', _SEPARATOR)}{_SEPARATOR}"
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


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
    except (OSError, OverflowError) as error:
        return not isinstance(error, ProcessLookupError)
    return True
