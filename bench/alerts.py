"""What the rules about real calls cost each call: the same calls in one process, in turns with and without them.

    python bench/alerts.py [ROUNDS] [CALLS]

Metrics are counted in both cases, because a server counts them anyway. The CPU time is that of the whole process, with
the thread that watches the loop and the judgements once a second. Calls come to many tools, a hundredth of them fails.
"""

import asyncio
import logging
import statistics
import sys
import time
from contextlib import AsyncExitStack
from typing import Final

from callyard import ToolError, Yard, tool
from callyard.config import read_config
from callyard.launch.alerts import Alerts
from callyard.launch.notices import Notices
from callyard.monitor import Metrics

_TOOLS: Final = 100
_FAILING: Final = 100


def _yard() -> Yard:
    def make(number: int) -> object:
        @tool(name=f"tool_{number}", operation="query")
        async def one(value: int) -> int:
            """Return the value."""
            if value % _FAILING == 0:
                raise ToolError("upstream_error", "No.")
            return value

        return one

    return Yard("bench", tools=[make(number) for number in range(_TOOLS)])


async def _measure(calls: int, *, judged: bool) -> float:
    """Return the CPU time of a call in microseconds."""
    yard, metrics = _yard(), Metrics()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(yard)
        yard.add_sink(metrics)
        if judged:
            config = read_config({"alerts.enabled": "true"}, environment={})
            await stack.enter_async_context(Alerts(yard, config, Notices(), metrics).open())
        for number in range(1000):
            await yard.call(f"tool_{number % _TOOLS}", {"value": number})
        start = time.process_time()
        for number in range(calls):
            await yard.call(f"tool_{number % _TOOLS}", {"value": number})
            if number % 100 == 0:
                await asyncio.sleep(0)  # as a server does, so that the timers of the rules run
        return (time.process_time() - start) / calls * 1e6


async def _main(rounds: int, calls: int) -> None:
    logging.disable()
    without, judged = list[float](), list[float]()
    for _ in range(rounds):
        without.append(await _measure(calls, judged=False))
        judged.append(await _measure(calls, judged=True))
    differences = [one - other for one, other in zip(judged, without, strict=True)]
    print(f"without {statistics.median(without):.2f} µs, with {statistics.median(judged):.2f} µs")
    print(
        f"cost {statistics.median(differences):+.2f} µs a call, from {min(differences):+.2f} to {max(differences):+.2f}"
    )


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    asyncio.run(_main(*(given + [5, 100_000][len(given) :])))
