"""The selection of a runtime: the first backend that is installed and stops the canary attacks. It never falls back to `dev`."""

import asyncio
import logging
import os
import secrets
import shutil
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from callyard._internal.addresses import is_loopback
from callyard._internal.logfmt import log_exception
from callyard.model.errors import ToolError
from callyard.runtimes.bubblewrap import Bubblewrap
from callyard.runtimes.container import Container, find_engine, remove_dead_containers
from callyard.runtimes.guest_runtime import GuestRuntime
from callyard.runtimes.process import Subprocess, make_folder, remove_orphans
from callyard.runtimes.runtime import (
    GuestCall,
    Hooks,
    Invoke,
    Probe,
    RunFailure,
    RunLimits,
    RunResult,
    Runtime,
    RuntimeBusyError,
    RuntimeMissingError,
)
from callyard.runtimes.settings import BACKENDS, RuntimeSettings
from callyard.runtimes.slots import Slots
from callyard.runtimes.wasm import Wasm

__all__ = ["Runtimes", "canary_attacks", "make_runtime", "probe_all", "try_backend", "unsafe_reason", "wanted_backends"]

_CLEAN_UP_S: Final = 2.0
"""How long the end of a yard waits for the removal of what killed servers left."""
_log = logging.getLogger(__name__)
_LOOP_SECONDS: Final = 0.3
_cleaned: Final = set[int]()
"""The processes that removed the containers of dead servers."""
_CROWDED: Final = RunFailure(kind="overloaded", message="A call needs approval, and too many programs wait for people already.")
_NOTHING_ALLOWED: Final = "Allow a sandbox: see 'runtime.backend', 'runtime.order' and 'runtime.wasm_enabled'."
_UNSAFE_INSTALL: Final = "Use the profile 'standard', or set 'runtime.allow_unsafe' if you know who can reach this server."


def make_runtime(name: str, settings: RuntimeSettings, *, state_dir: str | None = None) -> Runtime:
    """Return a backend by its name."""
    match name:
        case "container":
            return GuestRuntime(Container(state_dir=state_dir))
        case "bubblewrap":
            return GuestRuntime(Bubblewrap())
        case "monty":
            from callyard.runtimes.monty import Monty  # noqa: PLC0415 - off unless it is switched on

            return Monty()
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
    if host is not None and not is_loopback(host):
        return f"The runtime profile 'dev' is not served on '{host}', which others can reach."
    return None


def wanted_backends(settings: RuntimeSettings) -> Sequence[str]:
    """Return the backends that may be used, in the order in which they are tried."""
    if settings.profile == "dev":
        return ("subprocess",)
    names = (settings.backend,) if settings.backend is not None else settings.order
    return [name for name in names if name != "wasm" or settings.wasm_enabled is not False]


class Runtimes:
    """The runtime of a yard: selected in the background when the yard opens, shared by all programs."""

    def __init__(self, settings: RuntimeSettings, *, state_dir: str | None = None) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._slots = Slots(settings.concurrency)
        self._selecting: asyncio.Task[tuple[Runtime, Probe]] | None = None
        self._closing = False
        self._monty: asyncio.Task[tuple[Runtime, Probe]] | None = None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Runtimes"]:
        """Start the selection, and end every guest afterwards."""
        self._selecting = asyncio.create_task(self._select())
        cleaning = asyncio.create_task(self._clean_up())
        try:
            yield self
        finally:
            self._closing = True
            try:
                await asyncio.wait({cleaning}, timeout=_CLEAN_UP_S)
            finally:  # also if the end of the yard is cancelled
                cleaning.cancel()  # an engine may never answer
                opened = [task for task in (self._selecting, self._monty) if task is not None]
                for error in await asyncio.gather(cleaning, *map(_close, opened), return_exceptions=True):
                    if isinstance(error, Exception):
                        log_exception(_log, "runtime_close_failed", error=error)

    async def selected(self) -> tuple[Runtime, Probe]:
        """Return the runtime and what it can do; one that was missing is looked for again.

        Raises:
            ToolError: `runtime_unavailable`, with what to install.
        """
        if self._selecting is None or (self._selecting.done() and self._selecting.exception() is not None):
            self._selecting = asyncio.create_task(self._select())
        return await asyncio.shield(self._selecting)

    async def for_program(self, code: str, session: str = "") -> tuple[Runtime, Probe]:
        """Return the runtime of a program: Monty, if it is switched on and supports the program, else the selected one.

        Raises:
            ToolError: `runtime_unavailable`, with what to install.
        """
        if not self._settings.monty or session or not _fits_monty(code):
            return await self.selected()
        if self._monty is None or (self._monty.done() and self._monty.exception() is not None):
            self._monty = asyncio.create_task(self._select(("monty",)))
        return await asyncio.shield(self._monty)

    async def run(
        self, code: str, inputs: Any, limits: RunLimits, invoke: Invoke, *, hooks: Hooks, owner: str = "", session: str = ""
    ) -> tuple[RunResult, Probe]:
        """Run a program once a slot is free; the wait is not part of its time.

        Raises:
            ToolError: `runtime_unavailable`, `overloaded`, or `state_error` if the session has a program that waits for a person.
        """
        runtime, probe = await self.for_program(code, session)
        run_id = secrets.token_hex(8)
        async with self._slots.take(owner, runtime, run_id=run_id, session=session) as slot:

            async def answer(call: GuestCall) -> object:
                await slot.ready()
                try:
                    value = await invoke(call)
                except Exception:  # a call that is cancelled has no answer to wait with
                    await slot.ready()
                    raise
                await slot.ready()
                return value

            timed = msgspec.structs.replace(hooks, paused=lambda: slot.frozen_s)
            try:
                with hooks.watch(slot.pause):
                    result = await runtime.run(code, inputs, limits, answer, hooks=timed, run_id=run_id, session=session)
            except RuntimeMissingError as error:
                code = "overloaded" if isinstance(error, RuntimeBusyError) else "runtime_unavailable"
                raise ToolError(code, str(error), hint=error.install or None) from None
        return (msgspec.structs.replace(result, failure=_CROWDED) if slot.is_refused else result), probe

    async def end_session(self, session: str) -> None:
        """End the guest of a session."""
        if self._selecting is not None:
            with suppress(ToolError):  # no runtime was found, so there is no guest
                await (await asyncio.shield(self._selecting))[0].end_session(session)

    async def _clean_up(self) -> None:
        """Remove the containers of dead servers, whichever backend is chosen. Once in a process: asking an engine takes 0.1 s."""
        if next(iter(wanted_backends(self._settings)), "") == "container" or os.getpid() in _cleaned:  # which does it when it is opened
            return
        _cleaned.add(os.getpid())
        with suppress(RuntimeMissingError, OSError):
            await remove_dead_containers(await find_engine())

    async def _select(self, names: Sequence[str] = ()) -> tuple[Runtime, Probe]:
        reason = unsafe_reason(self._settings)
        if reason is not None:
            raise ToolError("runtime_unavailable", reason, hint=_UNSAFE_INSTALL)
        await asyncio.to_thread(remove_orphans)
        missing: dict[str, str] = {}
        install: list[str] = []
        for name in names or wanted_backends(self._settings):
            runtime = make_runtime(name, self._settings, state_dir=self._state_dir)
            try:
                if not self._closing:
                    return runtime, await try_backend(runtime)
            except (RuntimeMissingError, OSError) as error:
                missing[name] = str(error)
                install.append(getattr(error, "install", ""))
        reasons = " ".join(f"{name}: {why}" for name, why in missing.items())
        hint = " Or: ".join(dict.fromkeys(filter(None, install))) or _NOTHING_ALLOWED
        raise ToolError("runtime_unavailable", f"There is no runtime for programs. {reasons}".strip(), hint=hint, backends=missing)


async def _close(selecting: asyncio.Task[tuple[Runtime, Probe]]) -> None:
    with suppress(ToolError):  # none was found
        await (await selecting)[0].close()


def _fits_monty(code: str) -> bool:
    from callyard.runtimes.monty_programs import translate  # noqa: PLC0415 - off unless it is switched on

    return translate(code) is not None


async def try_backend(runtime: Runtime) -> Probe:
    """Open a backend and attack it, unless it is no sandbox anyway.

    Raises:
        RuntimeMissingError: It cannot run here, or a canary attack succeeded; the backend is closed again.
    """
    try:
        await runtime.open()  # it may be cancelled half-way, too
        probe = await runtime.probe()
        canaries = await canary_attacks(runtime) if probe.sandboxed else {}
        escaped = [name for name, stopped in canaries.items() if not stopped]
        if escaped:
            raise RuntimeMissingError(f"'{probe.backend}' did not stop the canary attacks {', '.join(escaped)}.")  # noqa: TRY301 - closed below
    except BaseException:
        await runtime.close()
        raise
    if not probe.sandboxed:
        _log.warning("runtime_unsafe backend=%s", probe.backend)
    for limit, why in probe.unenforced.items():
        _log.warning("runtime_limit_not_enforced backend=%s limit=%s reason=%r", probe.backend, limit, why)
    return msgspec.structs.replace(probe, canaries=canaries)


async def probe_all(settings: RuntimeSettings, state_dir: str | None, *, attack: bool) -> list[Probe]:
    """Return what each backend can do here; with `attack`, the canary attacks are tried on each sandbox."""
    probes: list[Probe] = []
    for name in (*BACKENDS, "monty", "subprocess"):
        runtime = make_runtime(name, settings, state_dir=state_dir)
        probe = await runtime.probe()
        if attack and probe.available and probe.sandboxed:
            try:
                probe = await try_backend(runtime)
                await runtime.close()
            except (RuntimeMissingError, OSError) as error:
                probe = msgspec.structs.replace(probe, available=False, reason=str(error), install=getattr(error, "install", ""))
        probes.append(probe)
    return probes


@contextmanager
def _folder() -> Generator[str]:
    folder = make_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def canary_attacks(runtime: Runtime) -> dict[str, bool]:
    """Try to read a file, reach a port, start a process and run for ever, and return which of these were stopped."""
    with _folder() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        canary = Path(folder) / "canary"
        await asyncio.to_thread(canary.write_text, "canary")
        address = f"('127.0.0.1', {server.getsockname()[1]})"
        attacks = {
            "file": f"open({str(canary)!r}).read()\n'escaped'",
            "network": f"import socket\nsocket.create_connection({address}, 1).close()\n'escaped'",
            "process": "import os\nif os.fork() == 0:\n    os._exit(0)\n'escaped'",
        }
        works = await runtime.run("1 + 1", None, RunLimits(), _no_tools)
        if works.value != 1 + 1:
            raise RuntimeMissingError("The backend cannot run a program.")
        endless = runtime.run("while True: pass", None, RunLimits(seconds=_LOOP_SECONDS), _no_tools)
        loop, *others = await asyncio.gather(endless, *(runtime.run(code, None, RunLimits(), _no_tools) for code in attacks.values()))
    # an attack that ran out of time was not stopped by the sandbox
    stopped = [result.failure is not None and result.failure.kind != "timeout" for result in others]
    return {**dict(zip(attacks, stopped, strict=True)), "loop": loop.failure is not None and loop.failure.kind == "timeout"}


async def _no_tools(_call: GuestCall) -> object:
    """Answer nothing: a canary calls no tool."""
    return None
