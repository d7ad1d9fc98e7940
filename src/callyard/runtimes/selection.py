"""The selection of a runtime: the first backend that is installed and stops the canary attacks.

It never falls back to `dev`.
"""

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from callyard._internal.addresses import is_loopback
from callyard._internal.logfmt import log_exception
from callyard.model.errors import ToolError
from callyard.runtimes.bubblewrap import Bubblewrap
from callyard.runtimes.container import Container, find_engine, remove_dead_containers
from callyard.runtimes.guest_runtime import GuestRuntime, Subprocess
from callyard.runtimes.process import make_folder, remove_orphans
from callyard.runtimes.runtime import (
    BACKENDS,
    GuestCall,
    Hooks,
    Invoke,
    Probe,
    RunFailure,
    RunLimits,
    RunResult,
    RuntimeBusyError,
    RuntimeMissingError,
    RuntimeSettings,
    own_install,
)
from callyard.runtimes.wasm import Wasm

__all__ = [
    "Runtimes",
    "Slot",
    "Slots",
    "canary_attacks",
    "make_runtime",
    "probe_all",
    "try_backend",
    "unsafe_reason",
    "wanted_backends",
]

_CLEAN_UP_S: Final = 2.0
"""How long the end of a yard waits for the removal of what killed servers left."""
_log = logging.getLogger(__name__)
_LOOP_SECONDS: Final = 0.3
_cleaned: Final = set[int]()
"""The processes that removed the containers of dead servers."""
_CROWDED: Final = RunFailure(
    kind="overloaded", message="A call needs approval, and too many programs wait for people already."
)
_WAITING: Final = 64
_WAITING_EACH: Final = 8
"""Programs of one caller that may wait for people at one time."""
_NOTHING_ALLOWED: Final = "Allow a sandbox: see 'runtime.backend', 'runtime.order' and 'runtime.wasm_enabled'."
_UNSAFE_INSTALL: Final = (
    "Use the profile 'standard', or set 'runtime.allow_unsafe' if you know who can reach this server."
)


def make_runtime(name: str, settings: RuntimeSettings, *, state_dir: str | None = None) -> GuestRuntime:
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
    """Return why the profile `dev` must not be used here: it runs as root, or others can reach its address."""
    if settings.profile != "dev" or settings.allow_unsafe:
        return None
    if sys.platform != "win32" and os.geteuid() == 0:
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


class Slot:
    """The slot of one program, taken while the program runs."""

    def __init__(self, slots: "Slots", owner: str, runtime: GuestRuntime, run_id: str) -> None:
        self._slots, self._owner, self._runtime, self._run_id = slots, owner, runtime, run_id
        self._following: asyncio.Task[None] | None = None
        self._is_taken = False
        self._frozen_at: float | None = None
        self._frozen_s = 0.0
        self._running = asyncio.Event()
        self.is_waiting = False
        self.is_refused = False
        self.halted = asyncio.Event()
        """Set while the program waits for a person, and after its end."""

    @property
    def frozen_s(self) -> float:
        """Return how long the program was frozen so far: its clock stands still then, and at no other time."""
        return self._frozen_s + (0.0 if self._frozen_at is None else time.monotonic() - self._frozen_at)

    async def take(self) -> None:
        """Wait for a slot at the start."""
        await self._slots.free.acquire()
        self._is_taken = True
        self._running.set()

    def pause(self) -> Callable[[], None]:
        """Freeze the program and free its slot while a person is asked; return what undoes it.

        Too many are stopped instead.
        """
        waiting = self._slots.waiting
        if waiting.total() >= _WAITING or waiting[self._owner] >= _WAITING_EACH:
            self.is_refused = True
            self._runtime.cancel(self._run_id)
            return lambda: None
        waiting[self._owner] += 1
        self.is_waiting = True
        self.halted.set()
        self._running.clear()
        self._follow()
        return self._resume

    async def ready(self) -> None:
        """Wait until the program runs: while it waits for a person or a slot, it starts no call and gets no answer."""
        await self._running.wait()

    def end(self) -> None:
        """Free everything."""
        if self.is_waiting:
            self._forget_wait()
        if self._following is not None:
            self._following.cancel()  # one that has just got a slot frees it itself
        self._release()
        self.halted.set()

    def _resume(self) -> None:
        if self.is_waiting:  # not ended meanwhile
            self._forget_wait()
            self.halted.clear()
            self._follow()

    def _forget_wait(self) -> None:
        self.is_waiting = False
        self._slots.waiting -= Counter([self._owner])

    def _follow(self) -> None:
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._settle())

    async def _settle(self) -> None:
        """Freeze or continue the guest until its state fits.

        A person may decide while it is being frozen, and another call may ask at once.
        """
        while self.is_waiting is self._is_taken:
            if not self.is_waiting:
                await self._slots.free.acquire()
                self._is_taken = True
                if self.is_waiting:
                    continue
                await self._runtime.thaw(self._run_id)
                self._frozen_s, self._frozen_at = self.frozen_s, None
            elif await self._runtime.freeze(self._run_id):
                self._frozen_at = self._frozen_at or time.monotonic()
                self._release()
            else:  # it may compute, so its clock goes on and its slot stays taken
                break
        if not self.is_waiting:
            self._running.set()

    def _release(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._slots.free.release()


class Slots:
    """The slots of all programs of one yard, and the programs that wait for people."""

    def __init__(self, concurrency: int) -> None:
        self.free = asyncio.Semaphore(concurrency)
        self.waiting = Counter[str]()
        """Programs that wait for people, by caller."""
        self._sessions: dict[str, Slot] = {}

    @asynccontextmanager
    async def take(self, owner: str, runtime: GuestRuntime, *, run_id: str, session: str = "") -> AsyncGenerator[Slot]:
        """Wait for a slot for a run, at first without one for the other programs of its session.

        Raises:
            ToolError: `state_error` if a program of the same session waits for a person.
        """
        slot = Slot(self, owner, runtime, run_id)
        while (other := self._sessions.get(session)) is not None:
            await other.halted.wait()
            if other.is_waiting:
                message = "A program of this session waits for the approval of a person."
                hint = "Wait for its job with wait_job, or use another session."
                raise ToolError("state_error", message, reason="session_busy", hint=hint, may_have_run=False)
        if session:
            self._sessions[session] = slot
        try:
            await slot.take()
            yield slot
        finally:
            slot.end()
            self._sessions.pop(session, None)


class Runtimes:
    """The runtime of a yard: selected in the background when the yard opens, shared by all programs."""

    def __init__(self, settings: RuntimeSettings, *, state_dir: str | None = None) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._slots = Slots(settings.concurrency)
        self._selecting: asyncio.Task[tuple[GuestRuntime, Probe]] | None = None
        self._closing = False

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
                for error in await asyncio.gather(cleaning, _close(self._selecting), return_exceptions=True):
                    if isinstance(error, Exception):
                        log_exception(_log, "runtime_close_failed", error=error)

    async def selected(self) -> tuple[GuestRuntime, Probe]:
        """Return the runtime and what it can do; one that was missing is looked for again.

        Raises:
            ToolError: `runtime_unavailable`, with what to install.
        """
        if self._selecting is None or (self._selecting.done() and self._selecting.exception() is not None):
            self._selecting = asyncio.create_task(self._select())
        return await asyncio.shield(self._selecting)

    async def run(
        self,
        code: str,
        inputs: Any,
        limits: RunLimits,
        invoke: Invoke,
        *,
        hooks: Hooks,
        owner: str = "",
        session: str = "",
    ) -> tuple[RunResult, Probe]:
        """Run a program once a slot is free; the wait is not part of its time.

        Raises:
            ToolError: `runtime_unavailable`, `overloaded`, or `state_error` if the session has a program that waits for
            a person.
        """
        runtime, probe = await self.selected()
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
                    result = await runtime.run(
                        code, inputs, limits, answer, hooks=timed, run_id=run_id, session=session
                    )
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
        """Remove the containers of dead servers, whichever backend is chosen.

        Once in a process: asking an engine takes 0.1 s.
        """
        first = next(iter(wanted_backends(self._settings)), "")
        if first == "container" or os.getpid() in _cleaned:  # a container backend does it when it is opened
            return
        _cleaned.add(os.getpid())
        with suppress(RuntimeMissingError, OSError):
            await remove_dead_containers(await find_engine())

    async def _select(self) -> tuple[GuestRuntime, Probe]:
        reason = unsafe_reason(self._settings)
        if reason is not None:
            raise ToolError("runtime_unavailable", reason, hint=_UNSAFE_INSTALL)
        await asyncio.to_thread(remove_orphans)
        missing: dict[str, str] = {}
        install: list[str] = []
        for name in wanted_backends(self._settings):
            runtime = make_runtime(name, self._settings, state_dir=self._state_dir)
            try:
                if not self._closing:
                    return runtime, await try_backend(runtime)
            except (RuntimeMissingError, OSError) as error:
                missing[name] = str(error)
                install.append(own_install(error))
        reasons = " ".join(f"{name}: {why}" for name, why in missing.items())
        hint = " Or: ".join(dict.fromkeys(filter(None, install))) or _NOTHING_ALLOWED
        raise ToolError(
            "runtime_unavailable", f"There is no runtime for programs. {reasons}".strip(), hint=hint, backends=missing
        )


async def _close(selecting: asyncio.Task[tuple[GuestRuntime, Probe]]) -> None:
    with suppress(ToolError):  # none was found
        await (await selecting)[0].close()


async def try_backend(runtime: GuestRuntime, *, attack: bool = True) -> Probe:
    """Open a backend, run a program in it and attack it, unless it is no sandbox anyway.

    Raises:
        RuntimeMissingError: It cannot run here, or a canary attack succeeded; the backend is closed again.
    """
    try:
        await runtime.open()  # it may be cancelled half-way, too
        probe = await runtime.probe()
        if probe.sandboxed and (await runtime.run("1 + 1", None, RunLimits(), _no_tools)).value != 1 + 1:
            raise RuntimeMissingError("The backend cannot run a program.")  # noqa: TRY301 - closed below
        canaries = await canary_attacks(runtime) if probe.sandboxed and attack else {}
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
    """Return what each backend can do here: each sandbox runs a program; with `attack`, also the canary attacks."""
    probes: list[Probe] = []
    for name in (*BACKENDS, "subprocess"):
        runtime = make_runtime(name, settings, state_dir=state_dir)
        probe = await runtime.probe()
        if probe.available and probe.sandboxed:
            try:
                probe = await try_backend(runtime, attack=attack)
                await runtime.close()
            except (RuntimeMissingError, OSError) as error:
                facts = {"available": False, "reason": str(error), "install": own_install(error)}
                probe = msgspec.structs.replace(probe, **facts)
        probes.append(probe)
    return probes


async def canary_attacks(runtime: GuestRuntime) -> dict[str, bool]:
    """Try to read a file, reach a port, start a process and run for ever, and return which of these were stopped."""
    with make_folder() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        canary = Path(folder) / "canary"
        await asyncio.to_thread(canary.write_text, "canary")
        address = f"('127.0.0.1', {server.getsockname()[1]})"
        attacks = {
            "file": f"open({str(canary)!r}).read()\n'escaped'",
            "network": f"import socket\nsocket.create_connection({address}, 1).close()\n'escaped'",
            "process": "import os\nif os.fork() == 0:\n    os._exit(0)\n'escaped'",
        }
        endless = runtime.run("while True: pass", None, RunLimits(seconds=_LOOP_SECONDS), _no_tools)
        loop, *others = await asyncio.gather(
            endless, *(runtime.run(code, None, RunLimits(), _no_tools) for code in attacks.values())
        )
    # an attack that ran out of time was not stopped by the sandbox
    stopped = [result.failure is not None and result.failure.kind != "timeout" for result in others]
    return {
        **dict(zip(attacks, stopped, strict=True)),
        "loop": loop.failure is not None and loop.failure.kind == "timeout",
    }


async def _no_tools(_call: GuestCall) -> object:
    return None
