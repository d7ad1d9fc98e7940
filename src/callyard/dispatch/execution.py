"""Execution: runs admitted calls under their deadline.

It finds no tool and makes no answer.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from threading import get_ident
from typing import Any, NamedTuple

from callyard.dispatch.admission import Admission
from callyard.dispatch.call import Call, Handler, Limiter, Middleware, Policy, ambient
from callyard.dispatch.deadlines import Deadlines, Timeouts
from callyard.dispatch.outcome import stopped_by
from callyard.dispatch.run import Run, run_of
from callyard.dispatch.threads import Threads
from callyard.dispatch.tool import Tool
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.limits import CLEANUP_S, Limits

__all__ = ["Execution", "RunningHandler"]

_log = logging.getLogger(__name__)


class RunningHandler(NamedTuple):
    """A handler that runs."""

    run: Run
    ran_s: float
    """How long it has run, without the waits."""
    left_s: float | None
    """How long it may run; 0 if its deadline has passed, none without a deadline."""


class Execution:
    """The running calls of one yard."""

    def __init__(
        self,
        limits: Limits,
        *,
        middleware: Sequence[Middleware],
        policies: Sequence[Policy],
        limiters: Sequence[Limiter],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.threads = Threads(limits, self.loop)
        self.timeouts = Timeouts(limits)
        self.runs: dict[str, Run] = {}
        self._limits = limits
        self.deadlines = Deadlines(self.loop)
        self.admission = Admission(policies, limiters, self.deadlines)
        self._handler = _compose(middleware)
        self._ended: asyncio.Event | None = None
        """Set when a call ends; there only while `stop` waits."""
        self._stopping = 0
        self._abandoned: set[Run] = set()
        """Calls that `stop` waited for in vain."""

    async def run(self, run: Run, tool: Tool) -> object:
        """Run a call in this task; a cancellation of our own becomes the failure that it stands for.

        Raises:
            ToolError: The call was stopped, or denied.
        """
        # Comparing threads is cheaper than asking for the running loop, which is a system call: 5 % of a call on stdio.
        task = asyncio.current_task(self.loop) if get_ident() == self._thread else None
        if task is None:
            message = "The yard was opened in another event loop than the one that calls it."
            raise ToolError("not_supported", message)
        if task.cancelling():
            await asyncio.sleep(0)  # a cancellation from before the call arrives here, and is not the handler's
        run.begin(task)
        self.runs[run.id] = run
        token = ambient.set(run.call)
        partial: ToolError | None = None
        try:
            if run.elsewhere is not None:  # it is admitted there
                result = await run.elsewhere()
            else:
                held = None if self.admission.has_nothing_to_do(run, tool) else await self._admit(run, tool)
                result = await self._handle(run, tool) if held is None else held
            if run.stopped is None:
                return result
            await asyncio.sleep(0)  # a cancellation that the handler did not see arrives here, where it does no harm
            run.uncancel(task)
        except BaseException as error:
            if not _is_own(run, task, error):
                raise
            partial = error if isinstance(error, ToolError) else None
        finally:
            ambient.reset(token)
            self._leave(run)
        raise stopped_by(run, self.timeouts.of(run, tool), partial)

    async def _admit(self, run: Run, tool: Tool) -> Envelope | None:
        """Admit a call; a timeout that its caller set, or the time limit of its client, runs meanwhile."""
        seconds = self.timeouts.of_admission(run, tool)
        if seconds:
            self.deadlines.start(run, seconds)
        began, paused = time.perf_counter(), run.paused_s
        try:
            return await self.admission.admit(run)
        except BaseException:
            run.is_admitted = False
            raise
        finally:
            run.queued_s = time.perf_counter() - began - (run.paused_s - paused)
            if seconds and (run.job is not None or not run.options.seconds):
                self.deadlines.remove(run)  # the handler gets a deadline of its own

    async def _handle(self, run: Run, tool: Tool) -> object:
        run.call.may_have_run = True
        timeout = self.timeouts.of_handler(run, tool)
        if timeout:
            run.deadline = self.deadlines.start(run, timeout)
        try:
            if run.span is None:
                return await self._handler(run.call)
            with run.span.current():
                return await self._handler(run.call)
        except BaseException:
            if run.at_fault != "upstream":  # set by a handler that waits for one
                run.at_fault = "tool"
            raise

    def handlers(self, least_s: float) -> list[RunningHandler]:
        """Return the handlers that have run for so long, apart from those that wait for a person or a client."""
        now, left, found = time.perf_counter(), self.deadlines.left(), list[RunningHandler]()
        for run in self.runs.values():
            ran = now - run.started - run.queued_s - run.paused_s
            if ran < least_s or not run.call.may_have_run or self.deadlines.is_paused(run):
                continue
            found.append(RunningHandler(run, ran, 0.0 if run.stopped == "timeout" else left.get(run)))
        return found

    def _leave(self, run: Run) -> None:
        del self.runs[run.id]
        run.end()
        if run.deadline is not None:
            run.deadline.pop(run, None)  # the table and its timer stay for the next calls with the same timeout
        if run.paused_s or run.options.seconds:
            self.deadlines.end(run)
        self._abandoned.discard(run)
        if self._ended is not None:
            self._ended.set()
        if run.releases:
            self.threads.when_free(run.call, run.release)

    async def stop(self, server: int) -> None:
        """Cancel every call, or those of one server, and wait until they are answered, but not for ever."""
        for run in self._runs_of(server):
            run.stop("cancelled", blame="yard")
        self._ended = ended = self._ended or asyncio.Event()
        self._stopping += 1
        try:
            async with asyncio.timeout(CLEANUP_S):
                while self._runs_of(server):
                    ended.clear()
                    await ended.wait()
        except TimeoutError:
            abandoned = self._runs_of(server)
            self._abandoned.update(abandoned)
            _log.warning("calls_left_behind count=%d", len(abandoned))
        finally:
            self._stopping -= 1
            if not self._stopping:
                self._ended = None
        if not server:
            self.deadlines.close()
            self.threads.close()

    def serves(self, server: int) -> bool:
        """Return whether a client of a server context waits for a call."""
        return any(run.server == server for run in self.runs.values())

    def _runs_of(self, server: int) -> list[Run]:
        here = [run for run in self.runs.values() if not server or run.server == server]
        return [run for run in here if run not in self._abandoned]


def _is_own(run: Run, task: "asyncio.Task[Any]", error: BaseException) -> bool:
    """Return whether the handler ended by a cancellation of our own."""
    if run.uncancel(task):
        run.stopped = run.stopped or "cancelled"
        return False
    if run.stopped is None and isinstance(error, asyncio.CancelledError):
        raise RuntimeError("The handler cancelled itself.") from error
    return run.stopped is not None


def _compose(middleware: Sequence[Middleware]) -> Handler:
    """Return one handler: the first middleware is the outermost, the tool's own handler the innermost."""

    async def innermost(call: Call) -> object:
        run = run_of(call)
        for check in run.prechecks:
            await check(call)
        return await run.handler(call)

    handler: Handler = innermost
    for wrap in reversed(middleware):
        handler = wrap(handler)
    return handler
