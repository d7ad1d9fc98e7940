"""Worker threads for handlers that block.

A thread cannot be interrupted. If its call ends first, the thread is abandoned and counted, and its result is dropped.
Beyond a number of abandoned threads new work is refused, so that one bad tool cannot exhaust the process.
"""

import asyncio
import contextvars
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final

import msgspec

from callyard.dispatch.call import Call
from callyard.model.errors import ToolError
from callyard.model.limits import Limits

__all__ = ["Threads"]

_MAX_ABANDONED: Final = 16
"""Threads still running past their deadline; at this number, calls that need a thread are refused."""
_log = logging.getLogger(__name__)


class _Job(msgspec.Struct, eq=False):
    """One function to run in a thread for a call."""

    call: Call
    function: Callable[[], object]
    future: "asyncio.Future[object]"
    context: contextvars.Context = msgspec.field(default_factory=contextvars.copy_context)
    ended: bool = False
    abandoned: bool = False
    _claim: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def claim(self) -> bool:
        """Return true to the first caller only: the worker that runs the job, or the call that drops it."""
        return self._claim.acquire(blocking=False)


class Threads:
    """A pool of daemon threads, which grows as needed up to a limit."""

    def __init__(self, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self._limits = limits
        self._loop = loop
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._extra = 0
        """Threads allowed beyond the limit, one for each that waits for a nested call."""
        self._extra_lock = threading.Lock()
        self.abandoned = 0
        """The number of threads that still run for calls that were answered."""
        self._busy: Counter[Call] = Counter()
        self._on_free: dict[Call, list[Callable[[], None]]] = {}

    async def run(self, call: Call, function: Callable[[], object]) -> object:
        """Run the function in a thread and return its result.

        Raises:
            ToolError: `overloaded` if too many threads were abandoned.
        """
        if self.abandoned >= _MAX_ABANDONED:
            message = "Too many calls are still running past their deadlines."
            raise ToolError("overloaded", message, may_have_run=False, abandoned_threads=self.abandoned)
        job = _Job(call, function, self._loop.create_future())
        self._put(job)
        try:
            return await job.future
        finally:
            if not job.ended and job.claim():
                call.may_have_run = False
            elif not job.ended:
                job.abandoned = True
                self._busy[call] += 1
                self.abandoned += 1
                _log.warning("abandoned_thread tool=%s id=%s abandoned=%d", call.spec.name, call.id, self.abandoned)

    def when_free(self, call: Call, then: Callable[[], None]) -> None:
        """Call `then` as soon as no abandoned thread runs for the call."""
        if call in self._busy:
            self._on_free.setdefault(call, []).append(then)
        else:
            then()

    @contextmanager
    def extra_thread(self) -> Generator[None]:
        """Allow one more thread while this one waits for a nested call, which might otherwise wait for this thread."""
        with self._extra_lock:
            self._extra += 1
        try:
            yield
        finally:
            with self._extra_lock:
                self._extra -= 1

    def close(self) -> None:
        """Let the idle threads end; busy ones are daemons, so they do not keep the process alive."""
        while self._count:
            self._count -= 1
            self._queue.put(None)
        self._idle = threading.Semaphore(0)

    def _put(self, job: _Job) -> None:
        self._queue.put(job)
        if not self._idle.acquire(blocking=False) and self._count < self._limits.threads + self._extra:
            self._count += 1
            threading.Thread(target=self._work, name=f"callyard-{self._count}", daemon=True).start()

    def _work(self) -> None:
        idle = self._idle
        while True:
            job = self._queue.get()
            if job is None:
                return
            if job.claim():
                self.run_job(job)
            idle.release()

    def run_job(self, job: _Job) -> None:
        """Run a function in this thread, and hand its result to the loop."""
        result: object = None
        fault: BaseException | None = None
        try:
            result = job.context.run(job.function)
        except BaseException as error:  # noqa: BLE001 - the future carries any exception to the caller
            fault = error
        try:
            self._loop.call_soon_threadsafe(self._finish, job, result, fault)
        except RuntimeError:  # the loop is closed, so no caller waits
            return

    def _finish(self, job: _Job, result: Any, fault: BaseException | None) -> None:
        job.ended = True
        if not job.future.done():
            if fault is None:
                job.future.set_result(result)
            else:
                job.future.set_exception(_for_future(fault))
            return
        call = job.call
        if not job.abandoned:  # it ended together with its call, before 'run' could count it
            return
        self.abandoned -= 1
        self._busy[call] -= 1
        _log.warning("late_result_dropped tool=%s id=%s", call.spec.name, call.id)
        if not self._busy[call]:
            del self._busy[call]
            for then in self._on_free.pop(call, ()):
                then()


def _for_future(fault: BaseException) -> BaseException:
    """Return the exception, in a `RuntimeError` if a future refuses it or it would stop the loop."""
    if isinstance(fault, Exception) and not isinstance(fault, StopIteration):
        return fault
    error = RuntimeError(f"The handler raised {type(fault).__name__}.")
    error.__cause__ = fault
    return error
