"""The one funnel: every call, from every door, passes `Dispatcher.dispatch`.

Reading a resource (`read`) and asking for a prompt (`prompt`) are calls, too, and take the same steps.
It promises three things and does nothing else:

1. it never raises, unless it is itself cancelled: the answer is always an `Envelope`;
2. nothing runs that the caller's profile and policy do not allow;
3. every call ends in exactly one `Record`.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any, Literal, TypeVar

from toolyard.dispatch.call import ANYONE, DEFAULT_OPTIONS, LIBRARY, Call, Caller, Channel, InvokeOptions, Limit, Middleware, Policy
from toolyard.dispatch.eval_guard import guard
from toolyard.dispatch.execution import Execution
from toolyard.dispatch.outcome import Outcome, Query, Sink, defect_from, failure_from, finish, room_for_data, to_outcome, to_read_outcome
from toolyard.dispatch.registry import Registry
from toolyard.dispatch.resource import contents_of, messages_of, suggest
from toolyard.dispatch.results import ESCAPE, MARK, Results, may_refer, too_large
from toolyard.dispatch.sessions import Sessions
from toolyard.dispatch.tool import InvalidArgumentsError, Tool, plain_of, written
from toolyard.model.envelope import Encoded, Envelope, encode
from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits
from toolyard.model.profile import Profile
from toolyard.model.spec import Kind, ToolSpec, unknown_spec

__all__ = ["Dispatcher"]

T = TypeVar("T")


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
        decide: Policy | None = None,
        turn: Limit | None = None,
    ) -> None:
        self._flights = Execution(limits, middleware=middleware, decide=decide, turn=turn)
        self.loop = self._flights.loop
        self.threads = self._flights.threads
        self.admission = self._flights.admission
        self.in_flight = self._flights.calls
        self.sessions = sessions
        self.sinks = sinks
        self.state: Any = None
        self.learn: Callable[[ToolSpec, object, Caller], None] | None = None
        """Told what tools answer that do not say so themselves, and whom."""
        self._closed: set[int] = set()  # fronts by number; 0 is everything
        self._registry = registry
        self.profile = profile
        self._limits = limits
        self._filled_bytes = max(limits.argument_bytes, limits.stored_bytes)
        self.results = results
        self._ids = count(int.from_bytes(os.urandom(5)))

    async def dispatch(
        self,
        name: str,
        arguments: object = None,
        *,
        caller: Caller = ANYONE,
        channel: Channel = LIBRARY,
        parent: Call | None = None,
        options: InvokeOptions = DEFAULT_OPTIONS,
    ) -> Envelope:
        """Answer one call, from outside or, with its parent, from inside another."""
        # written out here, and without names, because what '_begin' does would be felt by every call
        call_id, profile, now = f"c_{next(self._ids):x}", caller.profile or self.profile, time.perf_counter()
        if parent is None:
            call = Call(call_id, name, caller, profile, channel, self, now)
        else:
            call = Call(
                call_id, name, caller, profile, channel, self, now, 0.0, options.seconds, parent, parent.depth + 1, options.refs_resolved
            )
        try:
            tool = self._find(call)
            if options.checked_by is tool:
                call.arguments = options.checked  # pyright: ignore[reportAttributeAccessIssue] - there, if checked
                if options.coerced:
                    call.coerced = options.coerced
            else:
                text = written(arguments, self._filled_bytes if options.refs_resolved else self._limits.argument_bytes)
                if (MARK in text or ESCAPE in text) and not options.refs_resolved and not tool.wraps and may_refer(text):
                    text = encode(await self.results.filling(caller.owner, profile).fill_in(plain_of(text), tool.spec.input_schema))
                self._check(call, tool, text)
            if not tool.is_simple or name != tool.spec.name:
                self._admit(call)
            answer = to_outcome(call, tool, await self._flights.run(call, tool))
            if self.learn is not None and call.may_have_run and tool.spec.output_schema is None:
                self.learn(tool.spec, answer.data, caller)
        except BaseException as error:  # noqa: BLE001 - whatever a handler does, the caller gets an answer
            answer = self._failed(call, error)
        if parent is None and (encoded := answer.encoded) is not None:
            room = None if channel.result_characters is None else room_for_data(call, channel.result_characters)
            if encoded.characters > (self._limits.result_characters if room is None else room):
                answer = await self._shorten(call, answer, encoded, room)
        return finish(call, answer, self.sinks, slow=self._limits.slow) if call.session is None else self._end(call, answer)

    async def read(self, uri: str, *, caller: Caller = ANYONE, channel: Channel = LIBRARY, parent: Call | None = None) -> Envelope:
        """Answer one reading of a resource: the same funnel, and data that say what the contents are."""
        call = self._begin("resource", str(uri), caller, channel, parent=parent)

        def find() -> Query:
            resource, variables = self._registry.find_resource(call.name, call.profile)
            return Query(resource.query, variables, partial(contents_of, resource.spec, call.name))

        return await self._answer(call, find)

    async def prompt(
        self, name: str, arguments: object = None, *, caller: Caller = ANYONE, channel: Channel = LIBRARY, parent: Call | None = None
    ) -> Envelope:
        """Answer one request for a prompt: the same funnel, and data that say what the messages are."""
        call = self._begin("prompt", name, caller, channel, parent=parent)

        def find() -> Query:
            prompt = self._registry.find_prompt(name, call.profile)
            return Query(prompt.query, arguments, partial(messages_of, prompt.spec))

        return await self._answer(call, find)

    async def complete(
        self,
        kind: Literal["resource", "prompt"],
        name: str,
        *,
        argument: str,
        value: str,
        settled: Mapping[str, str],
        caller: Caller = ANYONE,
    ) -> list[str]:
        """Return what the value of a variable or argument may become.

        Raises:
            ToolError: There is no such thing, or what completes it failed.
        """
        call = self._begin(kind, name, caller, LIBRARY)
        self._check_place(call)
        find = self._registry.find_prompt if kind == "prompt" else self._registry.find_template
        return await suggest(call, find(name, call.profile), argument, value, settled=settled, seconds=self._limits.timeout)

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

    async def close(self, front: int = 0) -> None:
        """Take no more calls, of one front or at all, interrupt those there are and wait, as long as cleaning up may take, for answers."""
        self._closed.add(front)
        await self._flights.stop(front)

    def refuse(self, name: str, error: ToolError, *, caller: Caller = ANYONE, channel: Channel = LIBRARY) -> Envelope:
        """Answer a call that cannot even begin, and record it."""
        call = self._begin("tool", name, caller, channel)
        return self._end(call, failure_from(error, call))

    async def _shorten(self, call: Call, answer: Outcome, encoded: Encoded, room: int | None) -> Outcome:
        """Return the answer with a handle in place of data that are too long; why a call failed is told whatever becomes of those."""
        try:
            return answer.cut(await self.results.keep(encoded, call.caller.owner, call.profile, room=room))
        except BaseException as error:  # noqa: BLE001 - a store may raise anything
            if answer.error is not None and isinstance(error, ToolError):
                return answer.cut(too_large(encoded))
            return self._failed(call, error)

    async def _answer(self, call: Call, find: "Callable[[], Query]") -> Envelope:
        """Answer a call of something that only tells: it has no session and no eval, and is never cut to a handle."""
        try:
            self._check_place(call)
            query = find()
            call.spec, call.handler = query.tool.spec, query.tool.handler
            self._take_texts(call, query.tool, written(query.arguments, self._limits.argument_bytes))
            answer = to_read_outcome(call, query, await self._flights.run(call, query.tool))
        except BaseException as error:  # noqa: BLE001 - as in 'dispatch'
            answer = self._failed(call, error)
        return self._end(call, answer)

    def _begin(self, kind: Kind, name: str, caller: Caller, channel: Channel, *, parent: Call | None = None) -> Call:
        return Call(
            id=f"c_{next(self._ids):x}",
            name=name,
            caller=caller,
            profile=caller.profile or self.profile,
            channel=channel,
            funnel=self,
            started=time.perf_counter(),
            parent=parent,
            depth=0 if parent is None else parent.depth + 1,
            spec=unknown_spec(kind, name),
        )

    def _take_texts(self, call: Call, query: Tool, text: bytes) -> None:
        """Check the arguments, which are texts on every wire: reading them as what is wanted is no repair."""
        call.at_fault = "tool"
        try:
            call.arguments = query.check(text)
        except InvalidArgumentsError as error:
            call.arguments = query.mend(text, error.issues, repair=True).arguments
        call.at_fault = "yard"

    def _find(self, call: Call) -> Tool:
        parent = call.parent
        if self._closed or (parent is not None and (parent.finished or call.depth > self._limits.depth)):
            self._check_place(call)
        tool = None if call.profile.toolsets else self._registry.named(call.name)  # a profile without rules has every tool
        if tool is None:
            tool = self._registry.find(call.name, call.profile)
        call.spec, call.handler = tool.spec, tool.handler
        return tool

    def _check_place(self, call: Call) -> None:
        if not self._closed.isdisjoint((0, call.channel.front)):
            raise ToolError("overloaded", "The yard is closing.")
        if call.parent is not None and call.parent.finished:
            raise ToolError("state_error", "The call that this one belongs to is over.")
        if call.depth > self._limits.depth:
            message = f"Calls may be nested {self._limits.depth} deep."
            raise ToolError("limit_exceeded", message, may_have_run=False, limit="depth", maximum=self._limits.depth)

    def _check(self, call: Call, tool: Tool, text: bytes) -> None:
        try:
            call.arguments = tool.check(text)
        except InvalidArgumentsError as error:
            elsewhere, call.at_fault = self._registry.look_up(tool, call.profile), "tool"
            call.arguments, call.coerced = tool.mend(text, error.issues, repair=self._limits.repair, elsewhere=elsewhere)
            call.at_fault = "yard"
        except BaseException:
            call.at_fault = "tool"
            raise

    def _admit(self, call: Call) -> None:
        """Warn of names that are old, guard what would be evaluated and find the session."""
        spec = call.spec
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

    def _failed(self, call: Call, error: BaseException) -> Outcome:
        """Return the failure as an answer; being cancelled is recorded and goes on."""
        if isinstance(error, asyncio.CancelledError):
            self._end(call, failure_from(ToolError("cancelled", "The caller went away."), call))
            raise error
        return failure_from(error if isinstance(error, ToolError) else defect_from(error, call), call)

    def _end(self, call: Call, answer: Outcome) -> Envelope:
        if call.session is not None:
            self.sessions.leave(call.session, None if answer.error is None else answer.error.code)
        return finish(call, answer, self.sinks, slow=self._limits.slow)
