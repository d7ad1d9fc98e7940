"""The selection of a runtime: the first backend that is there and stops the canary attacks. It never falls back to `dev`."""

import asyncio
import importlib.util
import logging
import os
import socket
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from toolyard.model.errors import ToolError
from toolyard.runtimes.bubblewrap import Bubblewrap
from toolyard.runtimes.container import Container
from toolyard.runtimes.guest_runtime import GuestRuntime
from toolyard.runtimes.process import Subprocess
from toolyard.runtimes.runtime import GuestCall, Hooks, Invoke, Probe, RunLimits, RunResult, Runtime, RuntimeMissingError
from toolyard.runtimes.settings import RuntimeSettings
from toolyard.runtimes.wasm import Wasm

__all__ = ["Runtimes", "canary_attacks", "make_runtime", "unsafe_reason"]

_log = logging.getLogger(__name__)
_CANARY_SECONDS: Final = 1.0
_UNSAFE_INSTALL: Final = "Use the profile 'standard', or set 'runtime.allow_unsafe' if you know who can reach this server."


def make_runtime(name: str, settings: RuntimeSettings, *, state_dir: str | None = None) -> Runtime:
    """Return a backend by its name."""
    match name:
        case "container":
            return GuestRuntime(Container(state_dir=state_dir))
        case "bubblewrap":
            return GuestRuntime(Bubblewrap())
        case "wasm":
            return GuestRuntime(Wasm(settings.wasm_path, digest=settings.wasm_sha256, state_dir=state_dir))
        case _:
            return GuestRuntime(Subprocess())


def unsafe_reason(settings: RuntimeSettings, *, host: str | None = None) -> str | None:
    """Return why the profile `dev` must not be used here: the process is root, or others can reach the address it listens on."""
    if settings.profile != "dev" or settings.allow_unsafe:
        return None
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return "The runtime profile 'dev' does not run as root."
    if host is not None and host not in ("localhost", "::1") and not host.startswith("127."):
        return f"The runtime profile 'dev' is not served on '{host}', which others can reach."
    return None


def _wanted(settings: RuntimeSettings) -> Sequence[str]:
    if settings.profile == "dev":
        return ("subprocess",)
    names = (settings.backend,) if settings.backend is not None else settings.order
    return [name for name in names if name != "wasm" or _allows_wasm(settings)]


def _allows_wasm(settings: RuntimeSettings) -> bool:
    if settings.wasm_enabled is not None:
        return settings.wasm_enabled
    return settings.backend == "wasm" or (settings.wasm_path is not None and importlib.util.find_spec("wasmtime") is not None)


class Runtimes:
    """The runtime of a yard: selected in the background when the yard opens, shared by all programs."""

    def __init__(self, settings: RuntimeSettings, *, state_dir: str | None = None) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._turns = asyncio.Semaphore(settings.concurrency)
        self._selecting: asyncio.Task[tuple[Runtime, Probe]] | None = None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Runtimes"]:
        """Start the selection, and end every guest afterwards."""
        self._selecting = asyncio.create_task(self._select())
        try:
            yield self
        finally:
            self._selecting.cancel()
            with suppress(asyncio.CancelledError, ToolError):
                await (await self._selecting)[0].close()

    async def selected(self) -> tuple[Runtime, Probe]:
        """Return the runtime and what it can do; one that was missing is looked for again.

        Raises:
            ToolError: `runtime_unavailable`, with what to install.
        """
        if self._selecting is None or (self._selecting.done() and self._selecting.exception() is not None):
            self._selecting = asyncio.create_task(self._select())
        return await asyncio.shield(self._selecting)

    async def run(self, code: str, inputs: Any, limits: RunLimits, invoke: Invoke, *, hooks: Hooks, session: str = "") -> RunResult:
        """Run a program when it is its turn; the wait is not part of its time.

        Raises:
            ToolError: `runtime_unavailable`.
        """
        runtime, _ = await self.selected()
        async with self._turns:
            try:
                return await runtime.run(code, inputs, limits, invoke, hooks=hooks, session=session)
            except RuntimeMissingError as error:
                raise ToolError("runtime_unavailable", str(error), hint=error.install or None) from None

    async def end_session(self, session: str) -> None:
        """End the guest of a session."""
        await (await self.selected())[0].end_session(session)

    async def _select(self) -> tuple[Runtime, Probe]:
        reason = unsafe_reason(self._settings)
        if reason is not None:
            raise ToolError("runtime_unavailable", reason, hint=_UNSAFE_INSTALL)
        missing: dict[str, str] = {}
        install: list[str] = []
        for name in _wanted(self._settings):
            runtime = make_runtime(name, self._settings, state_dir=self._state_dir)
            probe = await runtime.probe()
            try:
                if probe.available:
                    return runtime, await _tried(runtime, probe)
                missing[name] = probe.reason
                install.append(probe.install)
            except (RuntimeMissingError, OSError) as error:
                missing[name] = str(error)
                install.append(getattr(error, "install", ""))
        told = " ".join(f"{name}: {why}" for name, why in missing.items())
        hint = " Or: ".join(dict.fromkeys(filter(None, install)))
        raise ToolError("runtime_unavailable", f"There is no runtime for programs. {told}", hint=hint or None, backends=missing)


async def _tried(runtime: Runtime, probe: Probe) -> Probe:
    """Open a backend and attack it.

    Raises:
        RuntimeMissingError: A canary attack succeeded; the backend is closed again.
    """
    await runtime.open()
    if not probe.sandboxed:
        _log.warning("runtime_unsafe backend=%s", probe.backend)
        return probe
    try:
        canaries = await canary_attacks(runtime)
    except BaseException:
        await runtime.close()
        raise
    escaped = [name for name, stopped in canaries.items() if not stopped]
    if escaped:
        await runtime.close()
        raise RuntimeMissingError(f"'{probe.backend}' did not stop the canary attacks {', '.join(escaped)}.")
    for limit, why in probe.unenforced.items():
        _log.warning("runtime_limit_not_enforced backend=%s limit=%s reason=%r", probe.backend, limit, why)
    return msgspec.structs.replace(probe, canaries=canaries)


async def canary_attacks(runtime: Runtime) -> dict[str, bool]:
    """Try to read a file, reach a port, start a process and run for ever, and return which of these were stopped."""
    with tempfile.TemporaryDirectory(prefix="toolyard-canary-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        canary = Path(folder) / "canary"
        await asyncio.to_thread(canary.write_text, "canary")
        connect = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        attacks = {
            "file": f"open({str(canary)!r}).read()",
            "network": connect,
            "process": "import os\nif os.fork() == 0:\n    os._exit(0)",
            "loop": "while True: pass",
        }
        limits = RunLimits(seconds=_CANARY_SECONDS)
        works = await runtime.run("1 + 1", None, RunLimits(), _no_tools)
        if works.value != 1 + 1:
            raise RuntimeMissingError("The backend cannot run a program.")
        results = await asyncio.gather(*(runtime.run(code, None, limits, _no_tools) for code in attacks.values()))
    return {name: result.failure is not None for name, result in zip(attacks, results, strict=True)}


async def _no_tools(_call: GuestCall) -> object:
    """Answer nothing: a canary calls no tool."""
    return None
