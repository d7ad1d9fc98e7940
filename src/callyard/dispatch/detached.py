"""Detached calls: calls in tasks of their own, which wait for answers while no request of their client is open.

This module knows no protocol. A server turns the questions into messages, and signs the key by which a waiting call is found again.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final, Protocol

import msgspec

from callyard.dispatch.call import SHARED, AskClient, CallRequest, Channel
from callyard.dispatch.outcome import store_unavailable
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError
from callyard.state.store import Store, StoreUnavailableError

__all__ = ["Client", "DetachedCall", "DetachedCalls", "Questions"]

RunRequest = Callable[[CallRequest, Channel], Awaitable[Envelope]]
_MAX_CALLS: Final = 1000
_MAX_CALLS_OF_OWNER: Final = 100
_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_BYTES_OF_OWNER: Final = 16 * 1024 * 1024


class Questions(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiting call asks its client."""

    key: str
    """Finds the waiting call."""
    fingerprint: str
    """The hash of its request, which a retried request must match."""
    asks: Mapping[str, ClientRequest]
    expires_at: float
    declared: bool
    """Whether nothing ran yet, so that the request may start again, also in another process."""


class Client(Protocol):
    """The client of a detached call, behind the request that it sent last."""

    input_responses: dict[str, Any]
    """Answers that its request brought along."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """Return the metadata of the request."""
        ...

    def channel(self, ask: AskClient) -> Channel:
        """Return the channel of the call, which asks its client by this function."""
        ...

    def check_asks(self, asks: Mapping[str, ClientRequest]) -> None:
        """Raise a `ToolError` if the client cannot be asked this."""
        ...

    def continue_as(self, other: Any) -> None:
        """Use the connection of a later request from now on."""
        ...


class DetachedCall:
    """One call in a task of its own; its answer or its next questions go to the request that waits at the time."""

    def __init__(self, calls: "DetachedCalls", request: CallRequest, client: Client) -> None:
        self._calls = calls
        self._request: CallRequest | None = request
        self._client = client
        self.owner = request.caller.owner
        self.questions: Questions | None = None
        """What it asks, while it waits for answers."""
        self.size = 0
        """Bytes of its request that it keeps in memory while it waits."""
        self._argument_bytes = 0
        self._fingerprint = ""
        self._lock = asyncio.Lock()
        self._answers: asyncio.Future[Mapping[str, Any]] | None = None
        self._outcome: asyncio.Future[Envelope | Questions] | None = None
        self.task = asyncio.ensure_future(calls.run_request(request, client.channel(self.ask)))
        self.task.add_done_callback(self._finish)

    async def outcome(self) -> Envelope | Questions:
        """Wait for the answer or the next questions; cancelling this cancels the call."""
        self._outcome = asyncio.get_running_loop().create_future()
        if self.task.done():
            self._finish(self.task)
        try:
            return await self._outcome
        except asyncio.CancelledError:
            self.task.cancel()
            raise

    async def ask(self, asks: Mapping[str, ClientRequest], declared: bool) -> Mapping[str, Any]:  # noqa: FBT001 - the type is `AskClient`
        """Wait for answers, unless the request brought them already; one set of questions at a time."""
        self._client.check_asks(asks)
        async with self._lock:
            responses = self._client.input_responses
            if asks.keys() <= responses.keys():
                return {key: responses.pop(key) for key in asks}
            self._drop_arguments()
            self._answers = asyncio.get_running_loop().create_future()
            self.questions = self._calls.add(self, self._fingerprint, asks, declared=declared)
            try:
                self._publish(self.questions)
                return await self._answers
            finally:
                self._calls.remove(self.questions.key)
                self._answers = self.questions = None

    def resume(self, client: Client) -> None:
        """Continue with the answers of a later request."""
        self._client.continue_as(client)
        if self._answers is not None and not self._answers.done() and self.questions is not None:
            self._answers.set_result({key: client.input_responses.pop(key) for key in self.questions.asks})

    def _drop_arguments(self) -> None:
        """Keep only the fingerprint of the request, which is all that a retry needs, and compute the size of the rest."""
        if self._request is not None:
            self._fingerprint = self._request.fingerprint()
            arguments = self._request.arguments
            self._argument_bytes = len(arguments if isinstance(arguments, msgspec.Raw) else encode(arguments))
            self._request = None
        self.size = self._argument_bytes + len(encode([self._client.meta, self._client.input_responses]))

    def _publish(self, outcome: Envelope | Questions) -> None:
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


class _Waiting(msgspec.Struct, frozen=True):
    """A waiting call, its size, and the timer that ends it."""

    call: DetachedCall
    size: int
    timer: asyncio.TimerHandle


class DetachedCalls:
    """The detached calls of one server that wait for answers: bounded in number and size, for all and for each caller."""

    def __init__(self, run_request: RunRequest, seconds: float, *, store: Store) -> None:
        self.run_request = run_request
        self._seconds = seconds
        self._store = store
        self._waiting: dict[str, _Waiting] = {}
        self._bytes = 0
        self._prefix = os.urandom(4).hex()
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, request: CallRequest, client: Client) -> DetachedCall:
        """Start a call for a client."""
        return DetachedCall(self, request, client)

    def get(self, key: str) -> DetachedCall | None:
        """Return the call that waits under a key."""
        waiting = self._waiting.get(key)
        return None if waiting is None else waiting.call

    def add(self, call: DetachedCall, fingerprint: str, asks: Mapping[str, ClientRequest], *, declared: bool) -> Questions:
        """Let a call wait until it is answered or expires.

        Raises:
            ToolError: `overloaded` if too many calls wait.
        """
        if self._has_share(call):
            raise ToolError("overloaded", "Too many calls of this caller wait for answers already.", may_have_run=None)
        if len(self._waiting) >= _MAX_CALLS or self._bytes + call.size > _MAX_BYTES:
            raise ToolError("overloaded", "Too many calls wait for answers already.", may_have_run=None)
        key = f"{self._prefix}{next(self._numbers):x}"
        timer = asyncio.get_running_loop().call_later(self._seconds, call.task.cancel)
        self._waiting[key] = _Waiting(call, call.size, timer)
        self._bytes += call.size
        expires_at = time.time() + self._seconds
        return Questions(key=key, fingerprint=fingerprint, asks=asks, expires_at=expires_at, declared=declared)

    def _has_share(self, call: DetachedCall) -> bool:
        """Return whether the owner of a call must leave room for others; few calls wait, so they are counted when one is added."""
        if call.owner == SHARED.owner:
            return False
        sizes = [waiting.size for waiting in self._waiting.values() if waiting.call.owner == call.owner]
        return len(sizes) >= _MAX_CALLS_OF_OWNER or sum(sizes) + call.size > _MAX_BYTES_OF_OWNER

    def remove(self, key: str) -> None:
        """Remove a call that waits no longer."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.timer.cancel()
            self._bytes -= waiting.size

    async def mark_answered(self, key: str) -> bool:
        """Note in the store, for as long as a call may wait, that a key was answered; return whether this is the first answer.

        Raises:
            ToolError: `overloaded` if that cannot be noted, so nobody may start the call.
        """
        try:
            return await self._store.compare_and_set(f"answered/{key}", None, b"", ttl=self._seconds)
        except StoreUnavailableError:
            raise store_unavailable(may_have_run=False) from None

    def cancel_all(self) -> None:
        """Cancel every waiting call."""
        for waiting in tuple(self._waiting.values()):
            waiting.call.task.cancel()
