"""Slots: how many programs run at one time. A program that waits for a person frees its slot meanwhile.

A waiting guest keeps its memory, so the number of waiting programs is limited. A program that would exceed it is stopped.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from toolyard.model.errors import ToolError

__all__ = ["Slot", "Slots"]

_WAITING: Final = 64
_WAITING_EACH: Final = 8
"""Programs of one caller that may wait for people at one time."""


def _nothing() -> None:
    """Take nothing back."""


class Slot:
    """The slot of one program, taken while the program runs."""

    def __init__(self, slots: "Slots", owner: str, refuse: Callable[[], object]) -> None:
        self._slots, self._owner, self._refuse = slots, owner, refuse
        self._taking: asyncio.Task[object] | None = None
        self._queued_s = 0.0
        self._is_taken = False
        self.is_waiting = False
        self.is_refused = False
        self.halted = asyncio.Event()
        """Set while the program waits for a person, and after its end."""

    @property
    def queued_s(self) -> float:
        """Return how long answers for the program waited until it had a slot again."""
        return self._queued_s

    async def take(self) -> None:
        """Wait for a slot at the start."""
        await self._slots.free.acquire()
        self._is_taken = True

    def pause(self) -> Callable[[], None]:
        """Free the slot while a person is asked, and return a function that takes one again.

        If too many programs wait already, this one is stopped instead.
        """
        waiting = self._slots.waiting
        if waiting.total() >= _WAITING or waiting[self._owner] >= _WAITING_EACH:
            self.is_refused = True
            self._refuse()
            return _nothing
        waiting[self._owner] += 1
        self.is_waiting = True
        self.halted.set()
        self._release()
        return self._resume

    async def ready(self) -> None:
        """Wait until the program has a slot again: until then it gets no answer, and its clock stands still."""
        if self._taking is not None and not self._taking.done():
            began = time.monotonic()
            await asyncio.wait({self._taking})
            self._queued_s += time.monotonic() - began

    def end(self) -> None:
        """Free everything."""
        if self.is_waiting:
            self._forget_wait()
        self._release()
        self.halted.set()

    def _resume(self) -> None:
        if self.is_waiting:  # not ended meanwhile
            self._forget_wait()
            self.halted.clear()
            self._taking = asyncio.create_task(self._slots.free.acquire())

    def _forget_wait(self) -> None:
        self.is_waiting = False
        self._slots.waiting -= Counter([self._owner])

    def _release(self) -> None:
        taking, self._taking = self._taking, None
        if taking is not None:
            self._is_taken = taking.done()
            taking.cancel()  # one that has just got its slot frees it itself
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
    async def take(self, owner: str, *, session: str = "", refuse: Callable[[], object] = _nothing) -> AsyncGenerator[Slot]:
        """Wait for a slot; `refuse` stops a program that may not wait for a person.

        Raises:
            ToolError: `state_error` if a program of the same session waits for a person.
        """
        slot = Slot(self, owner, refuse)
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
