"""Flights: calls that were admitted, from the moment they enter their task until they leave it.

It runs a call under its deadline and makes of an interruption what it stands for. It finds no tool and answers nobody.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from threading import get_ident
from typing import Any, Final

from toolyard.dispatch.admission import Admission
from toolyard.dispatch.call import Call, Handler, Limit, Middleware, Policy, ambient
from toolyard.dispatch.deadlines import Deadlines
from toolyard.dispatch.outcome import stopped_by
from toolyard.dispatch.threads import Threads
from toolyard.dispatch.tool import Tool
from toolyard.model.envelope import Envelope
from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits

__all__ = ["Execution"]

_LONGER: Final = 1.0  # seconds
_log = logging.getLogger(__name__)


class Execution:
    """The calls of one yard that are running."""

    def __init__(self, limits: Limits, *, middleware: Sequence[Middleware], decide: Policy | None, turn: Limit | None) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.threads = Threads(limits, self.loop)
        self.calls: dict[str, Call] = {}
        self._limits = limits
        self._deadlines = Deadlines(self.loop)
        self.admission = Admission(decide, turn, self._deadlines)
        self._wrapped = _compose(middleware) if middleware else None
        self._left: asyncio.Event | None = None
        """There while somebody waits for calls to leave."""
        self._stopping = 0
        self._behind: set[Call] = set()
        """Calls that were waited for in vain, and are not again."""

    async def run(self, call: Call, tool: Tool) -> object:
        """Run the call in this task; an interruption of our own becomes the failure it stands for.

        Raises:
            ToolError: It was stopped, or denied.
        """
        task = asyncio.current_task(self.loop) if get_ident() == self._thread else None  # to ask for the loop would ask the system
        if task is None:
            raise ToolError("not_supported", "The yard was opened in another event loop than the one that calls it.")
        call.run_in(task)
        self.calls[call.id] = call
        token = ambient.set(call)
        waiting: dict[Call, float] | None = None
        try:
            if self.admission.has_policy or call.seconds or not tool.is_simple:
                held = await self._admit(call, tool)
                if held is not None:
                    return held
            call.may_have_run = True
            own = call.spec.timeout
            waiting = None if call.seconds else self._deadlines.start(call, self._limits.timeout if own is None else own)
            try:
                result = await (call.handler(call) if self._wrapped is None else self._wrapped(call))
            except BaseException:
                call.at_fault = "upstream" if call.at_fault == "upstream" else "tool"  # a handler that waits for one says so
                raise
            if call.stopped is None:
                return result
            await asyncio.sleep(0)  # an interruption that the handler did not take arrives here, where it does no harm
            call.take_back(task)
        except BaseException as error:
            if not _is_own(call, task, error):
                raise
        finally:
            if waiting is not None:
                waiting.pop(call, None)
            ambient.reset(token)
            del self.calls[call.id]
            call.finish()
            if call.seconds or call.paused_s or call.releases or self._left is not None or self._behind:
                self._leave(call)
        raise stopped_by(call, self._timeout(call, tool))

    async def stop(self, front: int) -> None:
        """Interrupt every call, or those of one front, and wait, for as long as a clean-up may take, until each is answered."""
        for call in self._calls_of(front):
            call.stop("cancelled", blame="yard")
        self._left = left = self._left or asyncio.Event()
        self._stopping += 1
        try:
            async with asyncio.timeout(self._limits.cleanup or None):
                while self._calls_of(front):
                    left.clear()
                    await left.wait()
        except TimeoutError:
            behind = self._calls_of(front)
            self._behind.update(behind)
            _log.warning("calls_left_behind count=%d", len(behind))
        finally:
            self._stopping -= 1
            if not self._stopping:
                self._left = None  # so that calls of others, who go on, need not tell
        if not front:
            self._deadlines.close()
            self.threads.close()

    def _calls_of(self, front: int) -> list[Call]:
        return [call for call in self.calls.values() if (not front or call.channel.front == front) and call not in self._behind]

    async def _admit(self, call: Call, tool: Tool) -> Envelope | None:
        """Wait until a call may run, and return what a policy answers instead; the time that its caller gives it runs meanwhile."""
        if call.seconds:
            self._deadlines.start(call, self._timeout(call, tool))
        return await self.admission.admit(call)

    def _leave(self, call: Call) -> None:
        """Let go of what only some calls hold."""
        self._behind.discard(call)
        if self._left is not None:
            self._left.set()
        if call.paused_s or call.seconds:
            self._deadlines.end(call)
        if call.releases:
            self.threads.when_free(call, call.give_back)

    def _timeout(self, call: Call, tool: Tool) -> float:
        """Return how long a call may take; one that runs others has a little longer than these, so that it can tell what came of them."""
        if tool.wraps:
            return call.seconds + _LONGER if call.seconds else 0.0
        timeout = call.spec.timeout
        own = self._limits.timeout if timeout is None else timeout
        return min(call.seconds, own or call.seconds) if call.seconds else own


def _is_own(call: Call, task: "asyncio.Task[Any]", error: BaseException) -> bool:
    """Return whether a handler ended by an interruption of our own."""
    if call.take_back(task):
        call.stopped = call.stopped or "cancelled"
        return False
    if call.stopped is None and isinstance(error, asyncio.CancelledError):
        raise RuntimeError("The handler cancelled itself.") from error
    return call.stopped is not None


def _compose(middleware: Sequence[Middleware]) -> Handler:
    """Return one handler: the first middleware is the outermost, the tool's own handler the innermost."""

    def innermost(call: Call) -> Awaitable[object]:
        return call.handler(call)

    handler: Handler = innermost
    for wrap in reversed(middleware):
        handler = wrap(handler)
    return handler
