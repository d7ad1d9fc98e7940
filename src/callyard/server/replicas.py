"""Calls between replicas: of a session that lives on another one, and answers to a question that another one asks.

A call runs where its session is, through the whole funnel there, and is recorded there. Its progress, log lines and
questions come back by mail, and then its outcome.
"""

import sys
from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard.dispatch.call import Caller, CallRequest, Channel, InvokeOptions
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.progress import Progress
from callyard.dispatch.questions import Question
from callyard.dispatch.run import Run
from callyard.jobs.job import JobResult
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import Blame, CodeName, ToolError
from callyard.model.spec import Kind
from callyard.server.input_required import InputRequest, InputRequired
from callyard.state.replicas import Asked, Replica, ReplicaError
from callyard.state.store import StoreUnavailableError
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.server.context import RequestContext, ServerContext

__all__ = ["ReplicaCalls"]

_CALL: Final = "call"
_QUESTION: Final = "question"
_RETRY: Final = "retry"
_NO_LIMIT: Final = sys.maxsize
"""The replica that the client asked makes a handle of a long answer."""


class _Caller(msgspec.Struct, frozen=True, omit_defaults=True):
    """A caller, with the name of its profile."""

    identity: str
    scope: str
    claims: dict[str, Any]
    profile: str | None
    client: str

    @classmethod
    def of(cls, caller: Caller) -> "_Caller":
        profile = None if caller.profile is None else caller.profile.name
        return cls(caller.identity, caller.scope, caller.claims, profile, caller.client)

    def caller(self, yard: Yard) -> Caller:
        """Return the caller here.

        Raises:
            ToolError: This replica has no such profile, because its configuration is another one.
        """
        try:
            profile = None if self.profile is None else yard.profile_of(self.profile)
        except KeyError:
            message = "The server that has the session has another configuration."
            raise ToolError("permission_denied", message, may_have_run=False) from None
        claims, client = self.claims, self.client
        return Caller(identity=self.identity, scope=self.scope, claims=claims, profile=profile, client=client)


class _Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call for a session that is elsewhere."""

    token: str
    """Names the run that waits for it."""
    name: str
    arguments: msgspec.Raw
    caller: _Caller
    channel: str
    connection_id: str = ""
    capabilities: tuple[str, ...] = ()
    may_ask: bool = False
    stateless: bool = False
    headers: Mapping[str, str] = {}
    meta: Mapping[str, Any] = {}
    trace: Mapping[str, str] = {}
    trace_id: str | None = None
    job_id: str = ""
    asks_before_destroy: bool = False
    seconds: float = 0.0
    background: bool = False


class _Question(msgspec.Struct, frozen=True):
    """What a call that runs elsewhere asks the client."""

    token: str
    asks: dict[str, ClientRequest]


class _Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that brings answers to a question of a call that waits elsewhere."""

    name: str
    kind: Kind
    arguments: msgspec.Raw
    caller: _Caller
    state: str
    answers: dict[str, dict[str, Any]]
    meta: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    log_level: int | None = None


class _Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `ToolError`."""

    code: CodeName
    message: str
    details: dict[str, Any]
    hint: str | None = None
    blame: Blame | None = None
    may_have_run: bool | None = None

    @classmethod
    def of(cls, error: ToolError) -> "_Failure":
        details: dict[str, Any] = msgspec.json.decode(encode(error.details))
        return cls(error.code, error.message, details, error.hint, error.blame, may_have_run=error.may_have_run)

    def error(self) -> ToolError:
        found = ToolError(
            self.code, self.message, hint=self.hint, blame=self.blame, may_have_run=self.may_have_run, **self.details
        )
        found.details = self.details
        return found


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What comes back: an outcome, the next questions, the answers of a client, or a failure."""

    result: JobResult | None = None
    held: bool = False
    asks: InputRequest | None = None
    answers: dict[str, Any] | None = None
    failure: _Failure | None = None


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress or a log line of a call."""

    progress: Progress | None = None
    log: tuple[str, str, dict[str, Any]] | None = None


class ReplicaCalls:
    """Sends calls and answers to the replicas that they are for, and serves those that come from others."""

    def __init__(self, server: "ServerContext", replica: Replica, input_required: InputRequired) -> None:
        self._server = server
        self._yard = server.yard
        self._replica = replica
        self._input_required = input_required
        self._runs: dict[str, Run] = {}
        """The runs that wait for another replica."""
        self._numbers = count(1)
        replica.on_request |= {_CALL: self._serve_call, _QUESTION: self._serve_question, _RETRY: self._serve_retry}
        server.yard.dispatcher.forward = self.call
        input_required.replica_id = replica.id
        input_required.retry_elsewhere = self.retry

    async def call(self, run: Run, replica: str, session_id: str) -> Envelope:
        """Run a call on the replica that has its session, and return what it answered.

        Raises:
            ToolError: `not_running` if that replica is dead.
        """
        token = f"{self._replica.id}-{next(self._numbers)}"
        self._runs[token] = run
        run.call.may_have_run = True  # whatever ends it, nobody here knows better
        try:
            content = await self._replica.ask(
                replica, _CALL, _call_of(run, token, session_id), on_note=lambda note: _pass_note(run, note)
            )
        except ReplicaError as error:
            raise _replica_gone(session_id, error) from None
        except StoreUnavailableError as error:
            raise store_unavailable(error, may_have_run=error.may_have_run) from None
        finally:
            del self._runs[token]
        answer = msgspec.json.decode(content, type=_Answer)
        if answer.failure is not None:
            raise answer.failure.error()
        assert answer.result is not None  # noqa: S101 - a call has an outcome
        run.is_recorded = True
        envelope = answer.result.to_envelope()
        envelope.held = answer.held
        return envelope

    async def retry(
        self, replica: str, request: CallRequest, context: "RequestContext", state: str
    ) -> Envelope | InputRequest:
        """Bring answers to the replica whose call waits for them; return its answer or its next questions.

        Raises:
            ReplicaError: It is dead.
            ToolError: It refused them, or the store cannot be used.
        """
        arguments = request.arguments
        retry = _Retry(
            name=request.name,
            kind=request.kind,
            arguments=arguments if isinstance(arguments, msgspec.Raw) else msgspec.Raw(encode(arguments)),
            caller=_Caller.of(request.caller),
            state=state,
            answers=context.input_responses,
            meta=context.meta,
            capabilities=context.capabilities,
            log_level=context.log_level,
        )

        def notify(note: bytes) -> None:
            if context.notify is not None:
                context.notify(note)

        try:
            content = await self._replica.ask(replica, _RETRY, retry, on_note=notify)
        except StoreUnavailableError as error:
            raise store_unavailable(error, may_have_run=error.may_have_run) from None
        answer = msgspec.json.decode(content, type=_Answer)
        if answer.failure is not None:
            raise answer.failure.error()
        if answer.asks is not None:
            return answer.asks
        assert answer.result is not None  # noqa: S101 - there is one of the three
        envelope = answer.result.to_envelope()
        envelope.held = answer.held
        return envelope

    async def _serve_call(self, asked: Asked) -> bytes:
        wanted = msgspec.json.decode(asked.content, type=_Call)
        try:
            request = CallRequest(wanted.name, wanted.arguments, wanted.caller.caller(self._yard))
        except ToolError as error:
            return encode(_Answer(failure=_Failure.of(error)))
        options = InvokeOptions(seconds=wanted.seconds, background=wanted.background, refs_resolved=True)
        envelope = await self._yard.dispatcher.dispatch(request, channel=self._channel(wanted, asked), options=options)
        return encode(_Answer(JobResult.of(envelope), held=envelope.held))

    def _channel(self, wanted: _Call, asked: Asked) -> Channel:
        async def ask(asks: Mapping[str, ClientRequest], _: Question) -> Mapping[str, Any]:
            return await self._ask_client(asked.sender, _Question(wanted.token, dict(asks)))

        def log(level: str, text: str, facts: Mapping[str, object]) -> None:
            asked.note(encode(_Note(log=(level, text, dict(facts)))))

        return Channel(
            name=wanted.channel,
            connection_id=wanted.connection_id,
            server=self._server.number,
            progress=lambda progress: asked.note(encode(_Note(progress=progress))),
            log=log,
            ask=ask if wanted.may_ask else None,
            capabilities=frozenset(wanted.capabilities),
            stateless=wanted.stateless,
            headers=wanted.headers,
            meta=wanted.meta,
            trace=wanted.trace,
            trace_id=wanted.trace_id,
            job_id=wanted.job_id,
            asks_before_destroy=wanted.asks_before_destroy,
            result_characters=_NO_LIMIT,
        )

    async def _ask_client(self, replica: str, question: _Question) -> Mapping[str, Any]:
        """Have the replica that the client called ask it."""
        try:
            content = await self._replica.ask(replica, _QUESTION, question)
        except ReplicaError:
            raise ToolError("cancelled", "The server that the client called is gone.", blame="yard") from None
        except StoreUnavailableError as error:
            raise store_unavailable(error, may_have_run=True) from None
        answer = msgspec.json.decode(content, type=_Answer)
        if answer.failure is not None:
            raise answer.failure.error()
        return answer.answers or {}

    async def _serve_question(self, asked: Asked) -> bytes:
        question = msgspec.json.decode(asked.content, type=_Question)
        run = self._runs.get(question.token)
        if run is None:
            gone = ToolError("cancelled", "The call has ended meanwhile.")
            return encode(_Answer(failure=_Failure.of(gone)))
        try:
            return encode(_Answer(answers=dict(await run.ask(question.asks))))
        except ToolError as error:
            return encode(_Answer(failure=_Failure.of(error)))

    async def _serve_retry(self, asked: Asked) -> bytes:
        retry = msgspec.json.decode(asked.content, type=_Retry)
        try:
            request = CallRequest(retry.name, retry.arguments, retry.caller.caller(self._yard), retry.kind)
            context = self._server.retried_request(
                request.caller,
                meta=retry.meta,
                capabilities=retry.capabilities,
                log_level=retry.log_level,
                notify=asked.note,
            )
            context.input_responses = retry.answers
            outcome = await self._input_required.run(request, context, retry.state)
        except ToolError as error:
            return encode(_Answer(failure=_Failure.of(error)))
        if isinstance(outcome, InputRequest):
            return encode(_Answer(asks=outcome))
        return encode(_Answer(JobResult.of(outcome), held=outcome.held))


def _call_of(run: Run, token: str, session_id: str) -> _Call:
    call, channel = run.call, run.call.channel
    arguments: dict[str, Any] = {**msgspec.json.decode(run.text), "session_id": session_id}
    return _Call(
        token=token,
        name=call.spec.name,
        arguments=msgspec.Raw(encode(arguments)),
        caller=_Caller.of(call.caller),
        channel=channel.name,
        connection_id=channel.connection_id,
        capabilities=tuple(channel.capabilities),
        may_ask=channel.ask is not None,
        stateless=channel.stateless,
        headers=channel.headers,
        meta=channel.meta,
        trace=channel.trace,
        trace_id=channel.trace_id,
        job_id=channel.job_id,
        asks_before_destroy=run.asks_before_destroy,
        seconds=run.options.seconds,
        background=run.options.background,
    )


def _pass_note(run: Run, content: bytes) -> None:
    """Pass progress or a log line on to the client of a call."""
    note = msgspec.json.decode(content, type=_Note)
    if run.finished:
        return
    channel = run.call.channel
    if note.progress is not None and channel.progress is not None:
        channel.progress(note.progress)
    elif note.log is not None and channel.log is not None:
        channel.log(*note.log)


def _replica_gone(session_id: str, error: ReplicaError) -> ToolError:
    message = "The server that had the session is gone." if error.is_gone else "The server that has the session failed."
    return ToolError(
        "not_running",
        message,
        hint="Start a new session.",
        reason="replica_gone" if error.is_gone else "not_here",
        may_have_run=error.may_have_run,
        session_id=session_id,
    )
