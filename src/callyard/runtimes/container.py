"""The backend `container`: guests in containers of docker or podman, started ahead in a warm pool.

The image is built here from the interpreter of this process and pinned by its id; nothing is ever pulled.
"""

import asyncio
import io
import logging
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from callyard._internal.files import find_state_dir, write_atomically
from callyard._internal.logfmt import log_value
from callyard.runtimes.host import Guest, GuestSettings, driver_arguments, start_guest
from callyard.runtimes.library import clean_file, is_left_out
from callyard.runtimes.process import (
    DATA,
    HOME,
    PROCESS_LIMITS,
    Child,
    Interpreter,
    find_interpreter,
    is_orphan,
    run_program,
    server_id,
)
from callyard.runtimes.runtime import PYTHON, Probe, RunLimits, RuntimeMissingError
from callyard.runtimes.seccomp import is_supported, program_filter

__all__ = ["Container", "Engine", "build_image", "find_engine", "read_docker", "read_podman", "remove_dead_containers"]

_log = logging.getLogger(__name__)
_INSTALL: Final = "Install podman or docker, and run 'callyard runtime build'."
_BUILD: Final = "Run 'callyard runtime build'."
_IMAGE: Final = "localhost/callyard-runtime"
_LAYOUT: Final = 3
"""Counts changes of what is in the image, so that an old one is not taken for ours."""
_LABEL: Final = "callyard.server"
_PIN_FILE: Final = "runtime-image.json"
_SLACK_BYTES: Final = 16 * 1024 * 1024
"""The address space ends below the limit of the container, so that a program gets a MemoryError and is not killed."""
_POOL: Final = 2
_REFILL_S: Final = 0.05
_PIDS: Final = 64
_NPROC: Final = 4096
"""Counts all processes of the user 'nobody', so it is no limit for one container."""
_CLIENT_VARIABLES: Final = ("PATH", "HOME", "XDG_", "DOCKER_", "CONTAINER", "TMPDIR")


class Engine(msgspec.Struct, frozen=True):
    """A container engine that answers, and the limits that it cannot enforce."""

    program: str
    version: str
    unenforced: dict[str, str]

    @property
    def is_podman(self) -> bool:
        """Return whether it is podman, whose flags differ in a few places."""
        return Path(self.program).name == "podman"


class _Listed(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="Id")
    labels: dict[str, str] = msgspec.field(name="Labels", default_factory=dict)


async def find_engine() -> Engine:
    """Return the first engine that answers: docker, then podman.

    Raises:
        RuntimeMissingError: There is none.
    """
    if not is_supported():
        raise RuntimeMissingError("The filter of system calls does not know this processor.")
    reasons: list[str] = []
    for name in ("docker", "podman"):
        program = shutil.which(name)
        if program is None:
            reasons.append(f"'{name}' is not installed")
            continue
        status, text = await _engine(program, ["info", "--format", "{{json .}}"])
        try:
            found = msgspec.json.decode(text, type=dict[str, Any]) if status == 0 else {}
        except msgspec.DecodeError:
            found = {}
        engine = read_docker(program, found) if name == "docker" else read_podman(program, found)
        if engine is not None:
            return engine
        reasons.append(f"'{name}' does not answer")
    raise RuntimeMissingError(f"There is no container engine: {', '.join(reasons)}.", install=_INSTALL)


def read_docker(program: str, found: Mapping[str, Any]) -> Engine | None:
    """Return the engine that `docker info` describes, if it answers."""
    if not found.get("ServerVersion"):
        return None
    limits = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpu": "CpuCfsQuota"}
    missing = {
        limit: "the engine says that it cannot limit it" for limit, key in limits.items() if found.get(key) is False
    }
    return Engine(program, str(found["ServerVersion"]), missing)


def read_podman(program: str, found: Mapping[str, Any]) -> Engine | None:
    """Return the engine that `podman info` describes."""
    host = found.get("host")
    if not isinstance(host, dict):
        return None
    facts = cast("dict[str, Any]", host)
    controllers: list[str] = facts.get("cgroupControllers") or []
    ignored = facts.get("security", {}).get("rootless") and facts.get("cgroupVersion") == "v1"
    why = "rootless podman ignores it on cgroup v1" if ignored else "the cgroup controller is missing"
    missing = {name: why for name in ("memory", "pids", "cpu") if ignored or name not in controllers}
    return Engine(program, str(found.get("version", {}).get("Version", "")), missing)


async def build_image(engine: Engine, *, state_dir: str | None = None) -> str:
    """Build the image from the interpreter of this process, pin it, and return its id.

    Raises:
        RuntimeMissingError: The engine cannot import it.
    """
    interpreter = await find_interpreter()
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(_write_root, interpreter, file)
        file.seek(0)
        status, text = await _engine(engine.program, ["import", "-", await _tag()], stdin=file.fileno())
    if status:
        raise RuntimeMissingError(f"The image could not be imported: {text.strip()[-300:]}")
    image = await _image_id(engine)
    pin = find_state_dir(state_dir) / _PIN_FILE
    write_atomically(pin, msgspec.json.encode({**_pins(pin), f"{engine.program}:{await _tag()}": image}))
    return image


def _write_root(interpreter: Interpreter, file: Any) -> None:
    """Write a root file system with an interpreter, its libraries and nothing else."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        for folder in ("tmp", "etc", "dev", "proc", "sys"):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if folder == "tmp" else 0o755  # podman gives its tmpfs the mode of the folder
            tar.addfile(entry)
        users = b"nobody:x:65534:65534::/:/none\n"
        passwd = tarfile.TarInfo("etc/passwd")
        passwd.size = len(users)
        tar.addfile(passwd, io.BytesIO(users))
        tar.add(interpreter.executable, f"{HOME}/bin/python3", filter=_anonymous)
        _add_library(tar, interpreter)
        for library in interpreter.libraries:
            tar.add(os.path.realpath(library), library, filter=_anonymous)
        for data in filter(os.path.isdir, DATA):
            tar.add(data, data, filter=_anonymous)


def _add_library(tar: tarfile.TarFile, interpreter: Interpreter) -> None:
    """Add the standard library without what no guest needs, and without paths of this host."""
    for root, folders, files in os.walk(interpreter.stdlib):
        folders[:] = sorted(name for name in folders if not is_left_out(name))
        inside = os.path.normpath(f"{HOME}/{interpreter.inside}/{os.path.relpath(root, interpreter.stdlib)}")
        tar.add(root, inside, recursive=False, filter=_anonymous)
        for name in sorted(files):
            path = Path(root, name)
            entry = _anonymous(tar.gettarinfo(path, f"{inside}/{name}"))
            content = clean_file(name, path.read_bytes(), interpreter) if entry.isreg() else b""
            if content is not None:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return an entry without its owner."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


async def _tag() -> str:
    interpreter = await find_interpreter()
    return f"{_IMAGE}:{sha256(repr((interpreter, sys.version, _LAYOUT)).encode()).hexdigest()[:12]}"


async def _image_id(engine: Engine) -> str:
    status, text = await _engine(engine.program, ["image", "inspect", "--format", "{{.Id}}", await _tag()])
    return "" if status else text.strip().removeprefix("sha256:")


def _pins(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


class Container:
    """Starts guests in containers, a few of them before they are needed."""

    name = "container"

    def __init__(self, *, state_dir: str | None = None) -> None:
        self._state_dir = state_dir
        self._engine: Engine | None = None
        self._image = ""
        self._pool: list[asyncio.Task[Guest]] = []
        self._limits = RunLimits()
        self._closed = False

    async def probe(self) -> Probe:
        """Look for an engine and for the image, which must be the one that was built."""
        version = ""
        try:
            engine = await find_engine()
            version = f"{Path(engine.program).name} {engine.version}"
            await self._find_image(engine)
        except (RuntimeMissingError, OSError) as error:
            return Probe.missing(self.name, error, install=_INSTALL, version=version)
        return Probe.sandbox(self.name, version=version, python=PYTHON, unenforced=engine.unenforced)

    async def _find_image(self, engine: Engine) -> str:
        image = await _image_id(engine)
        if not image:
            raise RuntimeMissingError("The image of the guests is not built.", install=_BUILD)
        pinned = _pins(find_state_dir(self._state_dir) / _PIN_FILE).get(f"{engine.program}:{await _tag()}")
        if pinned != image:
            raise RuntimeMissingError("The image of the guests is not the one that was built here.", install=_BUILD)
        return image

    async def open(self) -> None:
        """Remove what dead servers left behind, and fill the pool."""
        self._engine = await find_engine()
        await remove_dead_containers(self._engine)  # also if there is no image any more
        self._image = await self._find_image(self._engine)
        self._closed = False
        first = asyncio.create_task(self._start())
        self._pool.append(first)
        try:
            await asyncio.shield(first)
        except RuntimeMissingError:
            await self.close()
            raise
        self._pool += [asyncio.create_task(self._start()) for _ in range(1, _POOL)]

    async def launch(self, limits: RunLimits) -> Guest:
        """Take a guest from the pool, and start another one in its place."""
        del limits  # the containers have them
        if self._closed or self._engine is None:
            raise RuntimeMissingError("The pool of containers is closed.")
        for task in sorted(self._pool, key=lambda task: not task.done()):
            if task not in self._pool:  # another launch took it meanwhile
                continue
            self._pool[self._pool.index(task)] = asyncio.create_task(self._start_later())
            with suppress(RuntimeMissingError, OSError):  # it did not start; a fresh one tells why
                guest = await task
                if guest.alive:
                    return guest
                await guest.close()
        return await self._start()

    async def close(self) -> None:
        """Remove the containers of the pool."""
        self._closed = True
        pool, self._pool = self._pool, []
        for guest in await asyncio.gather(*pool, return_exceptions=True):
            if isinstance(guest, Guest):
                await guest.close()

    async def _start_later(self) -> Guest:
        """Start a guest once the current program has begun, because a start blocks the event loop for milliseconds."""
        await asyncio.sleep(_REFILL_S)
        return await self._start()

    async def _start(self) -> Guest:
        engine = self._engine
        if engine is None:
            raise RuntimeMissingError("The backend is closed.")
        name = f"callyard-{uuid.uuid4().hex[:16]}"
        limits = self._limits
        own = {**PROCESS_LIMITS, "AS": limits.memory_bytes - _SLACK_BYTES, "CPU": limits.cpu_seconds}
        if "pids" in engine.unenforced:
            own["NPROC"] = _PIDS  # counts all processes of the user, so only where the engine has no limit of its own
        settings = GuestSettings(limits=own, seccomp=program_filter(changes_files=True).hex())
        return await start_guest(
            self._argv(engine, name), settings, env=_client_environment(), process_of=partial(_Contained, engine, name)
        )

    def _argv(self, engine: Engine, name: str) -> list[str]:
        memory = str(self._limits.memory_bytes)
        limited = {
            "memory": ("--memory", memory, "--memory-swap", memory),
            "pids": ("--pids-limit", str(_PIDS)),
            "cpu": ("--cpus", "1"),
        }
        return [
            *(engine.program, "run", "--rm", "--interactive", "--name", name),
            *("--label", f"{_LABEL}={server_id()}", "--pull", "never"),
            *("--network", "none", "--read-only"),
            # podman would copy the host's '/etc/hosts'
            *(["--read-only-tmpfs=false", "--no-hosts"] if engine.is_podman else []),
            *("--tmpfs", "/sys:ro,size=4k,mode=555"),  # in place of the host's devices and drivers
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534"),
            *("--ipc", "private", "--hostname", "sandbox", "--log-driver", "none"),
            *(part for limit, parts in limited.items() if limit not in engine.unenforced for part in parts),
            *("--ulimit", "nofile=64:64", "--ulimit", "core=0:0", "--ulimit", "fsize=67108864:67108864"),
            *("--ulimit", f"nproc={_NPROC}:{_NPROC}"),  # the engine's own default may be above what we are allowed
            *("--tmpfs", "/tmp:rw,size=64m,mode=1777,noexec,nosuid,nodev", "--workdir", "/tmp"),  # noqa: S108 - inside the container
            *("--env", "LANG=C.UTF-8", "--env", "HOME=/tmp", "--env", "MALLOC_ARENA_MAX=1"),
            *(self._image, f"{HOME}/bin/python3", *driver_arguments()),
        ]


class _Contained:
    def __init__(self, engine: Engine, name: str, client: Child) -> None:
        self._engine, self._name, self._client = engine, name, client

    async def send_signal(self, number: int) -> bool:
        """Send a signal to the guest, which is the only process of its container."""
        try:
            command = ["kill", "--signal", signal.Signals(number).name, self._name]
            status, _ = await _engine(self._engine.program, command)
        except OSError:
            return False
        return status == 0

    async def end(self, grace: float) -> int | None:
        """Remove the container, unless it ends within so many seconds.

        The client ends first, because an engine waits for one that does not read.
        """
        status = await self._client.end(grace)
        await _engine(self._engine.program, [*_remove(self._engine), self._name])
        return status


async def remove_dead_containers(engine: Engine) -> None:
    """Remove the containers of servers that are dead; those of others are left alone."""
    template = "json" if engine.is_podman else '{{.ID}} {{.Label "' + _LABEL + '"}}'  # podman 4.3 knows no '.Label'
    status, text = await _engine(engine.program, ("ps", "--all", "--filter", f"label={_LABEL}", "--format", template))
    if status == 0:
        listed = _read_json(text) if engine.is_podman else _read_lines(text)
        dead = [container for container, server in listed if is_orphan(server)]
        status, text = await _engine(engine.program, [*_remove(engine), *dead]) if dead else (0, "")
    if status:
        _log.warning("containers_left_behind engine=%s reason=%s", engine.program, log_value(text.strip()[-300:]))


def _read_json(text: str) -> list[tuple[str, str]]:
    try:
        found = msgspec.json.decode(text or "[]", type=list[_Listed])
    except msgspec.DecodeError:
        return []
    return [(one.id, one.labels.get(_LABEL, "")) for one in found]


def _read_lines(text: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for line in text.splitlines() if len(row := line.split()) == len(("id", "server"))]


def _remove(engine: Engine) -> tuple[str, ...]:
    return ("rm", "--force", "--time", "0") if engine.is_podman else ("rm", "--force")


def _client_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key.startswith(_CLIENT_VARIABLES)}


async def _engine(
    program: str, arguments: Sequence[str], *, stdin: int = asyncio.subprocess.DEVNULL
) -> tuple[int, str]:
    """Run a command of the engine and return its exit status and output."""
    pipe = asyncio.subprocess.PIPE
    status, out, errors = await run_program(program, *arguments, stdin=stdin, stderr=pipe, env=_client_environment())
    return status, (errors if status else out).decode(errors="replace")
