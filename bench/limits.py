"""Measure the limits of calls: the cost of queue, rates and budgets, and interactive calls beside queued ones."""

import asyncio
import statistics
import time
from typing import Any, Final

from tables import as_table

from callyard import BudgetSettings, Channel, QueueSettings, RateSettings, Rule, Yard, tool

_ROUNDS: Final = 5
_CALLS: Final = 4000
_MANY: Final = 10**9
_PARTS: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "queue": {"queue": QueueSettings(calls=64, per_tool=64, per_caller=64, per_source=64)},
    "rates": {"rates": RateSettings(calls=_MANY, per_caller=_MANY, per_tool=_MANY, burst=_MANY)},
    "budgets": {
        "budgets": BudgetSettings(session_calls=_MANY, session_tokens=_MANY, caller_calls=_MANY, caller_tokens=_MANY)
    },
}
_RULES: Final[list[Rule]] = [  # of twenty rules three match the tool, two of them only for other callers
    *(Rule(decision="deny", tools=(f"tool_{number}",)) for number in range(16)),
    Rule(decision="ask", operations=("destroy",)),  # pyright: ignore[reportArgumentType] - a text, as in a file
    *(Rule(decision="deny", tools=("add",), callers=(f"stranger_{number}",)) for number in range(2)),
    Rule(decision="allow", tools=("add",)),
]
_ALL: Final = {name: settings for part in _PARTS.values() for name, settings in part.items()}
_MEASURED: Final[dict[str, dict[str, Any]]] = {**_PARTS, "rules": {"rules": _RULES}, "all": {**_ALL, "rules": _RULES}}

_PLACES: Final = 16
_WAITING: Final = 500
_INTERACTIVE: Final = 400
_EVERY_S: Final = 0.005
_BACKGROUND: Final = Channel(name="bench", meta={"callyard/priority": "background"})


@tool(operation="query")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(operation="query")
async def look() -> None:
    """Take two milliseconds."""
    await asyncio.sleep(0.002)


@tool(operation="query")
async def report() -> None:
    """Take fifty milliseconds."""
    await asyncio.sleep(0.05)


async def _cpu_us(yard: Yard) -> float:
    """Return the CPU time of one call."""
    started = time.process_time()
    for _ in range(_CALLS):
        await yard.call("add", {"a": 1, "b": 2})
    return (time.process_time() - started) / _CALLS * 1e6


async def measure_cost() -> str:
    """Return a table of the CPU time of a call, with each part and with all; the yards take turns."""
    taken: dict[str, list[float]] = {}
    for _ in range(_ROUNDS + 1):  # the first one warms up
        for name, options in _MEASURED.items():
            async with Yard(tools=[add], metatools=False, **options) as yard:
                await yard.call("add", {"a": 1, "b": 2})
                taken.setdefault(name, []).append(await _cpu_us(yard))
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}
    lines = [[name, f"{median:.2f}", f"{median - medians['nothing']:+.2f}"] for name, median in medians.items()]
    return as_table(("limits", "CPU us a call", "more than without"), lines)


async def _keep_reporting(yard: Yard) -> None:
    while True:
        await yard.call("report", channel=_BACKGROUND)


async def _p95_ms(yard: Yard, waiting: int) -> float:
    """Return the 95th percentile of interactive calls, one every few milliseconds, while background calls wait."""
    loop = asyncio.get_running_loop()
    background = [asyncio.create_task(_keep_reporting(yard)) for _ in range(waiting + _PLACES if waiting else 0)]
    await asyncio.sleep(0.2)

    async def look_once(at: float) -> float:
        await asyncio.sleep(at - loop.time())
        started = time.perf_counter()
        answer = await yard.call("look")
        if not answer.success:
            raise RuntimeError(f"A call was answered with {answer!r}.")
        return (time.perf_counter() - started) * 1000

    begin = loop.time()
    taken = await asyncio.gather(*(look_once(begin + number * _EVERY_S) for number in range(_INTERACTIVE)))
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    return statistics.quantiles(taken, n=20)[18]


async def measure_queue() -> str:
    """Return a table of the 95th percentile of interactive calls, without and with background calls that wait."""
    alone: list[float] = []
    beside: list[float] = []
    async with Yard(tools=[look, report], queue=QueueSettings(calls=_PLACES)) as yard:
        for _ in range(_ROUNDS):
            alone.append(await _p95_ms(yard, 0))
            beside.append(await _p95_ms(yard, _WAITING))
    lines = [
        [str(waiting), f"{statistics.median(times):.2f}", f"{min(times):.2f} to {max(times):.2f}"]
        for waiting, times in ((0, alone), (_WAITING, beside))
    ]
    return as_table(("background calls that wait", "p95 ms, median of 5 runs", "all runs"), lines)


async def main() -> None:
    print(await measure_cost())
    print(await measure_queue())


if __name__ == "__main__":
    asyncio.run(main())
