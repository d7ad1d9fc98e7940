"""Execution: runs admitted calls under their deadline.

It finds no tool and makes no answer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from threading import get_ident
from typing import Any, Final

from callyard.dispatch.admission import Admission
from callyard.dispatch.call import CLIENT_SHARE, DEFAULT_OPTIONS, Handler, Limiter, Middleware, Policy, ambient
from callyard.dispatch.deadlines import Deadlines
from callyard.dispatch.outcome import stopped_by
from callyard.dispatch.run import Run
from callyard.dispatch.threads import Threads
from callyard.dispatch.tool import Tool
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.limits import Limits

__all__ = ["Execution"]

_EXTRA_S: Final = 1.0
_STEPS: Final = 50
_set_current: Final = ambient.set  # bound once: binding them anew costs each call 300 of its 48,000 instructions
_reset_current: Final = ambient.reset
_log = logging.getLogger(__name__)


class Execution:
    """The running calls of one yard."""

    def __init__(
        self,
        limits: Limits,
        *,
        middleware: Sequence[Middleware],
        policies: Sequence[Policy],
        limiters: Sequence[Limiter],
        client_timeouts: Mapping[str, float],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.threads = Threads(limits, self.loop)
        self.calls: dict[str, Run] = {}
        self._limits = limits
        self._client_timeouts = client_timeouts
        self._deadlines = Deadlines(self.loop)
        self.admission = Admission(policies, limiters, self._deadlines)
        self._wrapped = _compose(middleware) if middleware else None
        self._ended: asyncio.Event | None = None
        """Set when a call ends; there only while `stop` waits."""
        self._stopping = 0
        self._abandoned: set[Run] = set()
        """Calls that `stop` waited for in vain."""

    async def run(self, call: Run, tool: Tool) -> object:  # noqa: C901, PLR0912 - written out, as 'dispatch' is
        """Run the call in this task, under its deadline; cancellation of our own becomes the failure that it stands for.

        Raises:
            ToolError: The call was stopped, or denied.
        """
        # comparing threads is cheaper than asking for the running loop, which is a system call
        task = asyncio.current_task(self.loop) if get_ident() == self._thread else None
        if task is None:
            raise ToolError("not_supported", "The yard was opened in another event loop than the one that calls it.")
        call.task = task
        if call.parent is not None or task.cancelling():
            call.join(task)
        self.calls[call.id] = call
        token, options, spec, gate = _set_current(call), call.options, call.spec, self.admission.gate
        running: dict[Run, float] | None = None
        partial: ToolError | None = None
        try:
            is_usual = tool.is_simple and not self.admission.applies_to_all and (options is DEFAULT_OPTIONS or not options.need_admission)
            if not is_usual or (gate and gate.allowed.get((call.profile.name, spec.name)) is not spec and gate.judges(call)):
                held = await self._admit(call, tool)
                if held is not None:
                    return held
            call.may_have_run = True
            timeout = spec.timeout
            if options is not DEFAULT_OPTIONS:
                timeout = self._timeout_of_handler(call, tool)
            elif timeout is None:
                timeout = self._limits.timeout
                # asked here, because most clients name no limit, and three function calls less are 4 % of a call on stdio
                if (client := call.request.caller.client) and (self._client_timeouts[client] or self._limits.client_timeout):
                    timeout = self._before_client(call, timeout)
            running = self._deadlines.start(call, timeout) if timeout else None
            try:
                result = await (self._wrapped or call.handler)(call)
            except BaseException:
                call.at_fault = "upstream" if call.at_fault == "upstream" else "tool"  # set by a handler that waits for one
                raise
            if call.stopped is None:
                return result
            await asyncio.sleep(0)  # a cancellation that the handler did not see arrives here, where it does no harm
            call.uncancel(task)
        except BaseException as error:
            if not _is_own(call, task, error):
                raise
            partial = error if isinstance(error, ToolError) else None
        finally:
            if running is not None:
                running.pop(call, None)
            _reset_current(token)
            del self.calls[call.id]
            call.finished, call.task = True, None
            if call.parent is not None or call.children or call.memo is not None or call.progress_throttle is not None:
                call.settle()
            if options is not DEFAULT_OPTIONS or call.paused_s or call.releases or self._ended is not None or self._abandoned:
                self._leave(call)
        raise stopped_by(call, self._timeout(call, tool), partial)

    async def stop(self, server: int) -> None:
        """Cancel every call, or those of one server, and wait until they are answered, at most as long as a clean-up may take."""
        for call in self._calls_of(server):
            call.stop("cancelled", blame="yard")
        self._ended = ended = self._ended or asyncio.Event()
        self._stopping += 1
        try:
            async with asyncio.timeout(self._limits.cleanup or None):
                while self._calls_of(server):
                    ended.clear()
                    await ended.wait()
        except TimeoutError:
            abandoned = self._calls_of(server)
            self._abandoned.update(abandoned)
            _log.warning("calls_left_behind count=%d", len(abandoned))
        finally:
            self._stopping -= 1
            if not self._stopping:
                self._ended = None  # so that calls of other servers cost no more than before
        if not server:
            self._deadlines.close()
            self.threads.close()

    def _calls_of(self, server: int) -> list[Run]:
        return [call for call in self.calls.values() if (not server or call.channel.server == server) and call not in self._abandoned]

    async def _admit(self, call: Run, tool: Tool) -> Envelope | None:
        """Admit a call; a timeout that its caller set, or the time limit of its client, runs meanwhile."""
        running: dict[Run, float] | None = None
        if call.options.seconds:
            self._deadlines.start(call, self._timeout(call, tool))
        elif call.request.caller.client and not tool.wraps and (client_s := self._before_client(call, 0.0)):
            running = self._deadlines.start(call, client_s)
        began, paused = time.perf_counter(), call.paused_s
        try:
            return await self.admission.admit(call)
        except BaseException:
            call.is_admitted = False
            raise
        finally:
            call.queued_s = time.perf_counter() - began - (call.paused_s - paused)
            if running is not None and running.pop(call, None) is None:  # the handler gets a deadline of its own
                self._deadlines.remove(call)

    def _leave(self, call: Run) -> None:
        """Release what only some calls hold."""
        self._abandoned.discard(call)
        if self._ended is not None:
            self._ended.set()
        if call.paused_s or call.options.seconds:
            self._deadlines.end(call)
        if call.releases:
            self.threads.when_free(call, call.release)

    def _timeout_of_handler(self, call: Run, tool: Tool) -> float:
        """Return the timeout that starts with the handler; 0 is none."""
        options = call.options
        if options.seconds:
            return 0.0  # its deadline has started before its admission
        own = self._timeout(call, tool) if options.job is not None or options.background else call.spec.timeout
        if own is not None:
            return own
        return self._before_client(call, self._limits.timeout) if call.request.caller.client else self._limits.timeout

    def _timeout(self, call: Run, tool: Tool) -> float:
        """Return the timeout of a call; a tool that runs others gets a little longer, so that it can report what they did."""
        seconds = call.options.seconds
        if tool.wraps:
            return seconds + _EXTRA_S if seconds else 0.0
        timeout = call.spec.timeout
        usual = self._limits.timeout if call.options.job is None else self._limits.job_timeout
        own = usual if timeout is None else timeout
        if seconds:
            return min(seconds, own or seconds)
        limit = self._client_limit(call) if timeout is None or not call.may_have_run else 0.0
        return min(limit, own or limit) if limit else own

    def _client_limit(self, call: Run) -> float:
        """Return within how many seconds the client of a call needs an answer; 0 if that is not known, or the call is in a job."""
        client = call.request.caller.client
        if not client or call.channel.job_id:
            return 0.0
        return self._limits.client_timeout * CLIENT_SHARE or self._client_timeouts[client]

    def _before_client(self, call: Run, timeout: float) -> float:
        """Return the timeout, or the time that is left until the client of the outermost call needs its answer if that is shorter."""
        limit = self._client_limit(call)
        if not limit:
            return timeout
        outermost: Any = call
        while outermost.parent is not None:
            outermost = outermost.parent
        # In a few steps, because calls with the same timeout share one timer.
        step = limit / _STEPS
        passed = (time.perf_counter() - outermost.started - outermost.paused_s) // step
        left = max(limit - passed * step, step)
        return min(timeout, left) if timeout else left


def _is_own(call: Run, task: "asyncio.Task[Any]", error: BaseException) -> bool:
    """Return whether the handler ended by a cancellation of our own."""
    if call.uncancel(task):
        call.stopped = call.stopped or "cancelled"
        return False
    if call.stopped is None and isinstance(error, asyncio.CancelledError):
        raise RuntimeError("The handler cancelled itself.") from error
    return call.stopped is not None


def _compose(middleware: Sequence[Middleware]) -> Handler:
    """Return one handler: the first middleware is the outermost, the tool's own handler the innermost."""

    def innermost(call: Any) -> Awaitable[object]:
        return call.handler(call)

    handler: Handler = innermost
    for wrap in reversed(middleware):
        handler = wrap(handler)
    return handler
