"""Measure programs of agents: how fast a fresh run starts, what an inner call costs, and what a program saves.

Run it with the virtual environment of the checkout: `.venv/bin/python bench/code.py`. It needs bubblewrap.
"""

import argparse
import asyncio
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from callyard import RuntimeSettings, Yard, serve
from callyard.runtimes.runtime import GuestCall, Hooks, RunLimits
from callyard.runtimes.selection import Runtimes

_CALLS = 200
_ERA = "2026-07-28"
_PROGRAM = (
    "rows = []\nfor n in range(200):\n    rows.append((await tools.shop.get_order(number=n))['cents'])\nsum(rows)"
)
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
    return {
        "number": number,
        "cents": number * 10,
        "customer": "Ada Moreau",
        "state": "open",
        "items": ["tea", "cup"],
        "day": "2026-11-17",
    }


async def _nothing(_call: GuestCall) -> object:
    return None


def settings_of(backend: str) -> RuntimeSettings:
    """Return the settings that use one backend."""
    return RuntimeSettings(enabled=True, backend=backend)  # pyright: ignore[reportArgumentType] - a flag of this program


async def starts(backend: str, runs: int) -> None:
    """Print the median time of a fresh run, and of one inner call."""
    settings = settings_of(backend)
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
    settings = settings_of(backend)
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


class Session:
    """A client that sends one call after the other over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._meta: dict[str, object] = {
            "io.modelcontextprotocol/protocolVersion": _ERA,
            "io.modelcontextprotocol/clientCapabilities": {},
        }

    def call(self, name: str, arguments: dict[str, object]) -> str:
        """Return the body of a response."""
        params = {"name": name, "arguments": arguments, "_meta": self._meta}
        headers = {
            "MCP-Protocol-Version": _ERA,
            "Mcp-Method": "tools/call",
            "Mcp-Name": name,
            "Content-Type": "application/json",
        }
        headers["Accept"] = "application/json, text/event-stream"
        self._connection.request(
            "POST", "/mcp", json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}), headers
        )
        return self._connection.getresponse().read().decode()


def over_http(backend: str, rounds: int) -> None:
    """Print how long 200 calls over HTTP take by turns: one after another, and as one program."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    server = subprocess.Popen(  # noqa: S603 - this program
        [sys.executable, __file__, "--backend", backend, "--serve", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                Session(port).call("execute_code", {"code": "1"})
                break
            except OSError:
                time.sleep(0.1)
        session = Session(port)
        ratios: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            began = time.perf_counter()
            for n in range(_CALLS):
                session.call("get_order", {"number": n})
            direct = time.perf_counter() - began
            began = time.perf_counter()
            answer = session.call("execute_code", {"code": _PROGRAM})
            program = time.perf_counter() - began
            if "199000" not in answer:
                raise SystemExit(answer)
            ratios.append((program / direct, direct * 1000, program * 1000))
    finally:
        server.kill()
        server.wait()
    ratio, direct, program = sorted(ratios)[len(ratios) // 2]
    print(
        f"over HTTP: {direct:.0f} ms one by one, {program:.0f} ms as a program: {ratio:.2f} times (best "
        f"{min(ratios)[0]:.2f})"
    )


def serve_orders(backend: str, port: int) -> None:
    """Serve the tool of the comparison."""
    serve(Yard("shop", tools=[get_order], runtime=settings_of(backend)), transport="http", port=port)


_FLOODS = {
    "output": "while True: print('x' * 100_000)",
    "unread replies": (
        "import gc\nd = [t for t in gc.get_objects() if type(t).__name__ == 'Driver'][0]\n"
        "for n in range(900): d.pipe.send({'t': 'call', 'n': d.run_id, 'id': n, 'name': 'big', 'args': "
        "{}})\nwhile True: pass"
    ),
    "garbage": "import os\nwhile True:\n    for n in range(3, 12):\n        try: os.write(n, "
    "os.urandom(9999))\n        except OSError: 0",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: 0",
}


async def floods(backend: str) -> None:
    """Print how much memory guests that misbehave cost the host."""

    async def answer(_call: GuestCall) -> object:
        return "x" * (1 << 20)

    async with Runtimes(settings_of(backend)).open() as runtimes:
        await runtimes.run("1", None, RunLimits(), answer, hooks=Hooks())
        for name, code in _FLOODS.items():
            before = most = _resident_mb()
            running = asyncio.create_task(runtimes.run(code, None, RunLimits(seconds=2), answer, hooks=Hooks()))
            while not running.done():
                await asyncio.wait({running}, timeout=0.01)
                most = max(most, _resident_mb())
            print(f"flood of {name}: {most - before:.0f} MB more in the host")


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def crowd(backend: str, programs: int) -> None:
    """Print how long many programs at once take, and the memory of the server."""
    settings = settings_of(backend)
    async with Yard("shop", tools=[get_order], runtime=settings) as yard:
        await yard.call("execute_code", {"code": "1"})
        began = time.perf_counter()
        code = "(await tools.shop.get_order(number=1))['cents']"
        answers = await asyncio.gather(*(yard.call("execute_code", {"code": code}) for _ in range(programs)))
        spent = time.perf_counter() - began
    good = sum(answer.success for answer in answers)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{programs} programs at once: {good} finished in {spent:.1f} s, at most {memory:.0f} MB in the server")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one backend."""
    parser = argparse.ArgumentParser(description="Measure programs of agents.")
    parser.add_argument("--backend", default="bubblewrap", choices=("bubblewrap", "container", "wasm"))
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        serve_orders(options.backend, options.serve)
        return
    asyncio.run(starts(options.backend, options.runs))
    asyncio.run(savings(options.backend))
    asyncio.run(crowd(options.backend, 100))
    asyncio.run(floods(options.backend))
    over_http(options.backend, 11)


if __name__ == "__main__":
    main()
