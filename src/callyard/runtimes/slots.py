"""Slots: how many programs run at one time. A program that waits for a person is frozen and frees its slot meanwhile.

A waiting guest keeps its memory, so the number of waiting programs is limited. A program that would exceed it is stopped.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from callyard.model.errors import ToolError
from callyard.runtimes.runtime import Runtime

__all__ = ["Slot", "Slots"]

_WAITING: Final = 64
_WAITING_EACH: Final = 8
"""Programs of one caller that may wait for people at one time."""


def _nothing() -> None:
    """Take nothing back."""


class Slot:
    """The slot of one program, taken while the program runs."""

    def __init__(self, slots: "Slots", owner: str, runtime: Runtime, run_id: str) -> None:
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
        """Freeze the program and free its slot while a person is asked; return what undoes it. Too many are stopped instead."""
        waiting = self._slots.waiting
        if waiting.total() >= _WAITING or waiting[self._owner] >= _WAITING_EACH:
            self.is_refused = True
            self._runtime.cancel(self._run_id)
            return _nothing
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
        """Freeze or continue the guest until that fits: a person may decide while it is being frozen, and another call ask at once."""
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
    async def take(self, owner: str, runtime: Runtime, *, run_id: str, session: str = "") -> AsyncGenerator[Slot]:
        """Wait for a slot for a run.

        Raises:
            ToolError: `state_error` if a program of the same session waits for a person.
        """
        slot = Slot(self, owner, runtime, run_id)
        if session:
            await self._enter(session, slot)
        try:
            await slot.take()
            yield slot
        finally:
            slot.end()
            if session:
                del self._sessions[session]

    async def _enter(self, session: str, slot: Slot) -> None:
        """Wait for the other programs of a session, without a slot."""
        while (other := self._sessions.get(session)) is not None:
            await other.halted.wait()
            if other.is_waiting:
                message = "A program of this session waits for the approval of a person."
                hint = "Wait for its job with wait_job, or use another session."
                raise ToolError("state_error", message, reason="session_busy", hint=hint, may_have_run=False)
        self._sessions[session] = slot
