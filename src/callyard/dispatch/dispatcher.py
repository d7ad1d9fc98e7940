"""The one funnel: every call, from every way in, passes `Dispatcher.dispatch`.

Reading a resource (`read`) and getting a prompt (`prompt`) take the same steps. The dispatcher promises three things:

1. it never raises, unless it is itself cancelled: the answer is always an `Envelope`;
2. nothing runs that the caller's profile and the policies do not allow;
3. observers see every call end exactly once.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Any, Literal, TypeVar

from callyard._internal.logfmt import log_exception
from callyard.dispatch.call import (
    ANYONE,
    DEFAULT_OPTIONS,
    LIBRARY,
    Call,
    Caller,
    CallRequest,
    Channel,
    InvokeOptions,
    Limiter,
    Middleware,
    Policy,
    stated_options,
)
from callyard.dispatch.eval_guard import guard
from callyard.dispatch.execution import Execution
from callyard.dispatch.outcome import (
    Finished,
    Outcome,
    Query,
    defect_from,
    failure_from,
    finish,
    room_for_data,
    to_outcome,
    to_read_outcome,
)
from callyard.dispatch.progress import Progress
from callyard.dispatch.registry import Registry
from callyard.dispatch.resource import complete_argument, contents_of, messages_of
from callyard.dispatch.results import BACKSLASH, DOLLAR, Results, may_contain_refs, too_large
from callyard.dispatch.run import Run
from callyard.dispatch.sessions import Sessions
from callyard.dispatch.tool import InvalidArgumentsError, Tool, decode_arguments, encode_arguments
from callyard.model.envelope import Encoded, Envelope, encode
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.profile import Profile
from callyard.model.schema import Issue
from callyard.model.spec import unknown_spec
from callyard.state.store import StoreUnavailableError

__all__ = ["Dispatcher"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Dispatcher:
    """Turns requests into envelopes, for one yard."""

    def __init__(
        self,
        registry: Registry,
        *,
        profile: Profile,
        limits: Limits,
        sessions: Sessions,
        results: Results,
        middleware: Sequence[Middleware] = (),
        policies: Sequence[Policy] = (),
        limiters: Sequence[Limiter] = (),
        client_timeouts: Mapping[str, float],
    ) -> None:
        self._execution = Execution(limits, middleware=middleware, policies=policies, limiters=limiters, client_timeouts=client_timeouts)
        self.loop = self._execution.loop
        self.threads = self._execution.threads
        self.admission = self._execution.admission
        self.in_flight = self._execution.calls
        self.sessions = sessions
        self.state: Any = None
        self._on_started: list[Callable[[Call], None]] = []
        self._on_finished: list[Finished] = []
        self._on_undeclared: list[Finished] = []
        """The same for tools without an output schema, with the observers that see only those."""
        self._closed: set[int] = set()  # server contexts by number; 0 is all of them
        self._registry = registry
        self.profile = profile
        self._limits = limits
        self._resolved_bytes = max(limits.argument_bytes, limits.stored_bytes)
        self.results = results
        self._ids = count(int.from_bytes(os.urandom(5)))

    def observe(self, observer: object) -> Callable[[], None]:
        """Let an `Observer` see every call begin and end; return what stops that."""
        added: list[tuple[list[Any], Any]] = []
        lists: list[tuple[list[Any], str]] = [(self._on_started, "started"), (self._on_undeclared, "finished")]
        if not getattr(observer, "only_undeclared", False):
            lists.append((self._on_finished, "finished"))
        for methods, name in lists:
            method = getattr(observer, name, None)
            if method is not None and method not in methods:
                methods.append(method)
                added.append((methods, method))

        def stop() -> None:
            for methods, method in added:
                if method in methods:
                    methods.remove(method)

        return stop

    async def dispatch(  # noqa: C901, PLR0912 - written out, because every function call less is a hundredth of a call
        self, request: CallRequest, *, channel: Channel = LIBRARY, parent: Call | None = None, options: InvokeOptions = DEFAULT_OPTIONS
    ) -> Envelope:
        """Answer one call, from outside or, with its parent, from inside another."""
        # not shared with '_begin', because another function call would be felt by every call
        profile = request.caller.profile or self.profile
        call = Run(f"c_{next(self._ids):x}", request, profile, channel, self)
        call.started = time.perf_counter()
        if parent is not None or channel.meta or options is not DEFAULT_OPTIONS:
            options = stated_options(channel.meta) if parent is None and options is DEFAULT_OPTIONS else options
            call.parent, call.options = parent, options
        if self._on_started:
            self._notify_started(call)
        try:
            # The usual tool is found here: a function call less. Functions in slots are read first and called then, here and
            # in 'execution' and 'outcome', because Python 3.11 calls 'a.b(…)' slowly where 'b' is no method: 1,300 instructions.
            get = self._registry.get
            tool = None if self._closed or parent is not None or profile.toolsets else get(request.name)
            if tool is None:
                tool = self._find(call)
            call.spec, call.handler = tool.spec, tool.handler
            if options.checked_by is tool:
                call.arguments, call.coerced = options.checked or {}, options.coerced
            else:
                text = encode_arguments(request.arguments, self._resolved_bytes if options.refs_resolved else self._limits.argument_bytes)
                if (DOLLAR in text or BACKSLASH in text) and not options.refs_resolved and not tool.wraps and may_contain_refs(text):
                    resolver = self.results.resolver(request.caller.owner, profile)
                    text = encode(await resolver.resolve(decode_arguments(text), tool.spec.input_schema))
                call.text = text
                try:
                    check = tool.check
                    call.arguments = check(text)
                except InvalidArgumentsError as error:
                    self._repair(call, tool, error.issues)
                except BaseException:
                    call.at_fault = "tool"
                    raise
            if not tool.is_simple or request.name != tool.spec.name:
                await self._prepare(call)
            result = outcome = to_outcome(call, tool, await self._execution.run(call, tool))
        except BaseException as error:  # noqa: BLE001 - the caller gets an answer, whatever a handler raises
            result = outcome = self._failed(call, error)
        if parent is None and (encoded := outcome.encoded) is not None:
            most = channel.result_characters
            if encoded.characters > (self._limits.result_characters if most is None else room_for_data(call, most)):
                outcome = await self._shorten(call, outcome, encoded)
        if call.session is None:
            observers = self._on_undeclared if call.spec.output_schema is None else self._on_finished
            return finish(call, outcome, result, observers, slow=self._limits.slow)
        return self._finish(call, await self._save_session(call, outcome), result)

    async def read(self, uri: str, *, caller: Caller = ANYONE, channel: Channel = LIBRARY, parent: Call | None = None) -> Envelope:
        """Read a resource; the data of the answer are its contents in the words of MCP."""
        call = self._begin(CallRequest(str(uri), None, caller, "resource"), channel, parent)

        def find() -> Query:
            found = self._registry.find_resource(call.request.name, call.profile)
            return Query(found.resource.query, found.variables, partial(contents_of, found.resource.spec, call.request.name))

        return await self._answer(call, find)

    async def prompt(
        self, name: str, arguments: object = None, *, caller: Caller = ANYONE, channel: Channel = LIBRARY, parent: Call | None = None
    ) -> Envelope:
        """Get a prompt; the data of the answer are its messages in the words of MCP."""
        call = self._begin(CallRequest(name, arguments, caller, "prompt"), channel, parent)

        def find() -> Query:
            prompt = self._registry.find_prompt(name, call.profile)
            return Query(prompt.query, arguments, partial(messages_of, prompt.spec))

        return await self._answer(call, find)

    def run(self, request: CallRequest, channel: Channel) -> Awaitable[Envelope]:
        """Answer a request of any kind that came from outside."""
        if request.kind == "resource":
            return self.read(request.name, caller=request.caller, channel=channel)
        if request.kind == "prompt":
            return self.prompt(request.name, request.arguments, caller=request.caller, channel=channel)
        return self.dispatch(request, channel=channel)

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
        """Return completions for the value of a template variable or a prompt argument.

        Raises:
            ToolError: There is no such resource, prompt or argument, or its completion failed.
        """
        call = self._begin(CallRequest(name, None, caller, kind), LIBRARY)
        self._check_nesting(call)
        find = self._registry.find_prompt if kind == "prompt" else self._registry.find_template
        return await complete_argument(call, find(name, call.profile), argument, value, context=settled, seconds=self._limits.timeout)

    def send_progress(self, call: Any, progress: Progress, *, own: bool) -> None:
        """Send progress of a call to its client, throttled."""
        call.add_progress(progress, own=own)

    def in_thread(self, call: Call, function: Callable[[], object]) -> Awaitable[object]:
        """Run a blocking function in a worker thread."""
        return self.threads.run(call, function)

    def extra_thread(self) -> AbstractContextManager[None]:
        """Allow one more worker thread while this one waits."""
        return self.threads.extra_thread()

    def wait_outside(self, call: Any, answer: Awaitable[T]) -> Awaitable[T]:
        """Wait for a person or client: meanwhile deadlines stand still and limiters let others pass."""
        return self.admission.wait_outside(call, answer)

    def watch_pauses(self, call: Any, pause: Callable[[], Callable[[], None]]) -> AbstractContextManager[None]:
        """Call `pause` whenever the clock of a call stops, and what it returns when the clock goes on."""
        return self.admission.watch_pauses(call, pause)

    def cancel(self, call_id: str) -> bool:
        """Cancel a call, which is then answered with `cancelled`; return whether it was in flight."""
        call = self.in_flight.get(call_id)
        if call is not None:
            call.stop("cancelled")
        return call is not None

    async def close(self, server: int = 0) -> None:
        """Refuse new calls, of one server context or all, cancel the running ones and wait for their answers."""
        self._closed.add(server)
        await self._execution.stop(server)

    def refuse(self, name: str, error: ToolError, *, caller: Caller = ANYONE, channel: Channel = LIBRARY) -> Envelope:
        """Answer a call that cannot begin with a failure, and record it."""
        call = self._begin(CallRequest(name, None, caller), channel)
        outcome = failure_from(error, call)
        return self._finish(call, outcome, outcome)

    async def _shorten(self, call: Run, outcome: Outcome, encoded: Encoded) -> Outcome:
        """Return the outcome with a handle in place of data that are too long; the reason of a failure is always kept."""
        most = call.channel.result_characters
        room = None if most is None else room_for_data(call, most)
        try:
            return outcome.cut(await self.results.store(encoded, call.request.caller.owner, call.profile, room=room))
        except BaseException as error:  # noqa: BLE001 - a store may raise anything
            if outcome.error is not None and isinstance(error, ToolError | StoreUnavailableError):
                return outcome.cut(too_large(encoded))
            return self._failed(call, error)

    async def _save_session(self, call: Run, outcome: Outcome) -> Outcome:
        """Store the data of a call's session, and return a failure if that fails; a call that failed keeps its own."""
        try:
            if call.session is not None and self.sessions.is_stored(call.session):
                await self.sessions.save(call.session)
        except BaseException as error:  # noqa: BLE001 - a store may raise anything
            return self._failed(call, error) if outcome.error is None or isinstance(error, asyncio.CancelledError) else outcome
        return outcome

    async def _answer(self, call: Run, find: "Callable[[], Query]") -> Envelope:
        """Answer a call of a resource or prompt: it has no session and no eval, and never becomes a handle."""
        try:
            self._check_nesting(call)
            query = find()
            call.spec, call.handler = query.tool.spec, query.tool.handler
            self._check_texts(call, query.tool, encode_arguments(query.arguments, self._limits.argument_bytes))
            outcome = to_read_outcome(call, query, await self._execution.run(call, query.tool))
        except BaseException as error:  # noqa: BLE001 - as in 'dispatch'
            outcome = self._failed(call, error)
        return self._finish(call, outcome, outcome)

    def _begin(self, request: CallRequest, channel: Channel, parent: Call | None = None) -> Run:
        call = Run(f"c_{next(self._ids):x}", request, request.caller.profile or self.profile, channel, self)
        call.started, call.parent, call.spec = time.perf_counter(), parent, unknown_spec(request.kind, request.name)
        if self._on_started:
            self._notify_started(call)
        return call

    def _check_texts(self, call: Run, query: Tool, text: bytes) -> None:
        """Check arguments, which are strings on every wire: converting them is no repair."""
        call.at_fault = "tool"
        try:
            call.arguments = query.check(text)
        except InvalidArgumentsError as error:
            call.arguments = query.repair(text, error.issues, enabled=True).arguments
        call.at_fault = "yard"

    def _find(self, call: Run) -> Tool:
        parent = call.parent
        if self._closed or (parent is not None and (parent.finished or call.depth > self._limits.depth)):
            self._check_nesting(call)
        tool = None if call.profile.toolsets else self._registry.get(call.request.name)  # a profile without rules has every tool
        return self._registry.find(call.request.name, call.profile) if tool is None else tool

    def _check_nesting(self, call: Run) -> None:
        if not self._closed.isdisjoint((0, call.channel.server)):
            raise ToolError("overloaded", "The yard is closing.")
        if call.parent is not None and call.parent.finished:
            raise ToolError("state_error", "The call that this one belongs to is over.")
        if call.depth > self._limits.depth:
            message = f"Calls may be nested {self._limits.depth} deep."
            raise ToolError("limit_exceeded", message, may_have_run=False, limit="depth", maximum=self._limits.depth)

    def _repair(self, call: Run, tool: Tool, issues: list[Issue]) -> None:
        suggestions, call.at_fault = self._registry.suggest_describe(tool.spec.name, call.profile), "tool"
        repaired = tool.repair(call.text, issues, enabled=self._limits.repair, suggestions=suggestions)
        call.arguments, call.coerced = repaired.arguments, repaired.coerced
        call.at_fault = "yard"

    async def _prepare(self, call: Run) -> None:
        """Warn of old names, guard an eval payload and find the session."""
        spec = call.spec
        if call.request.name != spec.name:
            call.warnings += (f"'{call.request.name}' is now called '{spec.name}'.",)
        if spec.deprecated is not None:
            call.warnings += (f"'{spec.name}' is deprecated. {spec.deprecated}",)
        job = call.options.job
        if spec.eval is not None and (job is None or not job.is_attached):  # the call that it runs in place of was checked and logged
            guard(call.arguments.get(spec.eval.argument), spec.eval, spec.name, self._limits)
        if spec.session != "none":
            await self._enter_session(call)

    async def _enter_session(self, call: Run) -> None:
        """Find the session; only one that is not live here, or is in the store, makes this wait."""
        named = call.arguments.get("session_id")
        session = await self.sessions.find(named, call.caller.owner, required=call.spec.session == "required")
        if session is not None:
            call.session = session
            self.sessions.enter(session)

    def _failed(self, call: Run, error: BaseException) -> Outcome:
        """Return the failure as an outcome; a cancellation of the dispatcher itself is recorded and raised again."""
        if isinstance(error, asyncio.CancelledError):
            outcome = failure_from(ToolError("cancelled", "The caller went away."), call)
            self._finish(call, outcome, outcome)
            raise error
        return failure_from(error if isinstance(error, ToolError) else defect_from(error, call), call)

    def _finish(self, call: Run, outcome: Outcome, result: Outcome) -> Envelope:
        if call.session is not None:
            self.sessions.leave(call.session, None if outcome.error is None else outcome.error.code)
        observers = self._on_undeclared if call.spec.output_schema is None else self._on_finished
        return finish(call, outcome, result, observers, slow=self._limits.slow)

    def _notify_started(self, call: Run) -> None:
        for started in self._on_started:
            try:
                started(call)
            except BaseException:  # noqa: BLE001 - an observer may raise anything, and must not fail the call
                log_exception(_log, "observer_failed id=%s", call.id)
