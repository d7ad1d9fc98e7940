"""The one funnel: every call, from every door, passes `Dispatcher.dispatch`.

It promises three things and does nothing else:

1. it never raises, unless it is itself cancelled: the answer is always an `Envelope`;
2. nothing runs that the caller's profile and policy do not allow;
3. every call ends in exactly one `Record`.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final, cast

from toolyard.call import Call, Decide, Handler, Middleware, Release, Turn, ambient
from toolyard.caller import ANYONE, LIBRARY, Caller, Door
from toolyard.deadline import Deadlines
from toolyard.ending import Ending
from toolyard.envelope import Envelope, encode
from toolyard.errors import ToolError
from toolyard.eval_guard import guard
from toolyard.fault import defect, failed
from toolyard.fit import Fitted, fit
from toolyard.limits import Limits
from toolyard.profile import Profile
from toolyard.record import Sink
from toolyard.registry import Registry
from toolyard.results import Results
from toolyard.session import Sessions
from toolyard.threads import Threads
from toolyard.tools import InvalidArgumentsError, Tool
from toolyard.turn import SerialTurns

__all__ = ["Dispatcher"]

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
        self._registry = registry
        self._profile = profile
        self._limits = limits
        self._results = results
        self.sinks = sinks
        self._decide = decide
        self._turn = turn
        self.serial_turns = SerialTurns()
        self._deadlines = Deadlines(self.loop)
        self._ids = count(int.from_bytes(os.urandom(5)))
        self._handler = _compose(middleware)
        self._has_policy = decide is not None or turn is not None

    async def dispatch(
        self, name: str, arguments: object = None, *, caller: Caller = ANYONE, door: Door = LIBRARY, parent: Call | None = None
    ) -> Envelope:
        """Answer one call."""
        profile = caller.profile or self._profile
        ending = Ending(f"c_{next(self._ids):x}", name, caller=caller, profile=profile, door=door, parent=parent)
        try:
            tool = self._find(name, profile, parent)
            call = ending.call = Call(ending.call_id, tool.spec, tool.handler, caller=caller, door=door, funnel=self, parent=parent)
            text = self._written(arguments)
            if _REFERENCE in text:
                arguments = await self._results.fill_in(arguments, tool.spec.input_schema, caller.owner)
                text = encode(arguments)
            self._admit(call, tool, name, {} if arguments is None else arguments, text)
            answer = fit(call, tool, await self._run(call))
            if answer.encoded is not None and answer.encoded.characters > self._limits.result_characters and parent is None:
                answer = answer.cut(await self._results.keep(answer.encoded, caller.owner))
        except asyncio.CancelledError:
            self._end(ending, failed(ToolError("cancelled", "The caller went away."), ending.tool, ending.call))
            raise
        except ToolError as error:
            answer = failed(error, ending.tool, ending.call)
        except BaseException as error:  # noqa: BLE001 - whatever a handler does, the caller gets an answer
            answer = failed(defect(error, ending.call), ending.tool, ending.call)
        return self._end(ending, answer)

    async def invoke(self, parent: Call, name: str, arguments: Mapping[str, Any] | None) -> Envelope:
        """Dispatch a call from inside a call."""
        door = parent.door if parent.door.progress is None else replace(parent.door, progress=None)
        return await self.dispatch(name, arguments, caller=parent.caller, door=door, parent=parent)

    async def in_thread(self, call: Call, function: Callable[[], object]) -> object:
        """Run something that blocks in a worker thread."""
        return await self.threads.run(call, function)

    def cancel(self, call_id: str) -> bool:
        """Interrupt a call, which is then answered with `cancelled`; return whether it was in flight."""
        call = self.in_flight.get(call_id)
        if call is not None:
            call.stop("cancelled")
        return call is not None

    async def close(self) -> None:
        """Interrupt every call and wait, for as long as a clean-up may take, until each is answered."""
        for call in tuple(self.in_flight.values()):
            call.stop("cancelled")
        if self.in_flight:
            self._empty = asyncio.Event()
            try:
                await asyncio.wait_for(self._empty.wait(), self._limits.cleanup)
            except TimeoutError:
                _log.warning("calls_left_behind count=%d", len(self.in_flight))
        self._deadlines.close()
        self.threads.close()

    def _find(self, name: str, profile: Profile, parent: Call | None) -> Tool:
        if parent is not None:
            if parent.finished:
                raise ToolError("state_error", "The call that this one belongs to is over.", reason="parent_finished")
            if parent.depth >= self._limits.depth:
                message = f"Calls may be nested {self._limits.depth} deep."
                raise ToolError("limit_exceeded", message, may_have_run=False, limit="depth", maximum=self._limits.depth)
        return self._registry.find(str(name), profile)

    def _written(self, arguments: object) -> bytes:
        """Return the arguments as JSON, if they can be and are not too long."""
        if arguments is None:
            return b"{}"
        try:
            text = encode(arguments)
        except TypeError:
            raise ToolError("invalid_input", "The arguments cannot be written as JSON.", issues=[]) from None
        if len(text) > self._limits.argument_bytes:
            message = f"The arguments have {len(text)} bytes; at most {self._limits.argument_bytes} are taken."
            raise ToolError("too_large", message, bytes=len(text), limit=self._limits.argument_bytes)
        return text

    def _admit(self, call: Call, tool: Tool, name: str, arguments: object, text: bytes) -> None:
        """Check the arguments, guard what would be evaluated and find the session."""
        spec = call.spec
        try:
            call.arguments = tool.check(arguments, text)
        except InvalidArgumentsError as error:
            call.arguments, call.coerced = tool.mend(arguments, error.issues, repair=self._limits.repair)
        if name != spec.name:
            call.warnings += (f"'{name}' is now called '{spec.name}'.",)
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
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        call.run_in(task)
        token = ambient.set(call)
        self.in_flight[call.id] = call
        if call.parent is not None:
            call.parent.adopt(call)
        try:
            result = await (self._in_turn(call) if self._has_policy or call.spec.serial else self._timed(call))
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
            del self.in_flight[call.id]
            if self._empty is not None and not self.in_flight:
                self._empty.set()
            if call.parent is not None:
                call.parent.disown(call)
            call.finish()
            ambient.reset(token)
        raise self._stopped(call)

    async def _in_turn(self, call: Call) -> object:
        held = await self._ask_policy(call)
        if held is not None:
            return held
        releases: list[Release] = []
        try:
            if call.spec.serial:
                releases.append(await self.serial_turns(call))
            if self._turn is not None:
                releases.append(await self._turn(call))
            return await self._timed(call)
        finally:
            self.threads.when_free(call, partial(_give_back, releases))

    async def _ask_policy(self, call: Call) -> Envelope | None:
        if self._decide is None:
            return None
        try:
            return await self._decide(call)
        except ToolError:
            raise
        except Exception:  # noqa: BLE001 - whatever a policy raises denies
            _log.exception("policy_failed tool=%s id=%s", call.spec.name, call.id)
            raise ToolError("permission_denied", "The policy could not decide, so the call is denied.") from None

    async def _timed(self, call: Call) -> object:
        timeout = call.spec.timeout
        seconds = self._limits.timeout if timeout is None else timeout
        call.running = True
        if not seconds:
            return await self._handler(call)
        waiting = self._deadlines.start(call, seconds)
        try:
            return await self._handler(call)
        finally:
            waiting.pop(call, None)

    def _end(self, ending: Ending, answer: Fitted) -> Envelope:
        call = ending.call
        if call is not None and call.session is not None:
            self.sessions.leave(call.session, None if answer.error is None else answer.error.code)
        return ending.end(answer, self.sinks, slow=self._limits.slow)

    def _stopped(self, call: Call) -> ToolError:
        """Return the failure that the interruption of a call stands for."""
        spec = call.spec
        if call.stopped == "cancelled":
            return ToolError("cancelled", f"'{spec.name}' was cancelled.")
        seconds = spec.timeout if spec.timeout is not None else self._limits.timeout
        message = f"'{spec.name}' did not finish within {seconds:g} seconds."
        return ToolError("timeout", message, hint=spec.timeout_hint, may_have_run=call.running, timeout_ms=round(seconds * 1000))


def _compose(middleware: Sequence[Middleware]) -> Handler:
    """Return one handler: the first middleware is the outermost, the tool's own handler the innermost."""

    def innermost(call: Call) -> Awaitable[object]:
        return call.handler(call)

    handler: Handler = innermost
    for wrap in reversed(middleware):
        handler = wrap(handler)
    return handler


def _give_back(releases: list[Release]) -> None:
    while releases:
        releases.pop()()
