import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from callyard_browser.processes import children, is_running, users_of
from page_server import Site, failure, needs_chromium, open_browser, runs_in

pytestmark = needs_chromium

KILLS = int(os.environ.get("KILLS", "10"))
PROGRAM = Path(__file__).parent / "support" / "kept_server.py"


async def gone(pids: Iterable[int]) -> float:
    """Wait until processes have ended, and return how many seconds that took."""
    started = time.monotonic()
    async with asyncio.timeout(60):
        while any(is_running(pid) for pid in pids):  # noqa: ASYNC110 - the process of another parent has no event
            await asyncio.sleep(0.02)
    return time.monotonic() - started


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def main_of(pids: Iterable[int]) -> int:
    """Return the first process of a browser, which started the others."""
    return min(pids)


async def start_server(folder: Path) -> tuple["subprocess.Popen[bytes]", dict[str, list[int]]]:
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parent)}
    command = [sys.executable, str(PROGRAM), str(folder)]
    server = await asyncio.to_thread(
        subprocess.Popen, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert server.stdout is not None
    line = await asyncio.to_thread(server.stdout.readline)
    return server, json.loads(line)


async def kill_server(folder: Path, *, driver_too: bool) -> float:
    """Kill a server, and perhaps its driver at the same time; return when the last of its processes was gone."""
    server, pids = await start_server(folder)
    try:
        kill([server.pid, *(pids["driver"] if driver_too else [])])
        return await gone([*pids["driver"], *pids["browser"], *users_of(folder)])
    finally:
        kill([server.pid])
        await asyncio.to_thread(server.communicate)


async def kill_inside(browser: Any, folder: Path, victim: str) -> float:
    """Kill the driver or the browser of a living yard, and check what its agent is told."""
    before = users_of(folder)
    launched = await browser.launch()
    mine = users_of(folder) - before
    driver = children(os.getpid())
    kill(driver if victim == "driver" else [main_of(mine)])
    seconds = await gone([*mine, *(driver if victim == "driver" else [])])
    answer = await browser.try_to("snapshot")
    assert failure(answer) == ("not_running", "browser_gone"), (victim, answer.error)
    assert failure(await browser.try_to("snapshot"))[0] == "not_running"
    assert launched["tab"] == "t1"
    return seconds


async def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    slowest = {"server": 0.0, "server and driver": 0.0, "driver": 0.0, "browser": 0.0}
    for _ in range(max(1, KILLS // 4)):
        for both in (False, True):
            name = "server and driver" if both else "server"
            slowest[name] = max(slowest[name], await kill_server(tmp_path, driver_too=both))
    assert runs_in(tmp_path)  # a killed server could not remove it
    async with open_browser(tmp_path) as browser:
        assert len(runs_in(tmp_path)) == 1
        for _ in range(max(1, KILLS // 4)):
            for victim in ("driver", "browser"):
                slowest[victim] = max(slowest[victim], await kill_inside(browser, tmp_path, victim))
        await browser.launch()
    sys.stdout.write(f"slowest end after a kill: {slowest}\n")

    assert users_of(tmp_path) == set()
    assert runs_in(tmp_path) == []


async def test_a_stopped_browser_is_ended_with_its_session(site: Site, tmp_path: Path) -> None:
    url = site.page("<button>Go</button>")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        pids = users_of(tmp_path)
        kill(pids, signal.SIGSTOP)
        answer = await browser.try_to("snapshot")
        await browser.do("stop")
        left = [pid for pid in pids if is_running(pid)]

    assert failure(answer) == ("timeout", "page_hung")
    assert left == []
