"""Killing: what is lost with an upstream is said truthfully, and nothing of it is left behind."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from fronts import opened, refusal, until

from callyard.providers.upstream.settings import UpstreamSettings

BAD: Final = Path(__file__).parent.parent / "servers" / "bad_server.py"
CYCLES: Final = 200


def ours() -> tuple[set[str], int, int]:
    """Return the processes that are ours, and how many descriptors and tasks."""
    itself = Path("/proc/self")
    children = {child for thread in (itself / "task").iterdir() for child in (thread / "children").read_text().split()}
    return children, len(list((itself / "fd").iterdir())), len(asyncio.all_tasks())


async def test_a_server_killed_during_calls_fails_them_and_the_next_call_works(
    tmp_path: Path, sdk_servers: Any
) -> None:
    process, url = sdk_servers.start()
    keys = [uuid4().hex for _ in range(50)]
    async with opened(tmp_path, shed=UpstreamSettings(url=url)) as (yard, _):
        calls = [asyncio.create_task(yard.call("shed__wait_for_ever", {"key": key})) for key in keys]
        for key in keys:
            assert (await yard.call("shed__was_started", {"key": key})).success
        process.kill()
        async with asyncio.timeout(60):
            errors = [refusal(answer) for answer in await asyncio.gather(*calls)]
        process.wait()
        sdk_servers.start(int(url.split(":")[2].split("/")[0]))
        again = await yard.call("shed__add", {"a": 2, "b": 3})

    assert {(error.code, error.may_have_run, error.retryable) for error in errors} == {
        ("upstream_unavailable", True, False)
    }
    assert (again.success, again.data) == (True, {"result": 5})


@pytest.mark.skipif(sys.platform != "linux", reason="What a process has is looked up in '/proc'.")
async def test_two_hundred_cycles_of_start_call_kill_and_reload_leave_nothing_behind(tmp_path: Path) -> None:
    settings = UpstreamSettings(command=sys.executable, args=("-I", "-S", str(BAD), "well"))
    async with opened(tmp_path, bad=settings):
        pass
    before = ours()
    seen: set[int] = set()
    for _ in range(CYCLES):
        async with opened(tmp_path, bad=settings) as (yard, upstreams):
            pid = int((await yard.call("bad__pid")).data)
            seen.add(pid)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: upstreams["bad"].status().state != "ready")

    assert len(seen) == CYCLES
    assert ours() == before
