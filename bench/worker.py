"""A worker process: prepares one path of one framework, and measures a batch of calls on request."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

__all__ = ["Bench", "Job", "has_three", "work"]


class Bench:
    """Gets every path of a job, and measures the selected one."""

    def __init__(self, wanted: str) -> None:
        self.labels: list[str] = []
        self._wanted = wanted

    async def __call__(
        self, label: str, call: Callable[[], Awaitable[Any]], check: Callable[[Any], bool] | None = None
    ) -> None:
        """Offer a path: `call` returns an awaitable, and `check` accepts its answer."""
        self.labels.append(label)
        if label == self._wanted:
            answer = await call()
            if check is not None and not check(answer):
                raise RuntimeError(f"'{label}' answered {answer!r}.")
            await _serve(call)


Job = Callable[[Bench, int], Coroutine[Any, Any, None]]
"""Offers paths, for a number of tools where that matters."""


def work(jobs: Mapping[str, Job]) -> None:
    """Run the job of the command line: its name, a number of tools, and the path; without a path, list the paths."""
    job, tools, wanted = jobs[sys.argv[1]], int(sys.argv[2]), sys.argv[3]
    _stay_on_one_core()
    bench = Bench(wanted)
    asyncio.run(job(bench, tools))
    if not wanted:
        print(json.dumps(bench.labels))


def has_three(answer: object) -> bool:
    """Return whether the answer contains a 3, the sum of one and two."""
    return "3" in str(answer)


async def _serve(call: Callable[[], Awaitable[Any]]) -> None:
    """Answer each number of calls with the CPU time of one in microseconds.

    Nothing else runs meanwhile, so reading may block.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        started = time.process_time_ns()
        for _ in range(count):
            await call()
        print((time.process_time_ns() - started) / count / 1000, flush=True)


def _stay_on_one_core() -> None:
    """Run on the core of all workers, so that other load affects all equally."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
