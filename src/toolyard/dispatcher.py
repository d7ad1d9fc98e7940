"""The one funnel: every call, from every door, passes `Dispatcher.dispatch`.

It promises three things and does nothing else:

1. it never raises, unless it is itself cancelled: the answer is always an `Envelope`;
2. nothing runs that the caller's profile and policy do not allow;
3. every call ends in exactly one `Record`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeVar, cast

import msgspec

from toolyard.admission import Admission
from toolyard.call import Call, Decide, Handler, Middleware, Turn, ambient
from toolyard.caller import ANYONE, LIBRARY, Caller, Door
from toolyard.deadline import Deadlines
from toolyard.ending import end
from toolyard.envelope import Encoded, Envelope, encode
from toolyard.errors import ToolError
from toolyard.eval_guard import guard
from toolyard.fault import defect, failed, stopped
from toolyard.fit import Fitted, fit
from toolyard.limits import Limits
from toolyard.profile import Profile
from toolyard.record import Sink
from toolyard.registry import Registry
from toolyard.results import Results
from toolyard.session import Sessions
from toolyard.threads import Threads
from toolyard.tools import InvalidArgumentsError, Tool, written

__all__ = ["Dispatcher"]

T = TypeVar("T")
_REFERENCE: Final = b'"$ref"'
_log = logging.getLogger(__name__)


class Dispatcher:
    """From name and arguments to envelope, for one yard."""

    def __init__(
        self,
        registry: Registry,
        *,
        profile: Profile,
        limits: Limits,
        sessions: Sessions,
        results: Results,
        sinks: Sequence[Sink],
        middleware: Sequence[Middleware] = (),
        decide: Decide | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.sessions = sessions
        self.threads = Threads(limits, self.loop)
        self.in_flight: dict[str, Call] = {}
        self.state: Any = None
        self._empty: asyncio.Event | None = None
        self._closed = False
        self._registry = registry
        self._profile = profile
        self._limits = limits
        self._results = results
        self.sinks = sinks
        self._deadlines = Deadlines(self.loop)
        self.admission = Admission(decide, turn, self._deadlines)
        self._ids = count(int.from_bytes(os.urandom(5)))
        self._handler = _compose(middleware)

    async def dispatch(
        self,
        name: str,
        arguments: object = None,
        *,
        caller: Caller = ANYONE,
        door: Door = LIBRARY,
        parent: Call | None = None,
        filled: bool = False,
    ) -> Envelope:
        """Answer one call; references in arguments that are filled in already are left as they are."""
        profile = caller.profile or self._profile
        call = Call(
            id=f"c_{next(self._ids):x}",
            name=name,
            caller=caller,
            profile=profile,
            door=door,
            funnel=self,
            started=time.perf_counter(),
            parent=parent,
            depth=0 if parent is None else parent.depth + 1,
        )
        try:
            tool = self._find(call)
            text = written(arguments, self._limits)
            if not filled and text.find(_REFERENCE) >= 0:  # 'in' would try it as a number first, at several times the cost
                text = encode(await self._results.fill_in(msgspec.json.decode(text), tool.spec.input_schema, caller.owner))
            self._admit(call, tool, text)
            answer = fit(call, tool, await self._run(call))
        except asyncio.CancelledError:
            self._end(call, failed(ToolError("cancelled", "The caller went away."), call))
            raise
        except ToolError as error:
            answer = failed(error, call)
        except BaseException as error:  # noqa: BLE001 - whatever a handler does, the caller gets an answer
            answer = failed(defect(error, call), call)
        encoded = answer.encoded
        if encoded is not None and parent is None and encoded.characters > (door.result_characters or self._limits.result_characters):
            answer = await self._shorten(call, answer)
        return self._end(call, answer)

    async def invoke(self, parent: Call, name: str, arguments: Mapping[str, Any] | None) -> Envelope:
        """Dispatch a call from inside a call."""
        door = parent.door if parent.door.progress is None else replace(parent.door, progress=None)
        return await self.dispatch(name, arguments, caller=parent.caller, door=door, parent=parent)

    def in_thread(self, call: Call, function: Callable[[], object]) -> Awaitable[object]:
        """Run something that blocks in a worker thread."""
        return self.threads.run(call, function)

    def lent(self) -> AbstractContextManager[None]:
        """Let another thread be made while this one waits."""
        return self.threads.lent()

    def wait_aside(self, call: Call, answer: Awaitable[T]) -> Awaitable[T]:
        """Wait for somebody outside, while no deadline runs and others may have the call's turns."""
        return self.admission.wait_aside(call, answer)

    def cancel(self, call_id: str) -> bool:
        """Interrupt a call, which is then answered with `cancelled`; return whether it was in flight."""
        call = self.in_flight.get(call_id)
        if call is not None:
            call.stop("cancelled")
        return call is not None

    async def close(self) -> None:
        """Take no more calls, interrupt every one and wait, for as long as a clean-up may take, until each is answered."""
        self._closed = True
        for call in tuple(self.in_flight.values()):
            call.stop("cancelled", blame="yard")
        if self.in_flight:
            self._empty = asyncio.Event()
            try:
                await asyncio.wait_for(self._empty.wait(), self._limits.cleanup or None)
            except TimeoutError:
                _log.warning("calls_left_behind count=%d", len(self.in_flight))
        self._deadlines.close()
        self.threads.close()

    async def _shorten(self, call: Call, answer: Fitted) -> Fitted:
        """Return the answer with a handle in place of data that are too long."""
        try:
            return answer.cut(await self._results.keep(cast("Encoded", answer.encoded), call.caller.owner))
        except asyncio.CancelledError:
            self._end(call, failed(ToolError("cancelled", "The caller went away."), call))
            raise
        except ToolError as error:
            return failed(error, call)
        except BaseException as error:  # noqa: BLE001 - a store may raise anything
            return failed(defect(error, call), call)

    def _find(self, call: Call) -> Tool:
        if self._closed:
            raise ToolError("overloaded", "The yard is closing.")
        if call.parent is not None and call.parent.finished:
            raise ToolError("state_error", "The call that this one belongs to is over.")
        if call.depth > self._limits.depth:
            message = f"Calls may be nested {self._limits.depth} deep."
            raise ToolError("limit_exceeded", message, may_have_run=False, limit="depth", maximum=self._limits.depth)
        tool = self._registry.find(call.name, call.profile)
        call.spec, call.handler = tool.spec, tool.handler
        return tool

    def _admit(self, call: Call, tool: Tool, text: bytes) -> None:
        """Check the arguments, guard what would be evaluated and find the session."""
        spec = call.spec
        call.at_fault = "tool"
        try:
            call.arguments = tool.check(text)
        except InvalidArgumentsError as error:
            call.arguments, call.coerced = tool.mend(text, error.issues, repair=self._limits.repair)
        call.at_fault = "yard"
        if call.name != spec.name:
            call.warnings += (f"'{call.name}' is now called '{spec.name}'.",)
        if spec.deprecated is not None:
            call.warnings += (f"'{spec.name}' is deprecated. {spec.deprecated}",)
        if spec.eval is not None:
            guard(call.arguments.get(spec.eval.argument), spec.eval, spec.name, self._limits)
        if spec.session != "none":
            self._enter_session(call)

    def _enter_session(self, call: Call) -> None:
        named = call.arguments.get("session_id")
        session = self.sessions.resolve(named, call.caller.owner, required=call.spec.session == "required")
        if session is not None:
            call.session = session
            self.sessions.enter(session)

    async def _run(self, call: Call) -> object:
        """Run the call in this task; an interruption of our own becomes the failure it stands for."""
        task = asyncio.current_task()
        if task is None or task.get_loop() is not self.loop:
            raise ToolError("not_supported", "The yard was opened in another event loop than the one that calls it.")
        token = self._enter(call, task)
        waiting: dict[Call, float] | None = None
        try:
            if self.admission.has_policy or call.spec.serial or call.spec.question is not None:
                held = await self.admission.admit(call)
                if held is not None:
                    return held
            call.running = True
            call.at_fault = "tool"
            waiting = self._deadlines.start(call, self._timeout(call))
            result = await self._handler(call)
            call.at_fault = "yard"
            if call.stopped is None:
                return result
            await asyncio.sleep(0)  # an interruption that the handler did not take arrives here, where it does no harm
            call.take_back(task)
        except BaseException as error:
            if call.take_back(task):
                call.stopped = call.stopped or "cancelled"
                raise
            if call.stopped is None and isinstance(error, asyncio.CancelledError):
                raise RuntimeError("The handler cancelled itself.") from error
            if call.stopped is None:
                raise
        finally:
            if waiting is not None:
                waiting.pop(call, None)
            self._leave(call, token)
        raise stopped(call, self._timeout(call))

    def _enter(self, call: Call, task: "asyncio.Task[Any]") -> Token[Call]:
        call.run_in(task)
        self.in_flight[call.id] = call
        if call.parent is not None:
            call.parent.adopt(call)
        return ambient.set(call)

    def _leave(self, call: Call, token: Token[Call]) -> None:
        ambient.reset(token)
        del self.in_flight[call.id]
        if self._empty is not None and not self.in_flight:
            self._empty.set()
        if call.parent is not None:
            call.parent.disown(call)
        if call.releases:
            self.threads.when_free(call, call.give_back)
        call.finish()

    def _end(self, call: Call, answer: Fitted) -> Envelope:
        if call.session is not None:
            self.sessions.leave(call.session, None if answer.error is None else answer.error.code)
        return end(call, answer, self.sinks, slow=self._limits.slow)

    def _timeout(self, call: Call) -> float:
        timeout = call.spec.timeout
        return self._limits.timeout if timeout is None else timeout


def _compose(middleware: Sequence[Middleware]) -> Handler:
    """Return one handler: the first middleware is the outermost, the tool's own handler the innermost."""

    def innermost(call: Call) -> Awaitable[object]:
        return call.handler(call)

    handler: Handler = innermost
    for wrap in reversed(middleware):
        handler = wrap(handler)
    return handler
