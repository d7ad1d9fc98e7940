"""A worker process: measures one framework in its own environment and prints one line of JSON, microseconds by path."""

import asyncio
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

__all__ = ["Bench", "Job", "cpu_of", "has_three", "work"]

_BATCHES: Final = 5
_WARM: Final = 100


class Bench:
    """Measures paths, each a function that returns something to await."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.found: dict[str, float] = {}

    async def __call__(self, label: str, call: Callable[[], Awaitable[Any]], check: Callable[[Any], bool] | None = None) -> None:
        """Measure a path: the median of a few batches of calls, after one that was checked."""
        first = await call()
        if check is not None and not check(first):
            raise RuntimeError(f"'{label}' answered {first!r}.")
        for _ in range(min(_WARM, self.calls)):
            await call()
        gc.collect()
        self.found[label] = statistics.median([await self._batch(call) for _ in range(_BATCHES)])

    async def _batch(self, call: Callable[[], Awaitable[Any]]) -> float:
        started = time.process_time_ns()
        for _ in range(self.calls):
            await call()
        return (time.process_time_ns() - started) / self.calls / 1000


Job = Callable[[Bench, int], Coroutine[Any, Any, None]]
"""Measures something for a number of tools, which some jobs need and some do not."""


def work(jobs: Mapping[str, Job]) -> None:
    """Do the job that the command line names: its name, how many calls, how many tools."""
    name, calls, tools = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _stay_on_one_core()
    bench = Bench(calls)
    asyncio.run(jobs[name](bench, tools))
    print(json.dumps(bench.found))


async def cpu_of(action: Callable[[], Awaitable[object]]) -> float:
    """Return the microseconds of CPU time that something takes, once."""
    gc.collect()
    started = time.process_time_ns()
    await action()
    return (time.process_time_ns() - started) / 1000


def has_three(answer: object) -> bool:
    """Return whether the sum of one and two is somewhere in the answer."""
    return "3" in str(answer)


def _stay_on_one_core() -> None:
    """Run where all other workers run, so that a busy neighbour hits all alike."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
