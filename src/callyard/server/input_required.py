"""Questions as results: `input_required` of the 2026-07-28 era.

The client sends its request again with the answers and with a state that this server signed. The state names a question
of a run, which waits meanwhile in a task of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard._internal.signed_tokens import SignatureError, Signer
from callyard.dispatch.call import CallRequest
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.questions import Question
from callyard.model.elicitation import ClientRequest, require_support
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError
from callyard.state.replicas import ReplicaError
from callyard.state.store import Store, StoreUnavailableError
from callyard.wire.messages import INVALID_PARAMS, Fault

if TYPE_CHECKING:
    from callyard.server.context import RequestContext

__all__ = ["InputRequest", "InputRequired", "check_asks"]

_PURPOSE: Final = "state of a request"


class InputRequest(msgspec.Struct, frozen=True):
    """The questions of a call to its client, and the state to send back with the answers."""

    asks: Mapping[str, ClientRequest]
    state: str


RetryElsewhere = Callable[[str, CallRequest, "RequestContext", str], Awaitable[Envelope | InputRequest]]
"""Brings answers to another replica, whose call waits for them; `ReplicaError` if it is dead."""


class _AskingRun:
    """One run whose client is asked by results; its next reply goes to the request that waits at the time."""

    def __init__(self, server: "InputRequired", request: CallRequest, context: "RequestContext") -> None:
        self._server = server
        self._context = context
        self._lock = asyncio.Lock()
        self._answers: asyncio.Future[Mapping[str, Any]] | None = None
        self.question: Question | None = None
        """What it asks, while it waits for answers."""
        self.fingerprint = request.fingerprint()
        """The hash of its request, which a retried request must match."""
        self.replies = server.dispatcher.start(request, context.channel(self._ask))

    async def _ask(self, asks: Mapping[str, ClientRequest], question: Question) -> Mapping[str, Any]:
        """Wait for answers, unless the request brought them already; one set of questions at a time."""
        check_asks(asks, self._context.capabilities)
        async with self._lock:
            responses = self._context.input_responses
            if asks.keys() <= responses.keys():
                return {key: responses.pop(key) for key in asks}
            loop = asyncio.get_running_loop()
            self.question, self._answers = question, loop.create_future()
            question.expire_after(self._server.seconds)
            timer = loop.call_later(self._server.seconds, self.replies.cancel)
            self._server.waiting[question.id] = self
            try:
                self.replies.send(question)
                return await self._answers
            finally:
                timer.cancel()
                self._server.waiting.pop(question.id, None)
                self.question = self._answers = None

    def resume(self, context: "RequestContext") -> None:
        """Continue with the answers of a later request, and by way of its connection."""
        self._context.continue_as(context)
        if self._answers is not None and not self._answers.done() and self.question is not None:
            self._answers.set_result({key: context.input_responses.pop(key) for key in self.question.asks})


class InputRequired:
    """Starts the calls that may ask, and continues those whose state a request brings."""

    def __init__(self, dispatcher: Dispatcher, signer: Signer, *, store: Store, seconds: float) -> None:
        self.dispatcher = dispatcher
        self.seconds = seconds
        """How long a run waits for the answers to its question."""
        self.waiting: dict[str, _AskingRun] = {}
        """The runs that wait for answers, by the id of their question."""
        self.replica_id = ""
        """The replica that states name, where there are several."""
        self.retry_elsewhere: RetryElsewhere | None = None
        self._signer = signer
        self._store = store

    async def run(self, request: CallRequest, context: "RequestContext", state: str | None) -> Envelope | InputRequest:
        """Start a call, or continue the one that the state names; return its answer or its next questions.

        Raises:
            Fault: The state is forged, expired, or of another request.
            ToolError: `state_error` if the call is gone and cannot be started again, `overloaded` if the store cannot
                be used.
        """
        if state is None:
            return await self._next(_AskingRun(self, request, context))
        key, declared, home = self._verify(state, request)
        if self.retry_elsewhere is not None and home not in {"", self.replica_id}:
            try:
                return await self.retry_elsewhere(home, request, context, state)
            except ReplicaError as error:
                if error.may_have_run:
                    raise _call_gone() from None
        asking = self.waiting.get(key)
        if asking is None or asking.question is None:
            if declared and await self._mark_answered(key):
                return await self._next(_AskingRun(self, request, context))
            raise _call_gone()
        if not asking.question.asks.keys() <= context.input_responses.keys():
            return self._input_request(asking, asking.question)
        del self.waiting[key]  # before anything is awaited: a second request at the same moment does not find the run
        if declared and not await self._is_first_answer(key, asking):
            raise _call_gone()
        asking.resume(context)
        return await self._next(asking)

    def cancel_all(self) -> None:
        """Cancel every waiting run."""
        for asking in tuple(self.waiting.values()):
            asking.replies.cancel()

    async def _is_first_answer(self, key: str, asking: _AskingRun) -> bool:
        """Note the answer to declared questions; a run that must not go on, because it started again, is cancelled."""
        first = False
        try:
            first = await self._mark_answered(key)
        finally:
            if not first:
                asking.replies.cancel()
        return first

    async def _mark_answered(self, key: str) -> bool:
        """Note in the store, for as long as a run may wait, that a key was answered; return whether this is the first.

        Raises:
            ToolError: `overloaded` if that cannot be noted, so nobody may start the call.
        """
        try:
            return await self._store.compare_and_set(f"answered/{key}", None, b"", ttl=self.seconds)
        except StoreUnavailableError as error:
            raise store_unavailable(error, may_have_run=False) from None

    async def _next(self, asking: _AskingRun) -> Envelope | InputRequest:
        reply = await asking.replies.next()
        return reply if isinstance(reply, Envelope) else self._input_request(asking, reply)

    def _input_request(self, asking: _AskingRun, question: Question) -> InputRequest:
        expires_at = int(question.expires_at)
        state = [question.id, asking.fingerprint, expires_at, question.declared, self.replica_id]
        return InputRequest(question.asks, self._signer.sign(_PURPOSE, state))

    def _verify(self, state: str, request: CallRequest) -> tuple[str, bool, str]:
        try:
            key, fingerprint, expires_at, declared, *home = self._signer.verify(_PURPOSE, state)
        except SignatureError:
            raise Fault(INVALID_PARAMS, "The 'requestState' was not issued by this server.") from None
        if fingerprint != request.fingerprint():
            raise Fault(INVALID_PARAMS, "The 'requestState' belongs to another request.")
        if expires_at < time.time():
            raise Fault(INVALID_PARAMS, "The 'requestState' has expired.")
        return key, declared, home[0] if home else ""


def _call_gone() -> ToolError:
    return ToolError(
        "state_error",
        "The call that asked is gone: the server was started anew, or it was answered already.",
        hint="Look at the state first: the call may have run.",
        may_have_run=True,
        reason="call_gone",
    )


def check_asks(asks: Mapping[str, ClientRequest], capabilities: Mapping[str, Any]) -> None:
    """Check that the client supports all the requests, and that they can be encoded.

    Raises:
        ToolError: `not_supported` names the missing capabilities; `internal_error` if the params are no JSON.
    """
    require_support(asks, capabilities)
    try:
        encode({key: ask.params for key, ask in asks.items()})
    except TypeError as error:
        message = "The question of the tool cannot be written as JSON."
        raise ToolError("internal_error", message, blame="tool") from error
