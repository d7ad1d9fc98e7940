"""The runtime over guests: one for each run, or one for each session while it is alive."""

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from toolyard.runtimes.host import Guest
from toolyard.runtimes.runtime import NO_HOOKS, Hooks, Invoke, Probe, RunLimits, RunResult, RuntimeMissingError

__all__ = ["GuestRuntime", "Launcher"]

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
        self._ending: set[asyncio.Task[Any]] = set()

    async def run(
        self, code: str, inputs: Any, limits: RunLimits, invoke: Invoke, *, hooks: Hooks = NO_HOOKS, run_id: str = "", session: str = ""
    ) -> RunResult:
        """Run one program; runs of one session share their variables."""
        guest = await (self._session_guest(session, limits) if session else self._launch(limits))
        run_id = run_id or secrets.token_hex(8)
        self._running[run_id] = guest
        try:
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

    async def end_session(self, session: str) -> None:
        """Kill the guest of a session."""
        task = self._sessions.pop(session, None)
        if task is not None:
            await (await task).close()

    async def close(self) -> None:
        """Kill all guests and wait until they are gone."""
        for session in list(self._sessions):
            await self.end_session(session)
        for guest in list(self._running.values()):
            guest.stop()
        while self._ending or self._running:
            await asyncio.gather(*self._ending, asyncio.sleep(0), return_exceptions=True)
        await self._launcher.close()

    async def _launch(self, limits: RunLimits) -> Guest:
        """Start a guest in a task of its own: a cancelled start would leave half a process behind."""
        starting = asyncio.create_task(self._launcher.launch(limits))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._in_background(_discard(starting))
            raise

    def _forget(self, session: str, guest: Guest) -> None:
        """Drop the guest of a session; another run may have started a new one in its place, which stays."""
        task = self._sessions.get(session)
        if task is not None and task.done() and not task.cancelled() and task.exception() is None and task.result() is guest:
            del self._sessions[session]

    async def _session_guest(self, session: str, limits: RunLimits) -> Guest:
        if session not in self._sessions:
            if len(self._sessions) >= _SESSIONS:
                message = f"There are {_SESSIONS} sessions of programs already."
                raise RuntimeMissingError(message, install="Run the program without 'session_id', or end a session.")
            self._sessions[session] = asyncio.create_task(self._launcher.launch(limits))
        try:
            return await asyncio.shield(self._sessions[session])
        except Exception:
            self._sessions.pop(session, None)
            raise

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _discard(starting: asyncio.Task[Guest]) -> None:
    with suppress(RuntimeMissingError, OSError):
        await (await starting).close()
