"""Parking: calls that wait for an answer while no request of theirs is open.

In the newer era a question is an answer, too: the client is told what is wanted and comes again with it. Meanwhile the handler stays
where it is, in this process, under a sealed state that expires.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from itertools import count
from typing import Any, Final

import msgspec

from toolyard._internal.signed_tokens import SignatureError, Signer
from toolyard.dispatch.call import Channel
from toolyard.model.elicitation import ClientRequest
from toolyard.model.envelope import Envelope, encode
from toolyard.model.errors import ToolError
from toolyard.server.request import RequestContext, check_asks
from toolyard.wire.messages import INVALID_PARAMS, Fault

__all__ = ["Asked", "InputRequired", "Start", "Work"]

Start = Callable[[Channel], Awaitable[Envelope]]
_PURPOSE: Final = "state of a request"
_MOST: Final = 1000
_BYTES: Final = 64 * 1024 * 1024


class Asked(msgspec.Struct, frozen=True):
    """A call wants to know something first."""

    asks: Mapping[str, ClientRequest]
    state: str


class Work(msgspec.Struct, frozen=True):
    """What a request wants done: under which method and name, with what, and how it is begun."""

    method: str
    name: str
    arguments: bytes
    start: Start

    def fingerprint(self, owner: str) -> str:
        """Return what a request that comes again must have the same."""
        return sha256(b"\0".join([self.method.encode(), self.name.encode(), self.arguments, owner.encode()])).hexdigest()[:24]


class _Run:
    """One call that may ask: it runs in a task of its own, and whoever has a request open for it is told what comes of it."""

    __slots__ = ("_answers", "_arguments", "_fingerprint", "_parking", "_told", "_turn", "_work", "asks", "exchange", "size", "task")

    def __init__(self, parking: "InputRequired", work: Work, exchange: RequestContext) -> None:
        self._work: Work | None = work
        self._fingerprint = ""
        self._arguments = 0
        self.size = 0
        """How many bytes of its requests a parked call holds on to."""
        self.exchange = exchange
        self.asks: Mapping[str, ClientRequest] = {}
        self._parking = parking
        self._turn = asyncio.Lock()
        self._answers: asyncio.Future[Mapping[str, Any]] | None = None
        self._told: asyncio.Future[Envelope | Asked] | None = None
        self.task = asyncio.ensure_future(work.start(exchange.channel(self.ask)))
        self.task.add_done_callback(self._finish)

    def expect(self) -> "asyncio.Future[Envelope | Asked]":
        """Return what the answer or the next question will be told to."""
        self._told = asyncio.get_running_loop().create_future()
        if self.task.done():
            self._finish(self.task)
        return self._told

    async def outcome(self, told: "asyncio.Future[Envelope | Asked]") -> Envelope | Asked:
        """Wait for the answer or the next question; whoever stops waiting takes the call with him."""
        try:
            return await told
        except asyncio.CancelledError:
            self.task.cancel()
            raise

    async def ask(self, asks: Mapping[str, ClientRequest], declared: bool) -> Mapping[str, Any]:  # noqa: FBT001 - the shape of a door
        """Wait until the client comes again with answers to all that, unless it brought them along; one question after the other."""
        check_asks(asks, self.exchange.capabilities)
        async with self._turn:
            return await self._ask_now(asks, declared=declared)

    async def _ask_now(self, asks: Mapping[str, ClientRequest], *, declared: bool) -> Mapping[str, Any]:
        brought = self.exchange.responses
        if asks.keys() <= brought.keys():
            return {key: brought.pop(key) for key in asks}
        self.asks = asks
        self._settle_down()
        self._answers = asyncio.get_running_loop().create_future()
        key = self._parking.park(self)
        try:
            self._tell(self.asked(key, self._parking.until(key), declared=declared))
            return await self._answers
        finally:
            self._answers = None
            self._parking.leave(key)

    def asked(self, key: str, until: float, *, declared: bool) -> Asked:
        """Return what the client is told, with the state it must bring along."""
        return Asked(self.asks, self._parking.state(key, self._fingerprint, until, declared=declared))

    def _settle_down(self) -> None:
        """Keep of the request only what is looked at when it comes again, and know how much that is."""
        work, exchange = self._work, self.exchange
        if work is not None:
            self._fingerprint = work.fingerprint(exchange.caller.owner)
            self._work = None
            self._arguments = len(work.arguments)
        self.size = self._arguments + len(encode([exchange.meta, exchange.responses]))

    def resume(self, exchange: RequestContext) -> None:
        """Go on with the answers that this request brought along."""
        self.exchange.take_over(exchange)
        if self._answers is not None and not self._answers.done():
            self._answers.set_result({key: exchange.responses.pop(key) for key in self.asks})

    def _tell(self, outcome: "Envelope | Asked") -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(outcome)

    def _finish(self, task: "asyncio.Future[Envelope]") -> None:
        told = self._told
        if task.cancelled():
            if told is not None and not told.done():
                told.cancel()
        elif (error := task.exception()) is not None:
            if told is not None and not told.done():
                told.set_exception(error)
        else:
            self._tell(task.result())


class _Place(msgspec.Struct, frozen=True):
    """Where a call waits: how much it holds on to, and how long."""

    run: _Run
    size: int
    until: float
    timer: asyncio.TimerHandle


class InputRequired:
    """The calls of one process that wait for answers."""

    def __init__(self, seal: Signer, seconds: float) -> None:
        self._seal = seal
        self._seconds = seconds
        self._parked: dict[str, _Place] = {}
        self._bytes = 0
        self._answered: dict[str, float] = {}
        self._mark = os.urandom(4).hex()
        self._keys = count(1)

    def __len__(self) -> int:
        return len(self._parked)

    async def run(self, work: Work, exchange: RequestContext, state: str | None) -> Envelope | Asked:
        """Begin a call, or go on with one that asked, and wait for what comes of it.

        Raises:
            Fault: The state is none of ours, expired, or of another request.
            ToolError: `state_error` if the call that asked is gone and cannot be begun anew.
        """
        if state is None:
            return await self._begin(work, exchange)
        key, declared = self._open(state, work, exchange)
        parked = self._parked.get(key)
        if parked is None:
            if declared and key not in self._answered:
                self._remember(key)
                return await self._begin(work, exchange)
            raise ToolError(
                "state_error",
                "The call that asked is gone: the server was started anew, or it was answered already.",
                hint="Look at the state first: the call may have run.",
                may_have_run=True,
                reason="call_gone",
            )
        run = parked.run
        if not run.asks.keys() <= exchange.responses.keys():
            return run.asked(key, parked.until, declared=declared)
        self.leave(key)
        self._remember(key)
        told = run.expect()
        run.resume(exchange)
        return await run.outcome(told)

    def _remember(self, key: str) -> None:
        """Remember for as long as a state lives that it has been answered here, so that one yes does one thing in this process."""
        self._answered[key] = time.time() + self._seconds
        while self._answered and next(iter(self._answered.values())) < time.time():
            del self._answered[next(iter(self._answered))]

    async def _begin(self, work: Work, exchange: RequestContext) -> Envelope | Asked:
        run = _Run(self, work, exchange)
        return await run.outcome(run.expect())

    def cancel_all(self) -> None:
        """Interrupt every call that waits for an answer that nobody can bring any more."""
        for parked in tuple(self._parked.values()):
            parked.run.task.cancel()

    def park(self, run: _Run) -> str:
        """Keep a call until it is answered or nobody may answer any more; return what it is kept under."""
        if len(self._parked) >= _MOST or self._bytes + run.size > _BYTES:
            raise ToolError("overloaded", "Too many calls wait for answers already.", may_have_run=None)
        key = f"{self._mark}{next(self._keys):x}"
        timer = asyncio.get_running_loop().call_later(self._seconds, run.task.cancel)
        self._parked[key] = _Place(run, run.size, time.time() + self._seconds, timer)
        self._bytes += run.size
        return key

    def until(self, key: str) -> float:
        """Return how long a parked call can be answered."""
        return self._parked[key].until

    def leave(self, key: str) -> None:
        """Keep a call no longer."""
        parked = self._parked.pop(key, None)
        if parked is not None:
            self._bytes -= parked.size
            parked.timer.cancel()

    def state(self, key: str, fingerprint: str, until: float, *, declared: bool) -> str:
        """Return the sealed state of a call that asked, which is good for as long as the call waits."""
        return self._seal.sign(_PURPOSE, [key, fingerprint, int(until), declared])

    def _open(self, state: str, work: Work, exchange: RequestContext) -> tuple[str, bool]:
        try:
            key, fingerprint, until, declared = self._seal.verify(_PURPOSE, state)
        except SignatureError:
            raise Fault(INVALID_PARAMS, "The request state is none that was given out here.") from None
        if fingerprint != work.fingerprint(exchange.caller.owner):
            raise Fault(INVALID_PARAMS, "The request state is of another request.")
        if until < time.time():
            raise Fault(INVALID_PARAMS, "The request state has expired.")
        return key, declared
