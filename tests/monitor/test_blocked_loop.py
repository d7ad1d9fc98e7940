"""A thread sees a blocked event loop while it is blocked, and names the line; a process that stands still is not."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from callyard import Call, Yard, tool
from callyard.monitor.blocked_loop import LoopWatch

Until = Callable[[Callable[[], object]], Awaitable[None]]
STOPPED = """
import asyncio, sys
from callyard.monitor.blocked_loop import LoopWatch

async def main():
    watch = LoopWatch()
    with watch.open():
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.sleep(1)  # four looks of the thread
    print(len(watch.blocks))

asyncio.run(main())
"""


async def test_a_blocked_loop_is_named_by_its_line_while_it_is_blocked(
    until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    watch, seen, call_ids = LoopWatch(), list[bool](), list[str]()

    def hold() -> None:
        end = time.monotonic() + 60
        while not watch.blocks and time.monotonic() < end:
            time.sleep(0.01)  # this is what blocks
        seen.append(bool(watch.blocks))

    @tool(operation="query")
    async def blocking(call: Call, secret: str) -> str:
        """Block the loop."""
        call_ids.append(call.id)
        call.start_session(kind="demo")
        hold()
        return secret

    async with Yard(tools=[blocking]) as yard:
        with watch.open():
            await asyncio.sleep(0.5)  # two beats without a block
            await yard.call("blocking", {"secret": "hunter2"})
            await until(lambda: watch.blocks)
    (block,) = watch.blocks

    assert seen == [True]
    assert block.line.endswith(" in hold")
    assert [line.rpartition(" in ")[2] for line in block.stack[-2:]] == ["blocking", "hold"]
    assert (block.call_id, bool(block.session_id)) == (call_ids[0], True)
    assert "hunter2" not in f"{block} {caplog.text}"
    assert [line for line in caplog.messages if line.startswith("loop_blocked")]


async def test_a_block_of_one_second_is_named(until: Until) -> None:
    watch = LoopWatch()
    with watch.open():
        await asyncio.sleep(0.6)  # two beats, so that the block begins between them
        time.sleep(1.0)  # noqa: ASYNC251 - this is what blocks
        await until(lambda: watch.blocks)

    assert len(watch.blocks) == 1


async def test_code_that_holds_the_interpreter_is_named(until: Until) -> None:
    watch = LoopWatch()
    with watch.open():
        await asyncio.sleep(0.3)  # a beat
        took, numbers = 0.0, 10**6
        while took < 1.0:
            start = time.thread_time()
            sum(range(numbers))  # without a step of the interpreter
            took, numbers = time.thread_time() - start, numbers * 2
        await until(lambda: watch.blocks)


async def test_a_process_that_was_stopped_has_no_blocked_loop() -> None:
    process = subprocess.Popen(  # noqa: ASYNC220, S603 - our own program
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(2)  # it stands still for so long
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.readline() == "0\n"
