"""The limiter of a yard: budgets, rates and the queue, in this order, for each call."""

from collections.abc import Callable
from typing import Final

from toolyard.dispatch.call import Call, Release
from toolyard.policy.budgets import Budgets
from toolyard.policy.queue import CallQueue
from toolyard.policy.rates import Rates

__all__ = ["CallLimiter"]


def _nothing() -> None:
    """Release nothing."""


class CallLimiter:
    """Makes calls pass the budgets, the rates and the queue; each of them may be missing.

    A tool that only runs others, such as `run_tool` or `run_chain`, takes no place and counts as no call: its inner calls do.
    """

    def __init__(
        self, *, wraps: Callable[[str], bool], queue: CallQueue | None = None, rates: Rates | None = None, budgets: Budgets | None = None
    ) -> None:
        self._wraps = wraps
        self._queue: Final = queue
        self._rates: Final = rates
        self._budgets: Final = budgets

    async def __call__(self, call: Call) -> Release:
        """Wait until a call may run.

        Raises:
            ToolError: It may not, and has not run.
        """
        counts = not self._wraps(call.spec.name)
        if self._budgets is not None:
            await self._budgets.spend(call, counts=counts)
        if not counts:
            return _nothing
        try:
            if self._rates is not None:
                self._rates.take(call)
            return _nothing if self._queue is None else await self._queue.enter(call)
        except BaseException:
            if self._budgets is not None:
                self._budgets.give_back(call)
            raise

    async def resume(self, call: Call) -> Release:
        """Take back the places of a call that gave them up while it waited for somebody; it counts no second time."""
        return _nothing if self._queue is None or self._wraps(call.spec.name) else await self._queue.enter(call, resumes=True)
