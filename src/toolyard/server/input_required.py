"""Calls that wait for input while no request of theirs is open.

In the 2026-07-28 era a question is a result: `input_required`. The client retries its request with the answers. Meanwhile the
handler waits in this process, under a signed state that expires.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolyard._internal.signed_tokens import SignatureError, Signer
from toolyard.dispatch.call import SHARED, Channel
from toolyard.model.elicitation import ClientRequest, unsupported_by_client
from toolyard.model.envelope import Envelope, encode
from toolyard.model.errors import ToolError
from toolyard.wire.messages import INVALID_PARAMS, Fault

if TYPE_CHECKING:
    from toolyard.server.context import RequestContext

__all__ = ["InputRequest", "InputRequired", "Invocation", "StartCall", "check_asks"]

StartCall = Callable[[Channel], Awaitable[Envelope]]
_PURPOSE: Final = "state of a request"
_MAX_CALLS: Final = 1000
_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_CALLS_OF_OWNER: Final = 100
_MAX_BYTES_OF_OWNER: Final = 16 * 1024 * 1024


class InputRequest(msgspec.Struct, frozen=True):
    """The questions of a call to its client, and the state to send back with the answers."""

    asks: Mapping[str, ClientRequest]
    state: str


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """What a request invokes: a method, a name and arguments, and the function that starts the call."""

    method: str
    name: str
    arguments: bytes
    start: StartCall

    def fingerprint(self, owner: str) -> str:
        """Return a hash that a retried request must match."""
        return sha256(b"\0".join([self.method.encode(), self.name.encode(), self.arguments, owner.encode()])).hexdigest()[:24]


def check_asks(asks: Mapping[str, ClientRequest], capabilities: Mapping[str, Any]) -> None:
    """Check that the client supports all the requests, and that they can be encoded.

    Raises:
        ToolError: `not_supported` names the missing capabilities; `internal_error` if the params are no JSON.
    """
    if any(ask.missing_capability(capabilities) is not None for ask in asks.values()):
        raise unsupported_by_client(asks, capabilities)
    try:
        encode({key: ask.params for key, ask in asks.items()})
    except TypeError as error:
        raise ToolError("internal_error", "The question of the tool cannot be written as JSON.", blame="tool") from error


class _DetachedCall:
    """One call in a task of its own, whose outcome or next question goes to the request that is open at the time."""

    __slots__ = (
        "_answers",
        "_argument_bytes",
        "_fingerprint",
        "_invocation",
        "_lock",
        "_outcome",
        "_store",
        "asks",
        "context",
        "size",
        "task",
    )

    def __init__(self, store: "InputRequired", invocation: Invocation, context: "RequestContext") -> None:
        self._invocation: Invocation | None = invocation
        self._fingerprint = ""
        self._argument_bytes = 0
        self.size = 0
        """Bytes of its request that a waiting call keeps in memory."""
        self.context = context
        self.asks: Mapping[str, ClientRequest] = {}
        self._store = store
        self._lock = asyncio.Lock()
        self._answers: asyncio.Future[Mapping[str, Any]] | None = None
        self._outcome: asyncio.Future[Envelope | InputRequest] | None = None
        self.task = asyncio.ensure_future(invocation.start(context.channel(self.ask)))
        self.task.add_done_callback(self._finish)

    def next_outcome(self) -> "asyncio.Future[Envelope | InputRequest]":
        """Return a future for the outcome or the next question."""
        self._outcome = asyncio.get_running_loop().create_future()
        if self.task.done():
            self._finish(self.task)
        return self._outcome

    async def wait(self, outcome: "asyncio.Future[Envelope | InputRequest]") -> Envelope | InputRequest:
        """Wait for the outcome or the next question; cancelling this cancels the call."""
        try:
            return await outcome
        except asyncio.CancelledError:
            self.task.cancel()
            raise

    async def ask(self, asks: Mapping[str, ClientRequest], declared: bool) -> Mapping[str, Any]:  # noqa: FBT001 - the type is `AskClient`
        """Wait for the client's answers, unless the request brought them already; one set of questions at a time."""
        check_asks(asks, self.context.capabilities)
        async with self._lock:
            return await self._ask(asks, declared=declared)

    async def _ask(self, asks: Mapping[str, ClientRequest], *, declared: bool) -> Mapping[str, Any]:
        responses = self.context.input_responses
        if asks.keys() <= responses.keys():
            return {key: responses.pop(key) for key in asks}
        self.asks = asks
        self._shrink()
        self._answers = asyncio.get_running_loop().create_future()
        key = self._store.add(self)
        try:
            self._publish(self.input_request(key, self._store.expires_at(key), declared=declared))
            return await self._answers
        finally:
            self._answers = None
            self._store.remove(key)

    def input_request(self, key: str, expires_at: float, *, declared: bool) -> InputRequest:
        """Return the questions with the signed state."""
        return InputRequest(self.asks, self._store.state(key, self._fingerprint, expires_at, declared=declared))

    def _shrink(self) -> None:
        """Drop the arguments, of which a retry needs only the fingerprint, and compute the size of the rest."""
        invocation, context = self._invocation, self.context
        if invocation is not None:
            self._fingerprint = invocation.fingerprint(context.caller.owner)
            self._invocation = None
            self._argument_bytes = len(invocation.arguments)
        self.size = self._argument_bytes + len(encode([context.meta, context.input_responses]))

    def resume(self, context: "RequestContext") -> None:
        """Continue with the answers of a retried request."""
        self.context.continue_as(context)
        if self._answers is not None and not self._answers.done():
            self._answers.set_result({key: context.input_responses.pop(key) for key in self.asks})

    def _publish(self, outcome: Envelope | InputRequest) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)

    def _finish(self, task: "asyncio.Future[Envelope]") -> None:
        outcome = self._outcome
        if task.cancelled():
            if outcome is not None and not outcome.done():
                outcome.cancel()
        elif (error := task.exception()) is not None:
            if outcome is not None and not outcome.done():
                outcome.set_exception(error)
        else:
            self._publish(task.result())


class _Entry(msgspec.Struct, frozen=True):
    """A waiting call, its size and its expiry."""

    call: _DetachedCall
    size: int
    expires_at: float
    timer: asyncio.TimerHandle


class InputRequired:
    """The calls of this process that wait for input."""

    def __init__(self, signer: Signer, seconds: float) -> None:
        self._signer = signer
        self._seconds = seconds
        self._waiting: dict[str, _Entry] = {}
        self._bytes = 0
        self._answered: dict[str, float] = {}
        self._prefix = os.urandom(4).hex()
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._waiting)

    async def run(self, invocation: Invocation, context: "RequestContext", state: str | None) -> Envelope | InputRequest:
        """Start a call, or resume the one that the state names; return its outcome or its next question.

        Raises:
            Fault: The state is forged, expired, or of another request.
            ToolError: `state_error` if the call is gone and cannot be started again.
        """
        if state is None:
            return await self._start(invocation, context)
        key, declared = self._verify(state, invocation, context)
        entry = self._waiting.get(key)
        if entry is None:
            if declared and key not in self._answered:
                self._mark_answered(key)
                return await self._start(invocation, context)
            raise ToolError(
                "state_error",
                "The call that asked is gone: the server was started anew, or it was answered already.",
                hint="Look at the state first: the call may have run.",
                may_have_run=True,
                reason="call_gone",
            )
        call = entry.call
        if not call.asks.keys() <= context.input_responses.keys():
            return call.input_request(key, entry.expires_at, declared=declared)
        self.remove(key)
        self._mark_answered(key)
        outcome = call.next_outcome()
        call.resume(context)
        return await call.wait(outcome)

    def _mark_answered(self, key: str) -> None:
        """Remember an answered state until it expires, so that one confirmation starts one call in this process."""
        self._answered[key] = time.time() + self._seconds
        while self._answered and next(iter(self._answered.values())) < time.time():
            del self._answered[next(iter(self._answered))]

    async def _start(self, invocation: Invocation, context: "RequestContext") -> Envelope | InputRequest:
        call = _DetachedCall(self, invocation, context)
        return await call.wait(call.next_outcome())

    def cancel_all(self) -> None:
        """Cancel every waiting call."""
        for entry in tuple(self._waiting.values()):
            entry.call.task.cancel()

    def add(self, call: _DetachedCall) -> str:
        """Store a waiting call until it is answered or expires; return its key."""
        if len(self._waiting) >= _MAX_CALLS or self._bytes + call.size > _MAX_BYTES or self._has_most(call):
            raise ToolError("overloaded", "Too many calls wait for answers already.", may_have_run=None)
        key = f"{self._prefix}{next(self._numbers):x}"
        timer = asyncio.get_running_loop().call_later(self._seconds, call.task.cancel)
        self._waiting[key] = _Entry(call, call.size, time.time() + self._seconds, timer)
        self._bytes += call.size
        return key

    def _has_most(self, call: _DetachedCall) -> bool:
        """Return whether the owner of a call must leave room for others; few calls wait, so they are counted when one is added."""
        owner = call.context.caller.owner
        if owner == SHARED.owner:
            return False
        sizes = [entry.size for entry in self._waiting.values() if entry.call.context.caller.owner == owner]
        return len(sizes) >= _MAX_CALLS_OF_OWNER or sum(sizes) + call.size > _MAX_BYTES_OF_OWNER

    def expires_at(self, key: str) -> float:
        """Return when a waiting call expires."""
        return self._waiting[key].expires_at

    def remove(self, key: str) -> None:
        """Remove a call that waits no longer."""
        entry = self._waiting.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size
            entry.timer.cancel()

    def state(self, key: str, fingerprint: str, expires_at: float, *, declared: bool) -> str:
        """Return the signed state of a waiting call."""
        return self._signer.sign(_PURPOSE, [key, fingerprint, int(expires_at), declared])

    def _verify(self, state: str, invocation: Invocation, context: "RequestContext") -> tuple[str, bool]:
        try:
            key, fingerprint, expires_at, declared = self._signer.verify(_PURPOSE, state)
        except SignatureError:
            raise Fault(INVALID_PARAMS, "The 'requestState' was not issued by this server.") from None
        if fingerprint != invocation.fingerprint(context.caller.owner):
            raise Fault(INVALID_PARAMS, "The 'requestState' belongs to another request.")
        if expires_at < time.time():
            raise Fault(INVALID_PARAMS, "The 'requestState' has expired.")
        return key, declared
