"""The runtime over guests, one for each run or session, and the backend `subprocess`: a plain process for `dev`."""

import asyncio
import secrets
import sys
import tempfile
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from callyard.runtimes.host import Guest, GuestSettings, driver_arguments, start_guest
from callyard.runtimes.process import PROCESS_LIMITS, base_executable, make_folder
from callyard.runtimes.runtime import (
    NO_HOOKS,
    PYTHON,
    Hooks,
    Invoke,
    Probe,
    RunLimits,
    RunResult,
    RuntimeBusyError,
    RuntimeMissingError,
)

__all__ = ["GuestRuntime", "Launcher", "Subprocess"]

T = TypeVar("T")
_SESSIONS: Final = 32
"""Sessions that have a guest: each keeps its memory between its runs, up to the limit of a program."""


class Launcher(Protocol):
    """Starts guests; each backend that runs CPython has its own launcher."""

    name: str

    async def probe(self) -> Probe:
        """Return whether guests can be started here, and which limits the host can enforce."""
        ...

    async def open(self) -> None:
        """Prepare it to start guests quickly."""
        ...

    async def launch(self, limits: RunLimits) -> Guest:
        """Return a guest that has run nothing."""
        ...

    async def close(self) -> None:
        """End what `open` started."""
        ...


class GuestRuntime:
    """Runs programs in the guests of a launcher."""

    def __init__(self, launcher: Launcher) -> None:
        self.name = launcher.name
        self.probe = launcher.probe
        self.open = launcher.open
        self._launcher = launcher
        self._running: dict[str, Guest] = {}
        self._sessions: dict[str, asyncio.Task[Guest]] = {}
        self._pending: set[asyncio.Future[Any]] = set()
        """Runs, and ends of guests in the background."""
        self._is_closed = False

    async def run(
        self,
        code: str,
        inputs: Any,
        limits: RunLimits,
        invoke: Invoke,
        *,
        hooks: Hooks = NO_HOOKS,
        run_id: str = "",
        session: str = "",
    ) -> RunResult:
        """Run one program; runs of one session share their variables."""
        with self._counted():
            guest = await (self._session_guest(session, limits) if session else self._launch(limits))
            run_id = run_id or secrets.token_hex(8)
            self._running[run_id] = guest
            try:
                if self._is_closed:  # while the guest was started
                    raise RuntimeMissingError("The runtime is closed.")
                return await guest.run(code, inputs, limits, invoke, hooks=hooks)
            finally:
                self._running.pop(run_id, None)
                if not session or not guest.alive:
                    self._forget(session, guest)
                    self._in_background(guest.close())  # removing a container takes longer than most programs

    def cancel(self, run_id: str) -> bool:
        """Kill the guest of a run, and return whether there was one."""
        guest = self._running.get(run_id)
        if guest is not None:
            guest.stop()
        return guest is not None

    async def freeze(self, run_id: str) -> bool:
        """Stop the guest of a run until `thaw`, and return whether it is stopped."""
        guest = self._running.get(run_id)
        return guest is not None and await asyncio.shield(self._in_background(guest.freeze()))

    async def thaw(self, run_id: str) -> None:
        """Let a frozen guest go on."""
        guest = self._running.get(run_id)
        if guest is not None:
            await asyncio.shield(self._in_background(guest.thaw()))

    async def end_session(self, session: str) -> None:
        """Kill the guest of a session."""
        task = self._sessions.pop(session, None)
        if task is not None:
            await _discard(task)

    async def close(self) -> None:
        """Kill all guests and wait until they are gone."""
        self._is_closed = True
        try:
            for guest in list(self._running.values()):
                guest.stop()
            await asyncio.gather(*map(self.end_session, list(self._sessions)), return_exceptions=True)
            while self._pending:
                await asyncio.wait(self._pending)
        finally:
            await self._launcher.close()

    async def _launch(self, limits: RunLimits) -> Guest:
        """Start a guest in a task of its own: a cancelled start would leave half a process behind."""
        starting = asyncio.create_task(self._start(limits))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._in_background(_discard(starting))
            raise

    async def _start(self, limits: RunLimits) -> Guest:
        if self._is_closed:
            raise RuntimeMissingError("The runtime is closed.")
        try:
            return await self._launcher.launch(limits)
        except OSError as error:  # such as too many open files
            raise RuntimeBusyError(f"A guest cannot be started now: {error.strerror}.") from None

    def _forget(self, session: str, guest: Guest) -> None:
        """Drop the guest of a session; another run may have started a new one in its place, which stays."""
        task = self._sessions.get(session)
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return
        if task.result() is guest:
            del self._sessions[session]

    async def _session_guest(self, session: str, limits: RunLimits) -> Guest:
        task = self._sessions.get(session)
        if task is None or (task.done() and task.exception() is not None):  # one that nobody waited for has failed
            if len(self._sessions) >= _SESSIONS:
                message = f"There are {_SESSIONS} sessions of programs already."
                raise RuntimeBusyError(message, install="Leave 'session_id' out, or try again later.")
            task = self._sessions[session] = asyncio.create_task(self._start(limits))
        try:
            return await asyncio.shield(task)
        except Exception:
            self._sessions.pop(session, None)
            raise

    @contextmanager
    def _counted(self) -> Generator[None]:
        """Make `close` wait meanwhile."""
        done = asyncio.get_running_loop().create_future()
        self._pending.add(done)
        try:
            yield
        finally:
            self._pending.discard(done)
            done.set_result(None)

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return task


async def _discard(starting: asyncio.Task[Guest]) -> None:
    with suppress(RuntimeMissingError, OSError):
        await (await starting).close()


class Subprocess:
    """Starts guests as plain processes, with nothing of our environment. It contains accidents, not attacks."""

    name = "subprocess"

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def probe(self) -> Probe:
        """Return that it runs everywhere and protects from nothing."""
        return Probe(
            backend=self.name,
            available=True,
            sandboxed=False,
            python=PYTHON,
            enforced=("timeout", "tool_calls", "output", "cpu", "disk"),
            unenforced=dict.fromkeys(("memory", "pids", "files", "network"), "a plain process is not isolated"),
        )

    async def open(self) -> None:
        """Make the working directory of the guests."""
        self._folder = make_folder()

    async def launch(self, limits: RunLimits) -> Guest:
        """Start a process."""
        own = {**PROCESS_LIMITS, "CPU": limits.cpu_seconds}
        settings = GuestSettings(limits=own, dies_with_parent=sys.platform == "linux")
        env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        cwd = "/" if self._folder is None else self._folder.name
        return await start_guest((base_executable(), *driver_arguments()), settings, env=env, cwd=cwd)

    async def close(self) -> None:
        """Remove the working directory."""
        if self._folder is not None:
            self._folder.cleanup()
