"""The queue: how many calls run at one time, and which of those that wait comes next.

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

from toolyard.dispatch.call import Call, Release
from toolyard.model.limits import Limits
from toolyard.model.profile import first_match
from toolyard.policy.refusals import log_refusal, refuse
from toolyard.policy.settings import QueueSettings
from toolyard.state.store import Clock

__all__ = ["AGED_S", "PRIORITY", "CallQueue"]

PRIORITY: Final = "toolyard/priority"
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
    """The places of one call, or its wish for them while it waits."""

    __slots__ = ("background", "call", "future", "is_resumed", "lenders", "lent", "line", "number", "pools", "since")

    def __init__(self, call: Call, pools: "tuple[_Pool, ...]", *, background: bool) -> None:
        self.call = call
        self.pools = pools
        self.background = background
        self.is_resumed = False
        self.lenders: dict[_Pool, _Place] = _NONE
        """The outer calls in whose place it runs, by pool."""
        self.lent: dict[_Pool, _Place] = _NONE
        """The inner calls that run in this place, by pool."""
        self.future: asyncio.Future[None] | None = None
        self.line: list[_Place] | None = None
        """Where it waits."""
        self.number = 0
        self.since = 0.0

    def __lt__(self, other: "_Place") -> bool:
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
        self.resumed_line: list[_Place] = []
        self.interactive_line: list[_Place] = []
        self.background_line: list[_Place] = []
        self.turns = _TURNS

    @property
    def is_idle(self) -> bool:
        """Return whether nobody has a place or waits for one."""
        return not (self.used or self.resumed_line or self.interactive_line or self.background_line)

    def has_room(self, place: _Place) -> bool:
        """Return whether a call can have a place; one that had it before is not held back for interactive calls."""
        return self.used < self.limit and (not place.background or place.is_resumed or self.background < self.most_background)

    def enter(self, place: _Place) -> None:
        """Take a place."""
        self.used += 1
        self.background += place.background

    def leave(self, place: _Place) -> None:
        """Give a place back."""
        self.used -= 1
        self.background -= place.background

    def line_of(self, place: _Place) -> list[_Place]:
        """Return the line that a call waits in."""
        return self.resumed_line if place.is_resumed else self.background_line if place.background else self.interactive_line

    def waiters(self) -> Iterator[_Place]:
        """Yield everybody who waits here."""
        yield from (*self.resumed_line, *self.interactive_line, *self.background_line)

    def next(self, now: float) -> _Place | None:
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
        self._nested: set[_Place] = set()
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

    async def enter(self, call: Call, *, resumes: bool = False) -> Release:
        """Wait for places; `resumes` is for a call that had them, which comes first and is never refused.

        Raises:
            ToolError: `overloaded` if too many wait, `timeout` if the call could not start in time.
        """
        spec, caller = call.spec, call.request.caller
        pools = self._of.get((spec.name, spec.source, caller.identity))
        if pools is None:
            pools = self._find(spec.name, spec.source, caller.identity)
        place = _Place(call, pools, background=self.is_background(call))
        if resumes:
            place.is_resumed = True
        blocked = self._take(place)
        if blocked is not None:
            await self._wait(call, place, blocked)
        elif resumes:
            for pool in pools:
                self._serve(pool)  # inner calls that wait can run in this place
        return partial(self._leave, place)

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

    def _take(self, place: _Place) -> _Pool | None:
        """Take a place in every pool, or return the first pool without room."""
        is_nested = place.call.parent is not None
        for pool in place.pools:
            if not pool.has_room(place) and not (is_nested and self._lender(place, pool)):
                return pool
        for pool in place.pools:
            lender = self._lender(place, pool) if is_nested else None
            if lender is None:
                pool.enter(place)
            else:
                place.lenders, lender.lent = {**place.lenders, pool: lender}, {**lender.lent, pool: place}
        self._held[place.call.id] = place
        return None

    async def _wait(self, call: Call, place: _Place, blocked: _Pool) -> None:
        """Wait in line until all places are there."""
        background = place.background
        if not place.is_resumed and self._waiting[background] >= self._settings.waiting:
            message = f"{self._waiting[background]} calls wait already, as many as may."
            raise refuse(
                call,
                "overloaded",
                "queue_full",
                message,
                hint="Wait for 'retry_after_ms', then call again.",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        self._waiting[background] += 1
        if call.parent is not None:
            self._nested.add(place)
        place.number, place.since = next(self._numbers), self._clock()
        loop = asyncio.get_running_loop()
        future = place.future = loop.create_future()
        seconds = self._longest_wait(place)
        timer = loop.call_later(seconds, self._give_up, call, place, seconds) if seconds else None
        self._park(place, blocked)
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:  # cancelled in the moment of its turn
                self._leave(place)
            elif place.line is not None:
                place.line.remove(place)
            if call.stopped == "timeout":
                log_refusal(call, "timeout", "not_started")
            raise
        finally:
            place.future = None
            if timer is not None:
                timer.cancel()
            self._waiting[background] -= 1
            self._nested.discard(place)

    def _longest_wait(self, place: _Place) -> float:
        """Return for how many seconds a call waits if its caller has no deadline; 0 is for ever."""
        if place.is_resumed:
            return 0.0
        timeout, limits = place.call.spec.timeout, self._limits
        return timeout if timeout is not None else limits.job_timeout if place.call.channel.job_id else limits.timeout

    def _give_up(self, call: Call, place: _Place, seconds: float) -> None:
        if place.future is not None and not place.future.done():
            message = f"'{call.tool}' could not start within {seconds:.3g} seconds, because too many calls run."
            hint = "Nothing was done. Call again later, or fewer at a time."
            error = refuse(call, "timeout", "not_started", message, hint=hint, blame="yard", timeout_ms=round(seconds * 1000))
            place.future.set_exception(error)

    def _park(self, place: _Place, blocked: _Pool) -> None:
        """Let a call wait for one pool, in the order in which calls came.

        Calls that wait for inner calls can wait for each other in a circle. The last one to wait closes it: then everybody who has a
        place here waits for an inner call, and this one runs beyond the limit.
        """
        if place in self._nested and self._is_stuck(blocked):
            for pool in place.pools:
                pool.enter(place)
            self._held[place.call.id] = place
            self._start(place)
            return
        place.line = blocked.line_of(place)
        insort(place.line, place)

    def _is_stuck(self, pool: _Pool) -> bool:
        """Return whether every call with a place in a pool waits for an inner call that waits."""
        blocked = {outer for place in self._nested for outer in self._outer_places(place)}
        return all(holder in blocked for holder in self._held.values() if pool in holder.pools)

    def _start(self, place: _Place) -> None:
        place.line = None
        if place.future is not None:
            place.future.set_result(None)

    def _leave(self, place: _Place) -> None:
        """Give places back, and let those have them whose turn it is."""
        self._held.pop(place.call.id, None)
        for pool in place.pools:
            lender, inner = place.lenders.get(pool), place.lent.get(pool)
            if inner is not None:
                _pass_on(pool, place, inner, lender)
            elif lender is None:
                pool.leave(place)
            else:
                lender.lent = {other: borrower for other, borrower in lender.lent.items() if other is not pool}
        for pool in place.pools:
            self._serve(pool)

    def _serve(self, pool: _Pool) -> None:
        """Start those who wait for a pool, as long as there is room."""
        now = self._clock()
        while (place := pool.next(now)) is not None:
            pool.line_of(place).pop(0)
            self._try(place)
        if self._nested:
            for place in [place for place in pool.waiters() if place in self._nested]:
                if place.line is not None and self._lender(place, pool) is not None:
                    place.line.remove(place)
                    self._try(place)

    def _try(self, place: _Place) -> None:
        place.line = None
        blocked = self._take(place)
        if blocked is None:
            self._start(place)
        else:
            self._park(place, blocked)


def _pass_on(pool: _Pool, place: _Place, inner: _Place, lender: _Place | None) -> None:
    """Leave a place to an inner call that still runs in it."""
    if lender is None:
        inner.lenders = {other: outer for other, outer in inner.lenders.items() if other is not pool}
        pool.leave(place)
        pool.enter(inner)
    else:
        inner.lenders, lender.lent = {**inner.lenders, pool: lender}, {**lender.lent, pool: inner}
