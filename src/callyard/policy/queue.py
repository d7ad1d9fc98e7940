"""The queue: how many calls run at one time, and which waiting call is next.

Each limit is a pool of places: one for all calls, and one for each tool, source and caller. A call takes a place in all of its pools
or in none, so calls that wait hold nothing. Pools live in one process and one event loop; none of their methods wait.
"""

import asyncio
import time
from bisect import insort
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any, Final

from callyard.dispatch.call import Call, Release
from callyard.model.limits import Limits
from callyard.model.profile import first_match
from callyard.policy.refusals import log_refusal, refuse
from callyard.policy.settings import QueueSettings
from callyard.state.store import Clock

__all__ = ["AGED_S", "PRIORITY", "CallQueue"]

PRIORITY: Final = "callyard/priority"
"""The key of `_meta` with the priority of one call: 'interactive' or 'background'."""
AGED_S: Final = 20.0
"""How long a background call waits behind interactive ones before its turn comes."""
_TURNS: Final = 4
"""How many interactive calls start between two background calls whose turn has come."""
_RETRY_AFTER_MS: Final = 1000
_MAX_POOLS: Final = 10_000
_NONE: Final[dict[Any, Any]] = {}
"""Shared and never changed, because most calls neither lend nor borrow a place."""


class _Place:
    """The place of one call in each of its pools."""

    __slots__ = ("background", "call", "lenders", "lent", "pools")

    def __init__(self, call: Call, pools: "tuple[_Pool, ...]", background: bool) -> None:  # noqa: FBT001 - keywords cost more
        self.call = call
        self.pools = pools
        self.background = background
        self.lenders: dict[_Pool, _Place] = _NONE
        """The outer calls in whose place it runs, by pool."""
        self.lent: dict[_Pool, _Place] = _NONE
        """The inner calls that run in this place, by pool."""


class _Waiter:
    """A call that waits for its places."""

    __slots__ = ("future", "is_resumed", "line", "number", "place", "since")

    def __init__(self, place: _Place, *, number: int, since: float, is_resumed: bool) -> None:
        self.place = place
        self.number = number
        self.since = since
        self.is_resumed = is_resumed
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line: list[_Waiter] | None = None
        """Where it waits."""

    def __lt__(self, other: "_Waiter") -> bool:
        return self.number < other.number


class _Pool:
    """The places of one limit, and the lines of those that wait for it."""

    __slots__ = ("background", "background_line", "interactive_line", "limit", "most_background", "resumed_line", "turns", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # A quarter of the places is kept for interactive calls, because a place that a background call has cannot be taken back.
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

    def enter(self, place: _Place) -> None:
        """Take a place."""
        self.used += 1
        self.background += place.background

    def leave(self, place: _Place) -> None:
        """Give a place back."""
        self.used -= 1
        self.background -= place.background

    def line_of(self, waiter: _Waiter) -> list[_Waiter]:
        """Return the line that a call waits in."""
        return self.resumed_line if waiter.is_resumed else self.background_line if waiter.place.background else self.interactive_line

    def next(self, now: float) -> _Waiter | None:
        """Return the call whose turn it is, if there is room for it: calls resume first, interactive calls come before others."""
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
        self._is_background: dict[str, bool] = {}
        self._held: dict[str, _Place] = {}
        """The places of running calls, by the id of the call."""
        self._nested: set[_Waiter] = set()
        """The calls that wait inside of others."""
        self._numbers = count()
        self._waiting = {False: 0, True: 0}
        """How many calls wait, by whether they are in the background."""

    @property
    def waiting(self) -> int:
        """Return how many calls wait."""
        return sum(self._waiting.values())

    @property
    def running(self) -> int:
        """Return how many calls have a place."""
        return len(self._held)

    def enter(self, call: Call) -> Release | None:
        """Take places and return what gives them back, or return None if there are too few, so that the call must wait."""
        place = self._place(call)
        return partial(self._leave, place) if self._take(place) is None else None

    async def wait(self, call: Call) -> Release:
        """Wait for places.

        Raises:
            ToolError: `overloaded` if too many wait, `timeout` if the call could not start in time.
        """
        place = self._place(call)
        if self._waiting[place.background] >= self._settings.waiting:
            message = f"The queue is full: its limit for waiting calls is {self._settings.waiting}."
            hint = "Wait for 'retry_after_ms', then call again."
            raise refuse(call, "overloaded", "queue_full", message, hint=hint, retry_after_ms=_RETRY_AFTER_MS)
        seconds = self._longest_wait(call)
        await self._wait(place, seconds=seconds)
        return partial(self._leave, place)

    async def resume(self, call: Call) -> Release:
        """Take back the places of a call that gave them up; it comes before others and is never refused."""
        place = self._place(call)
        if self._take(place, is_resumed=True) is not None:
            await self._wait(place, is_resumed=True)
        return partial(self._leave, place)

    def _place(self, call: Call) -> _Place:
        spec, identity = call.spec, call.request.caller.identity
        pools = self._of.get((spec.name, spec.source, identity))
        if pools is None:
            pools = self._find(spec.name, spec.source, identity)
        return _Place(call, pools, self.is_background(call))

    def is_background(self, call: Call) -> bool:
        """Return whether a call has the priority `background`: its request says so, it is in a job, or its tool says so."""
        channel, spec = call.channel, call.spec
        stated = call.options.priority or (channel.meta.get(PRIORITY) if channel.meta else None)
        if stated in ("background", "interactive"):
            return stated == "background"
        if channel.job_id or spec.priority == "background":
            return True
        patterns = self._settings.background
        if not patterns:
            return False
        known = self._is_background.get(spec.name)
        if known is None:
            known = self._is_background[spec.name] = bool(first_match(spec.name, dict.fromkeys(patterns, True)))
        return known

    def _find(self, tool: str, source: str, identity: str) -> tuple[_Pool, ...]:
        """Return the pools of a call and remember them, those with fewer calls first."""
        settings = self._settings
        of_tool, of_source = first_match(tool, settings.tools), first_match(source, settings.sources)
        wanted = [
            ("tool", tool, settings.per_tool if of_tool is None else of_tool),
            ("source", source, settings.per_source if of_source is None else of_source),
            ("caller", identity, settings.per_caller),
            ("all", "", settings.calls),
        ]
        if max(len(self._pools), len(self._of)) >= _MAX_POOLS:
            self._of.clear()
            self._is_background.clear()
            self._pools = {key: pool for key, pool in self._pools.items() if not pool.is_idle}
        found = self._of[tool, source, identity] = tuple(self._pool((kind, name), limit) for kind, name, limit in wanted if limit)
        return found

    def _pool(self, key: tuple[str, str], limit: int) -> _Pool:
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(limit)
        return pool

    def _lender(self, place: _Place, pool: _Pool) -> _Place | None:
        """Return the outer call in whose place a call can run: it waits for inner calls, and no other one runs there."""
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
        """Take a place in every pool, or return the first pool without room."""
        if place.call.parent is not None:
            return self._take_inside(place, is_resumed=is_resumed)
        background, pools = place.background, place.pools
        for pool in pools:  # without methods: they would double the cost of the queue
            if pool.used >= pool.limit or (background and not is_resumed and pool.background >= pool.most_background):
                return pool
        for pool in pools:
            pool.used += 1
            pool.background += background
        self._held[place.call.id] = place
        return None

    def _take_inside(self, place: _Place, *, is_resumed: bool) -> _Pool | None:
        """Take the places of an inner call: those of its outer calls, if no other one runs there, and else others."""
        for pool in place.pools:
            if not pool.has_room(place, is_resumed=is_resumed) and self._lender(place, pool) is None:
                return pool
        for pool in place.pools:
            lender = self._lender(place, pool)
            if lender is None:
                pool.enter(place)
            else:
                place.lenders, lender.lent = {**place.lenders, pool: lender}, {**lender.lent, pool: place}
        self._held[place.call.id] = place
        return None

    async def _wait(self, place: _Place, *, seconds: float = 0.0, is_resumed: bool = False) -> None:
        """Wait in line until all places are there."""
        call, background = place.call, place.background
        waiter = _Waiter(place, number=next(self._numbers), since=self._clock(), is_resumed=is_resumed)
        self._waiting[background] += 1
        if call.parent is not None:
            self._nested.add(waiter)
        timer = call.funnel.loop.call_later(seconds, _give_up, waiter, seconds) if seconds else None
        try:
            self._try(waiter)
            await waiter.future
        except BaseException:
            if waiter.line is not None:
                waiter.line.remove(waiter)
            elif self._held.get(call.id) is place:  # cancelled in the moment of its turn
                self._leave(place)
            if call.stopped == "timeout":
                log_refusal(call, "timeout", "not_started")
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting[background] -= 1
            self._nested.discard(waiter)

    def _longest_wait(self, call: Call) -> float:
        """Return for how many seconds a call waits if its caller has no deadline; 0 is for ever."""
        timeout, limits = call.spec.timeout, self._limits
        return timeout if timeout is not None else limits.job_timeout if call.channel.job_id else limits.timeout

    def _try(self, waiter: _Waiter) -> None:
        """Start a call that waits, or let it wait for the first pool without room, in the order in which calls came.

        Calls that wait for inner calls can wait for each other in a circle. The last one to wait closes it: then everybody who has a
        place in the pool waits for an inner call, and this one runs beyond the limit.
        """
        place = waiter.place
        waiter.line = None
        if waiter.future.done():  # it was cancelled, or its time is over, and its task has not gone on yet
            return
        blocked = self._take(place, is_resumed=waiter.is_resumed)
        if blocked is not None and waiter in self._nested and self._is_stuck(blocked):
            for pool in place.pools:
                pool.enter(place)
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
        background = place.background
        for pool in place.pools:
            if place.lenders or place.lent:
                _give_back(pool, place)
            else:  # without a method, as above
                pool.used -= 1
                pool.background -= background
        if self._waiting[False] or self._waiting[True]:
            for pool in place.pools:
                self._serve(pool)

    def _serve(self, pool: _Pool) -> None:
        """Start those who wait for a pool, as long as there is room, and inner calls that can run in the place of an outer one."""
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
        error = refuse(call, "timeout", "not_started", message, hint=hint, blame="yard", timeout_ms=round(seconds * 1000))
        waiter.future.set_exception(error)


def _give_back(pool: _Pool, place: _Place) -> None:
    """Give one place back, to the outer call that lent it, or leave it to an inner call that still runs in it."""
    lender, inner = place.lenders.get(pool), place.lent.get(pool)
    if inner is None:
        if lender is None:
            pool.leave(place)
        else:
            lender.lent = _without(pool, lender.lent)
    elif lender is None:
        inner.lenders = _without(pool, inner.lenders)
        pool.leave(place)
        pool.enter(inner)
    else:
        inner.lenders, lender.lent = {**inner.lenders, pool: lender}, {**lender.lent, pool: inner}


def _without(pool: _Pool, places: dict[_Pool, _Place]) -> dict[_Pool, _Place]:
    return {other: place for other, place in places.items() if other is not pool}
