"""Measures a watcher over 1,000 targets a minute: the share of a core that it takes, and its memory.

The targets are one server of the tests in a process of its own, at as many loopback addresses. Run it as
`python bench/watch.py [TARGETS] [SECONDS]` with the Python of this checkout.
"""

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from callyard.config.probes import ProbeTable
from callyard.monitor.incidents import Incidents
from callyard.probe import Target
from callyard.probe.watch import Watch
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.state.sqlite import SqliteStore

ROOT = Path(__file__).parent.parent
EVERY = 60.0
WARM_UP = 5.0
SERVER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from failing_server import HttpServer
async def main():
    server = HttpServer("well", "2026", lambda: "")
    server.requests = type("Nothing", (), {"append": lambda self, line: None})()
    listener = await asyncio.start_server(server.serve, "0.0.0.0", 0, backlog=1024)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await listener.serve_forever()
asyncio.run(main())
"""


def targets(number: int, port: int, folder: Path) -> list[Target]:
    """Return targets at loopback addresses of their own."""
    return [
        Target(
            name=f"target{one}",
            settings=UpstreamSettings(url=f"http://127.1.{one // 250}.{one % 250 + 1}:{port}/mcp"),
            folder=folder / str(one),
            checks=ProbeTable(),
        )
        for one in range(number)
    ]


async def measure(number: int, seconds: float, port: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = SqliteStore(folder / "store.sqlite3")
        watch = Watch(
            targets(number, port, folder),
            Incidents(store, scope="bench", lasting=True),
            store,
            name="bench",
            every=EVERY,
        )
        async with watch.open():
            await asyncio.sleep(WARM_UP)  # modules are loaded, and the probes are spread
            cpu, wall = time.process_time(), time.monotonic()
            before = sum(len(state.samples) for _, state in watch.targets.values())
            await asyncio.sleep(seconds)
            cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            probes = sum(len(state.samples) for _, state in watch.targets.values()) - before
            failed = sum(state.failures > 0 for _, state in watch.targets.values())
        await store.close()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    share, each = cpu / wall, cpu / max(probes, 1) * 1000
    print(f"{number} targets: {probes} probes in {wall:.0f} s, {failed} targets failed at the end")
    print(f"{share:.1%} of a core, {each:.2f} ms a probe, {memory:.0f} MB at most")
    print(f"at {number} probes a minute: {each * number / 60_000:.1%} of a core")


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    command = [sys.executable, "-c", SERVER, str(ROOT / "tests" / "probe")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own program
        try:
            assert server.stdout is not None  # noqa: S101 - it is a pipe
            asyncio.run(measure(number, seconds, int(server.stdout.readline())))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
