"""The limiter of a yard: budgets, rates and the queue, in this order, for each call."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from callyard.dispatch.call import Call, Release
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.registry import Registry
from callyard.model.limits import Limits
from callyard.model.profile import METATOOLS
from callyard.policy.budgets import Budgets
from callyard.policy.queue import CallQueue
from callyard.policy.rates import Rates
from callyard.policy.settings import LoadSettings
from callyard.state.store import Clock, Store

__all__ = ["CallLimiter"]


def _nothing() -> None:
    """Release nothing."""


class CallLimiter:
    """Makes calls pass the budgets, the rates and the queue; each of them may be missing.

    Metatools take no place in the queue: one may wait for a job that needs it. Those that only run other tools, such as `run_tool`
    and `run_chain`, count as no calls either: their inner calls do.
    """

    def __init__(self, settings: LoadSettings, limits: Limits, *, store: Store, registry: Registry, clock: Clock = time.monotonic) -> None:
        self._registry = registry
        self._queue: Final = CallQueue(settings.queue, limits, clock=clock) if settings.queue.is_set else None
        self._rates: Final = Rates(settings.rates, clock=clock) if settings.rates.is_set else None
        self._budgets: Final = Budgets(settings.budgets, store, clock=clock) if settings.budgets.is_set else None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Write budgets while the context is open, and on leaving."""
        if self._budgets is None:
            yield
            return
        async with self._budgets.open():
            yield

    def observe(self, dispatcher: Dispatcher) -> None:
        """Count the tokens of answers, if there is a budget for them."""
        if self._budgets is not None and self._budgets.counts_tokens:
            dispatcher.observe(self._budgets)

    async def __call__(self, call: Call) -> Release:
        """Wait until a call may run.

        Raises:
            ToolError: It may not, and has not run.
        """
        is_metatool = call.spec.source == METATOOLS
        counts = not is_metatool or not self._wraps(call)
        budgets, queue = self._budgets, self._queue
        if budgets is not None:
            while not budgets.spend(call, counts=counts):
                await budgets.read(call)
        if not counts:
            return _nothing
        try:
            if self._rates is not None:
                self._rates.take(call)
            if queue is None or is_metatool:
                return _nothing
            release = queue.enter(call)  # without a coroutine if there is room, which is nearly always
            return await queue.wait(call) if release is None else release
        except BaseException:
            if budgets is not None:
                budgets.give_back(call)
            raise

    async def resume(self, call: Call) -> Release:
        """Wait again for the places of a call that gave them up while it waited for somebody; it is not counted again."""
        return _nothing if self._queue is None or call.spec.source == METATOOLS else await self._queue.resume(call)

    def _wraps(self, call: Call) -> bool:
        """Return whether a call is of a metatool that runs others."""
        tool = self._registry.get(call.spec.name)
        return tool is not None and tool.wraps
