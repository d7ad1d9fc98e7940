"""The queue: how many calls run at one time, and which waiting call is next; and the limiter that leads to it.

Each limit is a pool of places: one for all calls, and one for each tool, source and caller. A call takes a place in all
of its pools or in none, so calls that wait hold nothing. Pools live in one process and one event loop; none of their
methods wait.
"""

import asyncio
import time
from bisect import insort
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Final

import msgspec

from callyard.dispatch.call import Call, Release
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.registry import Registry
from callyard.dispatch.run import run_of
from callyard.model.limits import Limits
from callyard.model.profile import METATOOLS, first_match, matches_any
from callyard.policy.budgets import Budgets
from callyard.policy.rates import Rates, log_refusal, refuse
from callyard.policy.settings import LoadSettings, QueueSettings
from callyard.state.store import Clock, Store

__all__ = ["AGED_S", "PRIORITY", "CallLimiter", "CallQueue"]

PRIORITY: Final = "callyard/priority"
"""The key of `_meta` with the priority of one call: 'interactive' or 'background'."""
AGED_S: Final = 20.0
"""How long a background call waits behind interactive ones before its turn comes."""
_TURNS: Final = 4
"""How many interactive calls start between two background calls whose turn has come."""
_RETRY_AFTER_MS: Final = 1000
_MAX_POOLS: Final = 10_000


class _Place(msgspec.Struct, eq=False):
    """The place of one call in each of its pools."""

    call: Call
    pools: "tuple[_Pool, ...]"
    background: bool
    lenders: "dict[_Pool, _Place]" = {}
    """The outer calls in whose place it runs, by pool."""
    lent: "dict[_Pool, _Place]" = {}
    """The inner calls that run in this place, by pool."""


class _Waiter(msgspec.Struct, eq=False, kw_only=True):
    """A call that waits for its places."""

    place: _Place
    number: int
    since: float
    is_resumed: bool
    future: asyncio.Future[None]
    line: "list[_Waiter] | None" = None

    def __lt__(self, other: "_Waiter") -> bool:
        return self.number < other.number


class _Pool:
    """The places of one limit, and the lines of those that wait for it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # A quarter of the places is kept for interactive calls, because a place that a background call has cannot be
        # taken back.
        self.most_background = limit if limit == 1 else limit - max(1, limit // 4)
        self.used = 0
        self.background = 0
        self.resumed_line: list[_Waiter] = []
        self.interactive_line: list[_Waiter] = []
        self.background_line: list[_Waiter] = []
        self.turns = _TURNS

    @property
    def is_idle(self) -> bool:
        """Return whether nobody has a place or waits for one."""
        return not (self.used or self.resumed_line or self.interactive_line or self.background_line)

    def has_room(self, place: _Place, *, is_resumed: bool) -> bool:
        """Return whether a call can have a place; one that had it before is not held back for interactive calls."""
        return self.used < self.limit and (not place.background or is_resumed or self.background < self.most_background)

    def add(self, place: _Place, places: int) -> None:
        """Take a place with 1, or give it back with -1."""
        self.used += places
        self.background += places * place.background

    def line_of(self, waiter: _Waiter) -> list[_Waiter]:
        """Return the line that a call waits in."""
        line = self.background_line if waiter.place.background else self.interactive_line
        return self.resumed_line if waiter.is_resumed else line

    def next(self, now: float) -> _Waiter | None:
        """Return the call whose turn it is, if there is room: resumed calls first, then interactive ones."""
        if self.used >= self.limit:
            return None
        if self.resumed_line:
            return self.resumed_line[0]
        first = self.background_line[0] if self.background_line and self.background < self.most_background else None
        if first is not None and (not self.interactive_line or (self.turns >= _TURNS and now - first.since >= AGED_S)):
            self.turns = 0
            return first
        self.turns += 1
        return self.interactive_line[0] if self.interactive_line else None


class CallQueue:
    """The places of one yard."""

    def __init__(self, settings: QueueSettings, limits: Limits, *, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._pools: dict[tuple[str, str], _Pool] = {}
        self._of: dict[tuple[str, str, str], tuple[_Pool, ...]] = {}
        self._held: dict[str, _Place] = {}
        """The places of running calls, by the id of the call."""
        self._nested: set[_Waiter] = set()
        self._numbers = count()
        self._waiting = {False: 0, True: 0}
        """How many calls wait, by whether they are in the background."""

    async def enter(self, call: Call) -> Release:
        """Wait for places, and return what gives them back.

        Raises:
            ToolError: `overloaded` if too many wait, `timeout` if the call could not start in time.
        """
        place = self._place(call)
        if self._take(place) is not None:
            if self._waiting[place.background] >= self._settings.waiting:
                message = f"The queue is full: its limit for waiting calls is {self._settings.waiting}."
                hint = "Wait for 'retry_after_ms', then call again."
                raise refuse(call, "overloaded", "queue_full", message, hint=hint, retry_after_ms=_RETRY_AFTER_MS)
            usual = self._limits.job_timeout if call.channel.job_id else self._limits.timeout
            await self._wait(place, seconds=usual if call.spec.timeout is None else call.spec.timeout)
        return partial(self._leave, place)

    async def resume(self, call: Call) -> Release:
        """Take back the places of a call that gave them up; it comes before others and is never refused."""
        place = self._place(call)
        if self._take(place, is_resumed=True) is not None:
            await self._wait(place, is_resumed=True)
        return partial(self._leave, place)

    def _place(self, call: Call) -> _Place:
        key = (call.spec.name, call.spec.source, call.request.caller.identity)
        return _Place(call, self._of.get(key) or self._find(*key), self._is_background(call))

    def _is_background(self, call: Call) -> bool:
        """Return whether a call has the priority `background`, by its request, its job or its tool."""
        stated = run_of(call).options.priority or call.channel.meta.get(PRIORITY)
        if stated in ("background", "interactive"):
            return stated == "background"
        if call.channel.job_id or call.spec.priority == "background":
            return True
        return matches_any(call.spec.name, self._settings.background)

    def _find(self, tool: str, source: str, identity: str) -> tuple[_Pool, ...]:
        """Return the pools of a call and remember them, those with fewer calls first."""
        settings = self._settings
        of_tool, of_source = first_match(tool, settings.tools), first_match(source, settings.sources)
        wanted = {
            ("tool", tool): settings.per_tool if of_tool is None else of_tool,
            ("source", source): settings.per_source if of_source is None else of_source,
            ("caller", identity): settings.per_caller,
            ("all", ""): settings.calls,
        }
        if max(len(self._pools), len(self._of)) >= _MAX_POOLS:
            self._of.clear()
            self._pools = {key: pool for key, pool in self._pools.items() if not pool.is_idle}
        pools = tuple(self._pools.setdefault(key, _Pool(limit)) for key, limit in wanted.items() if limit)
        self._of[tool, source, identity] = pools
        return pools

    def _lender(self, place: _Place, pool: _Pool) -> _Place | None:
        """Return the outer call whose place a call can use: it waits for inner calls, and no other runs there."""
        for outer in self._outer_places(place):
            if pool in outer.pools:
                return None if pool in outer.lent else outer
        return None

    def _outer_places(self, place: _Place) -> Iterator[_Place]:
        """Yield the places of the calls that a call is nested in, the innermost first."""
        parent = place.call.parent
        while parent is not None:
            outer = self._held.get(parent.id)
            if outer is not None:
                yield outer
            parent = parent.parent

    def _take(self, place: _Place, *, is_resumed: bool = False) -> _Pool | None:
        """Take a place in every pool, or return the first pool without room.

        An inner call takes the places of its outer calls, if no other one runs there, and else others.
        """
        lenders = {pool: self._lender(place, pool) for pool in place.pools}
        for pool, lender in lenders.items():
            if lender is None and not pool.has_room(place, is_resumed=is_resumed):
                return pool
        for pool, lender in lenders.items():
            if lender is None:
                pool.add(place, 1)
            else:
                place.lenders[pool] = lender
                lender.lent[pool] = place
        self._held[place.call.id] = place
        return None

    async def _wait(self, place: _Place, *, seconds: float = 0.0, is_resumed: bool = False) -> None:
        """Wait in line until all places are there."""
        call, loop = place.call, asyncio.get_running_loop()
        waiter = _Waiter(
            place=place,
            number=next(self._numbers),
            since=self._clock(),
            is_resumed=is_resumed,
            future=loop.create_future(),
        )
        self._waiting[place.background] += 1
        if call.parent is not None:
            self._nested.add(waiter)
        timer = loop.call_later(seconds, _give_up, waiter, seconds) if seconds else None
        try:
            self._try(waiter)
            await waiter.future
        except BaseException:
            if waiter.line is not None:
                waiter.line.remove(waiter)
            elif self._held.get(call.id) is place:  # cancelled in the moment of its turn
                self._leave(place)
            if run_of(call).stopped == "timeout":
                log_refusal(call, "timeout", "not_started")
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting[place.background] -= 1
            self._nested.discard(waiter)
            span = run_of(call).span
            if span is not None:
                span.note_wait("queue", self._clock() - waiter.since)

    def _try(self, waiter: _Waiter) -> None:
        """Start a call that waits, or let it wait for the first pool without room, in the order in which calls came.

        Calls that wait for inner calls can wait for each other in a circle. The last one to wait closes it: then
        everybody who has a place in the pool waits for an inner call, and this one runs beyond the limit.
        """
        place = waiter.place
        waiter.line = None
        if waiter.future.done():  # it was cancelled, or its time is over, and its task has not gone on yet
            return
        blocked = self._take(place, is_resumed=waiter.is_resumed)
        if blocked is not None and waiter in self._nested and self._is_stuck(blocked):
            for pool in place.pools:
                pool.add(place, 1)
            self._held[place.call.id] = place
            blocked = None
        if blocked is None:
            self._nested.discard(waiter)
            waiter.future.set_result(None)
        else:
            waiter.line = blocked.line_of(waiter)
            insort(waiter.line, waiter)

    def _is_stuck(self, pool: _Pool) -> bool:
        """Return whether every call with a place in a pool waits for an inner call that waits."""
        blocked = {outer for waiter in self._nested for outer in self._outer_places(waiter.place)}
        return all(holder in blocked for holder in self._held.values() if pool in holder.pools)

    def _leave(self, place: _Place) -> None:
        """Give places back, and start the next waiting calls."""
        del self._held[place.call.id]
        for pool in place.pools:
            lender, inner = place.lenders.get(pool), place.lent.get(pool)
            if lender is None:
                pool.add(place, -1)
                if inner is not None:  # it still runs in this place
                    del inner.lenders[pool]
                    pool.add(inner, 1)
            elif inner is None:
                del lender.lent[pool]
            else:
                inner.lenders[pool] = lender
                lender.lent[pool] = inner
        if any(self._waiting.values()):
            for pool in place.pools:
                self._serve(pool)

    def _serve(self, pool: _Pool) -> None:
        """Start those who wait for a pool while there is room, and inner calls in the places of outer ones."""
        now = self._clock()
        while (waiter := pool.next(now)) is not None:
            pool.line_of(waiter).pop(0)
            self._try(waiter)
        for waiter in sorted(self._nested):
            line = pool.line_of(waiter)
            if waiter.line is line and self._lender(waiter.place, pool) is not None:
                line.remove(waiter)
                self._try(waiter)


def _give_up(waiter: _Waiter, seconds: float) -> None:
    """Refuse a call that could not start in time."""
    call = waiter.place.call
    if not waiter.future.done():
        message = f"'{call.tool}' could not start within {seconds:.3g} seconds, because too many calls run."
        hint = "Nothing was done. Call again later, or fewer at a time."
        error = refuse(
            call, "timeout", "not_started", message, hint=hint, blame="yard", timeout_ms=round(seconds * 1000)
        )
        waiter.future.set_exception(error)


def _nothing() -> None:
    """Release nothing."""


class CallLimiter:
    """Makes calls pass the budgets, the rates and the queue; each of them may be missing.

    Metatools take no place in the queue: one may wait for a job that needs it. Those that only run other tools, such as
    `run_tool` and `run_chain`, count as no calls either: their inner calls do.
    """

    def __init__(
        self, settings: LoadSettings, limits: Limits, *, store: Store, registry: Registry, clock: Clock = time.monotonic
    ) -> None:
        self._registry = registry
        self._queue: Final = CallQueue(settings.queue, limits, clock=clock) if settings.queue.is_set else None
        self._rates: Final = Rates(settings.rates, store, clock=clock) if settings.rates.is_set else None
        self._budgets: Final = Budgets(settings.budgets, store, clock=clock) if settings.budgets.is_set else None

    def open(self) -> AbstractAsyncContextManager[None]:
        """Write budgets while the context is open, and on leaving."""
        return nullcontext() if self._budgets is None else self._budgets.open()

    def observe(self, dispatcher: Dispatcher) -> None:
        """Count the tokens of answers, if there are budgets."""
        if self._budgets is not None:
            dispatcher.observe(self._budgets)

    async def __call__(self, call: Call) -> Release:
        """Wait until a call may run.

        Raises:
            ToolError: It may not, and has not run.
        """
        is_metatool = call.spec.source == METATOOLS
        tool = self._registry.get(call.spec.name) if is_metatool else None
        counts = tool is None or not tool.wraps
        if self._budgets is not None:
            await self._budgets.spend(call, counts=counts)
        if not counts:
            return _nothing
        try:
            if self._rates is not None:
                await self._rates.take(call)
            return _nothing if self._queue is None or is_metatool else await self._queue.enter(call)
        except BaseException:
            if self._budgets is not None:
                self._budgets.give_back(call)
            raise

    async def resume(self, call: Call) -> Release:
        """Wait again for the places of a call that gave them up while it waited; it is not counted again."""
        return _nothing if self._queue is None or call.spec.source == METATOOLS else await self._queue.resume(call)
