"""Measure programs of agents: how fast a fresh run starts, what an inner call costs, and what a program saves.

Run it with the virtual environment of the checkout: `.venv/bin/python bench/code.py`. It needs bubblewrap.
"""

import argparse
import asyncio
import resource
import statistics
import time
from collections.abc import Sequence

from toolyard import RuntimeSettings, Yard
from toolyard.runtimes.runtime import GuestCall, Hooks, RunLimits
from toolyard.runtimes.selection import Runtimes

_CALLS = 200
_PROGRAM = "rows = []\nfor n in range(200):\n    rows.append((await tools.shop.get_order(number=n))['cents'])\nsum(rows)"
_ROUND_TRIPS = """
import time
times = []
for n in range(500):
    began = time.perf_counter()
    await call_tool('x')
    times.append(time.perf_counter() - began)
sorted(times)[250] * 1e6
"""


async def get_order(number: int) -> dict[str, object]:
    """Return an order."""
    return {"number": number, "cents": number * 10, "customer": "Ada Moreau", "state": "open", "items": ["tea", "cup"], "day": "2026-11-17"}


async def _nothing(_call: GuestCall) -> object:
    return None


async def starts(backend: str, runs: int) -> None:
    """Print the median time of a fresh run, and of one inner call."""
    settings = RuntimeSettings(enabled=True, backend=backend)  # pyright: ignore[reportArgumentType] - a flag of this program
    async with Runtimes(settings).open() as runtimes:
        await runtimes.selected()
        times: list[float] = []
        for _ in range(runs):
            began = time.perf_counter()
            await runtimes.run("1", None, RunLimits(), _nothing, hooks=Hooks())
            times.append(time.perf_counter() - began)
            if backend == "container":
                await asyncio.sleep(1)  # the pool is filled again
        calls, _ = await runtimes.run(_ROUND_TRIPS, None, RunLimits(), _nothing, hooks=Hooks())
    middle, best = statistics.median(times) * 1000, min(times) * 1000
    print(f"{backend}: a fresh run takes {middle:.1f} ms (best {best:.1f}), an inner call {calls.value:.0f} us")


async def savings(backend: str) -> None:
    """Print what 200 calls cost in tokens and time, one by one and as one program."""
    settings = RuntimeSettings(enabled=True, backend=backend)  # pyright: ignore[reportArgumentType] - a flag of this program
    async with Yard("shop", tools=[get_order], runtime=settings) as yard:
        await yard.call("execute_code", {"code": "1"})
        began = time.perf_counter()
        direct = [await yard.call("get_order", {"number": n}) for n in range(_CALLS)]
        direct_s = time.perf_counter() - began
        began = time.perf_counter()
        program = await yard.call("execute_code", {"code": _PROGRAM})
        program_s = time.perf_counter() - began
    asked = sum(len('{"name":"get_order","arguments":{"number":100}}') / 4 for _ in direct)
    tokens = sum(answer.meta.estimated_tokens for answer in direct) + asked
    cost = program.meta.estimated_tokens + len(_PROGRAM) / 4
    print(f"{_CALLS} calls: {tokens:.0f} tokens one by one, {cost:.0f} as a program: 1/{tokens / cost:.0f}")
    print(f"in one process: {direct_s * 1000:.0f} ms one by one, {program_s * 1000:.0f} ms as a program")


async def crowd(backend: str, programs: int) -> None:
    """Print how long many programs at once take, and the memory of the server."""
    settings = RuntimeSettings(enabled=True, backend=backend)  # pyright: ignore[reportArgumentType] - a flag of this program
    async with Yard("shop", tools=[get_order], runtime=settings) as yard:
        await yard.call("execute_code", {"code": "1"})
        began = time.perf_counter()
        code = "(await tools.shop.get_order(number=1))['cents']"
        answers = await asyncio.gather(*(yard.call("execute_code", {"code": code}) for _ in range(programs)))
        spent = time.perf_counter() - began
    good = sum(answer.success for answer in answers)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{programs} programs at once: {good} finished in {spent:.1f} s, at most {memory:.0f} MB in the server")


async def main(argv: Sequence[str] | None = None) -> None:
    """Measure one backend."""
    parser = argparse.ArgumentParser(description="Measure programs of agents.")
    parser.add_argument("--backend", default="bubblewrap", choices=("bubblewrap", "container", "wasm"))
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args(argv)
    await starts(options.backend, options.runs)
    await savings(options.backend)
    await crowd(options.backend, 100)


if __name__ == "__main__":
    asyncio.run(main())
