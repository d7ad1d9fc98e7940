"""Measure what the stores cost in wall time: a call that stores nothing, a handle, a job, and each operation.

Then measure the store in memory with many keys, and when it is full. With the URL of a Redis as its argument, measure
that, too; it keeps keys that begin with 'bench'.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tables import as_table

from callyard import Store, Yard, tool
from callyard.state.memory import MemoryStore
from callyard.state.redis import RedisStore
from callyard.state.sqlite import SqliteStore

_CALLS: Final = 2000
_CHARACTERS: Final = 60_000
_KEYS: Final = (1000, 50_000)
"""How many values and counters the store in memory has."""
_OWNERS: Final = 100
_LISTED: Final = (10, 1000)

Operation = Callable[[], Awaitable[Any]]


@tool(operation="query")
async def report() -> str:
    """Return a result that is large enough to be stored."""
    return "x" * _CHARACTERS


@tool(operation="query")
async def measure(text: str) -> int:
    """Count characters."""
    return len(text)


def _operations(yard: Yard, store: Store) -> dict[str, Operation]:
    return {
        "a call that stores nothing": lambda: yard.call("measure", {"text": "a"}),
        "a call that takes a handle": lambda: yard.call("measure", {"text": {"$ref": "r_1"}}),
        "read_result of a handle": lambda: yard.call("read_result", {"handle": "r_1", "limit": 100}),
        "a call whose result is stored": lambda: yard.call("report"),
        "get, 60 kB": lambda: store.get("large"),
        "put, 1 kB": lambda: store.put("small", b"x" * 1000),
        "compare_and_set, 1 kB": lambda: store.compare_and_set("small", b"x" * 1000, b"x" * 1000),
        "count": lambda: store.count("number"),
    }


async def _milliseconds(operation: Operation) -> list[float]:
    taken: list[float] = []
    for _ in range(_CALLS):
        started = time.perf_counter()
        await operation()
        taken.append((time.perf_counter() - started) * 1000)
    return taken


async def _milliseconds_of_jobs(yard: Yard) -> list[float]:
    """Return how long starting a job takes, without the job itself."""
    taken: list[float] = []
    for _ in range(_CALLS // 4):
        started = time.perf_counter()
        answer = await yard.call("run_tool", {"tool_id": "measure", "args": {"text": "a"}, "background": True})
        taken.append((time.perf_counter() - started) * 1000)
        await yard.jobs.wait(answer.data["job_id"], None, seconds=None)
    return taken


async def _microseconds_by_size(keys: int) -> list[list[str]]:
    """Return the mean time of each operation on a store in memory with so many values, each of 1 kB."""
    store, full, value = MemoryStore(), MemoryStore(max_bytes=keys * 1000), b"x" * 1000
    for number in range(keys):
        name = f"result/{number % _OWNERS}/r_{number}"
        await store.put(name, value, ttl=3600)
        await full.put(name, value, ttl=3600)
        await store.count(name, ttl=3600)
    numbers = iter(range(10 * _CALLS))
    operations: dict[str, Operation] = {
        "put, a new key": lambda: store.put(f"result/1/n_{next(numbers)}", value, ttl=3600),
        "put, the same key": lambda: store.put("result/1/same", value, ttl=3600),
        "put, a new key in a full store": lambda: full.put(f"result/1/n_{next(numbers)}", value, ttl=3600),
        "count": lambda: store.count("result/1/r_1", ttl=3600),
        "count, a new key": lambda: store.count(f"result/1/n_{next(numbers)}", ttl=3600),
        **{f"keys, {limit} of them": lambda limit=limit: store.keys("result/", limit=limit) for limit in _LISTED},
    }
    return [
        [label, str(keys), f"{statistics.mean(taken) * 1000:.1f}", f"{statistics.median(taken) * 1000:.1f}"]
        for label, operation in operations.items()
        for taken in [await _milliseconds(operation)]
    ]


async def main() -> None:
    lines: list[list[str]] = []
    with TemporaryDirectory() as folder:
        stores: dict[str, Store] = {"memory": MemoryStore(), "sqlite": SqliteStore(Path(folder) / "store.sqlite3")}
        if len(sys.argv) > 1:
            stores["redis"] = RedisStore(f"{sys.argv[1]}?prefix=bench{os.getpid()}")
        for name, store in stores.items():
            async with Yard(tools=[report, measure], store=store) as yard:
                stored = await yard.call("report")
                if stored.data["handle"] != "r_1":
                    raise RuntimeError(f"The result was answered with {stored.data!r}.")
                await store.put("large", b"x" * _CHARACTERS)
                operations = _operations(yard, store)
                stores_results = operations.pop(
                    "a call whose result is stored"
                )  # last, because it drops the oldest handles
                for label, operation in {**operations, "a call whose result is stored": stores_results}.items():
                    taken = await _milliseconds(operation)
                    p99 = statistics.quantiles(taken, n=100)[98]
                    lines.append([label, name, f"{statistics.median(taken):.3f}", f"{p99:.3f}"])
                taken = await _milliseconds_of_jobs(yard)
                p99 = statistics.quantiles(taken, n=100)[98]
                lines.append(["starting a job", name, f"{statistics.median(taken):.3f}", f"{p99:.3f}"])
    print(as_table(("what", "store", "median ms", "p99 ms"), lines))
    by_size = [line for keys in _KEYS for line in await _microseconds_by_size(keys)]
    print(as_table(("in memory", "keys", "mean µs", "median µs"), by_size))


if __name__ == "__main__":
    asyncio.run(main())
