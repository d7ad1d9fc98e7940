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
from contextvars import Context
from functools import partial
from itertools import count
from typing import Any, Literal

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
    ambient,
    stated_options,
)
from callyard.dispatch.execution import Execution, RunningHandler
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
from callyard.dispatch.questions import Questions
from callyard.dispatch.registry import Registry
from callyard.dispatch.replies import Replies
from callyard.dispatch.resource import complete_argument, contents_of, messages_of
from callyard.dispatch.results import Results, may_contain_refs, too_large
from callyard.dispatch.run import Run, RunStore, is_first, run_of
from callyard.dispatch.sessions import Session, SessionElsewhereError, Sessions
from callyard.dispatch.tool import InvalidArgumentsError, Tool, decode_arguments, encode_arguments
from callyard.dispatch.tracing import Tracing
from callyard.eval_rules.guard import guard
from callyard.model.envelope import Encoded, Envelope, encode
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.profile import Profile
from callyard.model.spec import UNKNOWN_TOOL, unknown_spec
from callyard.state.store import StoreUnavailableError

__all__ = ["Dispatcher"]

_log = logging.getLogger(__name__)
Forward = Callable[[Run, str, str], Awaitable[Envelope]]
"""Takes a run, the id of another process, and that of a session that lives there."""


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
    ) -> None:
        self._execution = Execution(limits, middleware=middleware, policies=policies, limiters=limiters)
        self.loop = self._execution.loop
        self.threads = self._execution.threads
        self.admission = self._execution.admission
        self.admission.check_enabled = registry.check_enabled
        self.timeouts = self._execution.timeouts
        self.questions = Questions()
        self.sessions = sessions
        self.results = results
        self.forward: Forward | None = None
        """Runs calls in the process that has their session, where several processes serve one yard."""
        self.jobs: RunStore | None = None
        """Stores runs, where a yard has jobs."""
        self.tracing: Tracing | None = None
        """Makes a span of each call, where a yard is traced."""
        self.state: Any = None
        self.profile = profile
        self._registry = registry
        self._limits = limits
        self._resolved_bytes = max(limits.argument_bytes, limits.stored_bytes)
        self._ids = count(int.from_bytes(os.urandom(5)))
        self._closed: set[int] = set()  # server contexts by number; 0 is all of them
        self._on_started: list[Callable[[Call], None]] = []
        self._on_finished: list[Finished] = []

    def observe(self, observer: object) -> Callable[[], None]:
        """Let an `Observer` see every call begin and end; return what stops that."""
        lists: list[tuple[list[Any], str]] = [(self._on_started, "started"), (self._on_finished, "finished")]
        found = [(methods, getattr(observer, name, None)) for methods, name in lists]
        added = [(methods, method) for methods, method in found if method is not None and method not in methods]
        for methods, method in added:
            methods.append(method)

        def stop() -> None:
            for methods, method in added:
                if method in methods:
                    methods.remove(method)

        return stop

    async def dispatch(
        self,
        request: CallRequest,
        *,
        channel: Channel = LIBRARY,
        parent: Run | None = None,
        options: InvokeOptions = DEFAULT_OPTIONS,
        replies: Replies | None = None,
    ) -> Envelope:
        """Answer one request of any kind, from outside or, with its parent, from inside another.

        The data of a resource or prompt are its contents or messages in the words of MCP. `replies` are those of the
        task that this runs in, if it may outlive its request.
        """
        run = self._begin(request, channel, parent, options)
        run.replies = replies
        if request.kind != "tool":
            return await self._answer_query(run)
        try:
            tool = self._find(run)
        except BaseException as error:  # noqa: BLE001 - the caller gets an answer, whatever happens
            return await self._conclude(run, self._failed(run, error))
        is_job = self.jobs is not None and self.jobs.becomes_job(run)
        may_wait = run.outlives_as and self.admission.gate is not None
        if is_job or (replies is None and may_wait):
            return await self._answer_apart(run, tool, is_job=is_job)
        return await self._answer(run, tool)

    def start(self, request: CallRequest, channel: Channel) -> Replies:
        """Run a request of any kind in a task of its own, which waits for answers while no request is open."""
        replies = Replies(channel)
        replies.start(self.dispatch(request, channel=replies.channel, replies=replies))
        return replies

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
        run = self._begin(CallRequest(name, None, caller, kind), LIBRARY)
        self._check_nesting(run)
        find = self._registry.find_prompt if kind == "prompt" else self._registry.find_template
        target, seconds = find(name, run.call.profile), self._limits.timeout
        run.take(target.query)
        if self.admission.gate is not None:
            self.admission.gate.check_completion(run.call)
        return await complete_argument(run, target, argument, value, context=settled, seconds=seconds)

    @property
    def in_flight(self) -> dict[str, Call]:
        """Return the calls that run, by their ids."""
        return {run.id: run.call for run in self._execution.runs.values()}

    def handlers(self, least_s: float) -> list[RunningHandler]:
        """Return the handlers that have run for so long, apart from those that wait for a person or a client."""
        return self._execution.handlers(least_s)

    def watch_expired(self, watcher: Callable[[Run], None]) -> None:
        """Hand each call whose deadline passed to one watcher, before it is stopped."""
        self._execution.deadlines.on_expired = watcher

    def cancel(self, call_id: str) -> bool:
        """Cancel a call, which is then answered with `cancelled`; return whether it was in flight."""
        run = self._execution.runs.get(call_id)
        if run is not None:
            run.stop("cancelled")
        return run is not None

    def may_be_asker(self) -> bool:
        """Return whether a call that asks before `destroy` is in flight: an unknown thread may be part of it.

        Thread-safe.
        """
        return any(run.asks_before_destroy for run in list(self._execution.runs.values()))

    def serves(self, server: int) -> bool:
        """Return whether a client of a server context waits for a call."""
        return self._execution.serves(server)

    async def close(self, server: int = 0) -> None:
        """Refuse new calls, of one server context or all, cancel the running ones and wait for their answers."""
        self._closed.add(server)
        await self._execution.stop(server)
        await self.admission.serial_locks.close()

    def refuse(self, name: str, error: ToolError, *, caller: Caller = ANYONE, channel: Channel = LIBRARY) -> Envelope:
        """Answer a call that cannot begin with a failure, and record it."""
        run = self._begin(CallRequest(name, None, caller), channel)
        return self._finish(run, failure_from(error, run))

    def interim(self, run: Run, data: dict[str, Any]) -> Envelope:
        """Return an answer of a run that goes on; it is recorded when it ends."""
        return finish(run, Outcome(data, held=True), (), slow=self._limits.slow)

    def _begin(
        self,
        request: CallRequest,
        channel: Channel,
        parent: Run | None = None,
        options: InvokeOptions = DEFAULT_OPTIONS,
    ) -> Run:
        if parent is None and options is DEFAULT_OPTIONS and channel.meta:
            options = stated_options(channel.meta)
        run_id = f"c_{next(self._ids):x}"
        spec = UNKNOWN_TOOL if request.kind == "tool" else unknown_spec(request.kind, request.name)
        call = Call(run_id, request, request.caller.profile or self.profile, channel, spec)
        run = Run(run_id, call, self, parent=parent, options=options, started=time.perf_counter(), job=options.job)
        if parent is not None:
            run.count_inner = parent.count_inner
        if options.job is not None:
            run.inside = options.job.inside
        run.askers = self._askers(channel, parent)
        run.asks_before_destroy = self in run.askers
        if self.tracing is not None:
            run.span = self.tracing.begin(run)
        for started in self._on_started:
            try:
                started(call)
            except BaseException:  # noqa: BLE001 - an observer may raise anything, and must not fail the call
                log_exception(_log, "observer_failed id=%s", run_id)
        return run

    def _askers(self, channel: Channel, parent: Run | None) -> "tuple[Dispatcher, ...]":
        """Return who asks before `destroy` in a call: as for the call around it, and this yard if its channel says so.

        The call around it is the parent, or the one whose code makes it: `yard.call` in a handler, in a task that the
        handler started, or in its thread. A channel is looked at where a call comes in, because a mounted yard, which
        gets the same one, would ask a second time.
        """
        if parent is not None:
            return parent.askers
        around = ambient.get(None)
        askers = () if around is None else run_of(around).askers
        return (*askers, self) if channel.asks_before_destroy and self not in askers else askers

    def _find(self, run: Run) -> Tool:
        """Return the tool of a call, if its caller's profile has it and the call may begin."""
        self._check_nesting(run)
        name, profile = run.call.request.name, run.call.profile
        tool = None if profile.toolsets else self._registry.get(name)  # a profile without rules has every tool
        if tool is None:
            tool = self._registry.find(name, profile)
        run.take(tool)
        # Only where nothing ran before, and no job runs it, may a run go on without its request.
        if tool.outlives_as and self.jobs is not None and not (run.job or run.call.channel.job_id) and is_first(run):
            run.outlives_as = tool.outlives_as
        return tool

    def _check_nesting(self, run: Run) -> None:
        if self._closed and not self._closed.isdisjoint((0, run.call.channel.server)):
            raise ToolError("overloaded", "The yard is closing.")
        if run.parent is None:
            return
        if run.parent.finished:
            raise ToolError("state_error", "The call that this one belongs to is over.")
        if run.depth > self._limits.depth:
            message = f"Calls may be nested {self._limits.depth} deep."
            raise ToolError("limit_exceeded", message, may_have_run=False, limit="depth", maximum=self._limits.depth)
        if run.parent.count_inner is not None and not run.parent.is_proxy:
            run.parent.count_inner()

    async def _answer_apart(self, run: Run, tool: Tool, *, is_job: bool) -> Envelope:
        """Answer a call in a task of its own; the first reply may come while it goes on."""
        replies = run.replies = Replies(run.call.channel)
        run.call.channel = replies.channel
        # A job sees nothing of the request that started it.
        replies.start(self._answer(run, tool), Context() if is_job else None)
        reply = await replies.next()
        assert isinstance(reply, Envelope)  # noqa: S101 - its channel asks the client directly
        return reply

    async def _answer(self, run: Run, tool: Tool) -> Envelope:
        try:
            if run.options.checked_by is tool:
                self._take_checked(run)
            else:
                limit = self._resolved_bytes if run.options.refs_resolved else self._limits.argument_bytes
                run.text = encode_arguments(run.call.request.arguments, limit)
                if may_contain_refs(run.text) and not run.options.refs_resolved and not tool.wraps:
                    await self._resolve(run, tool)
                self._check(run, tool)
            self._prepare(run)
            if tool.spec.session != "none":
                await self._find_session(run)
            outcome = to_outcome(run, tool, await self._execution.run(run, tool))
        except BaseException as error:  # noqa: BLE001 - the caller gets an answer, whatever a handler raises
            outcome = self._failed(run, error)
        return await self._conclude(run, outcome)

    async def _answer_query(self, run: Run) -> Envelope:
        """Answer a call of a resource or prompt: it has no session and no eval, and never becomes a handle."""
        try:
            self._check_nesting(run)
            query = self._find_query(run.call)
            run.take(query.tool)
            self._check_texts(run, query.tool, encode_arguments(query.arguments, self._limits.argument_bytes))
            outcome = to_read_outcome(run, query, await self._execution.run(run, query.tool))
        except BaseException as error:  # noqa: BLE001 - as in '_answer'
            outcome = self._failed(run, error)
        return self._finish(run, outcome)

    def _find_query(self, call: Call) -> Query:
        name, profile = call.request.name, call.profile
        if call.request.kind == "prompt":
            prompt = self._registry.find_prompt(name, profile)
            return Query(prompt.query, call.request.arguments, partial(messages_of, prompt.spec))
        found = self._registry.find_resource(str(name), profile)
        return Query(found.resource.query, found.variables, partial(contents_of, found.resource.spec, str(name)))

    def _take_checked(self, run: Run) -> None:
        """Take arguments that were checked before, and perhaps judged."""
        call, options = run.call, run.options
        call.arguments, call.coerced, run.text = options.checked or {}, options.coerced, options.text
        if options.bound is not None:
            run.bound, run.text = options.bound, options.bound.text
            if options.bound.generated:  # the check before made others
                call.arguments = options.bound.arguments()

    async def _resolve(self, run: Run, tool: Tool) -> None:
        """Put stored results in place of the references to them among the arguments."""
        resolver = self.results.resolver(run.call.caller.owner, run.call.profile)
        run.text = encode(await resolver.resolve(decode_arguments(run.text), tool.spec.input_schema))

    def _check(self, run: Run, tool: Tool) -> None:
        """Check the arguments, and repair them if that is clear."""
        call = run.call
        run.at_fault = "tool"
        try:
            call.arguments = tool.check(run.text)
        except InvalidArgumentsError as error:
            suggestions = self._registry.suggest_describe(tool.spec.name, call.profile)
            repaired = tool.repair(run.text, error.issues, enabled=self._limits.repair, suggestions=suggestions)
            call.arguments, call.coerced, run.text = repaired.arguments, repaired.coerced, repaired.text
        run.at_fault = "yard"

    def _check_texts(self, run: Run, query: Tool, text: bytes) -> None:
        """Check arguments, which are strings on every wire: converting them is no repair."""
        run.at_fault = "tool"
        try:
            run.text, run.call.arguments = text, query.check(text)
        except InvalidArgumentsError as error:
            repaired = query.repair(text, error.issues, enabled=True)
            run.text, run.call.arguments = repaired.text, repaired.arguments
        run.at_fault = "yard"

    def _prepare(self, run: Run) -> None:
        """Warn of old names, and guard an eval payload."""
        call, spec = run.call, run.call.spec
        if call.request.name != spec.name:
            call.warnings += (f"'{call.request.name}' is now called '{spec.name}'.",)
        if spec.deprecated is not None:
            call.warnings += (f"'{spec.name}' is deprecated. {spec.deprecated}",)
        if spec.eval is not None:
            guard(call.arguments.get(spec.eval.argument), spec.eval, spec.name, self._limits)

    async def _find_session(self, run: Run) -> None:
        call = run.call
        named, is_required = call.arguments.get("session_id"), call.spec.session == "required"
        try:
            session = await self.sessions.find(named, call.caller.owner, required=is_required)
        except SessionElsewhereError as error:
            if self.forward is None:
                raise
            run.elsewhere = partial(self.forward, run, error.replica, error.session_id)
            return
        if session is not None:
            call.session = session
            self.sessions.enter(session)

    def _failed(self, run: Run, error: BaseException) -> Outcome:
        """Return the failure as an outcome; a cancellation of the dispatcher itself is recorded and raised again."""
        if isinstance(error, asyncio.CancelledError):
            self._finish(run, failure_from(ToolError("cancelled", "The caller went away."), run))
            raise error
        return failure_from(error if isinstance(error, ToolError) else defect_from(error, run), run)

    async def _conclude(self, run: Run, outcome: Outcome) -> Envelope:
        """Return the answer of a call: large data become a handle, and the session is stored."""
        result = outcome
        encoded = outcome.encoded
        if run.parent is None and encoded is not None and encoded.characters > self._room(run):
            outcome = await self._shorten(run, outcome, encoded)
        if run.call.session is not None:
            outcome = await self._save_session(run, run.call.session, outcome)
        return self._finish(run, outcome, result)

    def _room(self, run: Run) -> int:
        """Return how many characters the data of an answer may have."""
        most = run.call.channel.result_characters
        return self._limits.result_characters if most is None else room_for_data(run, most)

    async def _shorten(self, run: Run, outcome: Outcome, encoded: Encoded) -> Outcome:
        """Return the outcome with a handle in place of data that are too long; a failure keeps its reason."""
        try:
            owner, profile = run.call.caller.owner, run.call.profile
            room = None if run.call.channel.result_characters is None else self._room(run)
            return outcome.cut(await self.results.store(encoded, owner, profile, room=room))
        except BaseException as error:  # noqa: BLE001 - a store may raise anything
            if outcome.error is not None and isinstance(error, ToolError | StoreUnavailableError):
                return outcome.cut(too_large(encoded))
            return self._failed(run, error)

    async def _save_session(self, run: Run, session: Session, outcome: Outcome) -> Outcome:
        """Store the data of a call's session; a failure of that counts unless the call failed already."""
        try:
            await self.sessions.save(session)
        except BaseException as error:  # noqa: BLE001 - a store may raise anything
            if outcome.error is None or isinstance(error, asyncio.CancelledError):
                return self._failed(run, error)
        return outcome

    def _finish(self, run: Run, outcome: Outcome, result: Outcome | None = None) -> Envelope:
        """Return the stamped answer after the observers have seen it; `result` is the outcome before it was cut."""
        call = run.call
        if call.session is not None:
            self.sessions.leave(call.session, None if outcome.error is None else outcome.error.code)
        observers = () if run.is_recorded else self._on_finished
        answer = finish(run, outcome, observers, slow=self._limits.slow, result=result)
        if run.span is not None:
            run.span.end(run, answer)
        run.finished = True
        del run.call  # a run refers to its call, and the call to its run
        return answer
