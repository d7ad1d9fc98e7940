"""Signals: whatever ends the program, what is open is closed first."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from callyard.cli import main
from callyard.launch.signals import Terminated, run

Write = Callable[..., Path]

WAITS = """
import asyncio, sys, threading
from pathlib import Path
from callyard import Call, Yard

def started(call):
    session = call.start_session(kind="demo")
    session.on_end(lambda: Path("ended").write_text("well"))
    print("started", flush=True)

async def wait(call: Call) -> None:
    '''Wait for ever.'''
    started(call)
    await asyncio.Event().wait()

def block(call: Call) -> None:
    '''Wait for ever in a thread.'''
    call.wait(mark(call))
    threading.Event().wait()

async def mark(call: Call) -> None:
    started(call)

async def close_slowly(call: Call) -> None:
    '''Wait for ever, and close only when told.'''
    async def close():
        print("closing", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        Path("ended").write_text("well")
    call.start_session(kind="demo").on_end(close)
    print("started", flush=True)
    await asyncio.Event().wait()

yard = Yard(tools=[wait, block, close_slowly])
"""
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
from callyard.cli import main
sys.exit(main())
"""


def begin(tool: str) -> "subprocess.Popen[str]":
    program = [sys.executable, "-c", PROGRAM, "call", "app.py", tool, "--quiet"]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own


def next_line(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.mark.parametrize("tool", ["wait", "block"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_sessions_are_ended_when_the_program_is(tool: str, number: signal.Signals, status: int, write: Write) -> None:
    write(WAITS)
    with begin(tool) as process:
        assert next_line(process) == "started\n"
        process.send_signal(number)
        out, err = process.communicate()

    assert (process.returncode, out, err) == (status, "", "")
    assert Path("ended").read_text() == "well"


def test_ctrl_c_while_a_module_is_loaded_ends_the_program(write: Write) -> None:
    write("raise KeyboardInterrupt\n")

    assert main(["list", "app.py"]) == 130


def test_a_second_sigterm_does_not_interrupt_the_closing(write: Write) -> None:
    write(WAITS)
    with begin("close_slowly") as process:
        assert next_line(process) == "started\n"
        process.send_signal(signal.SIGTERM)
        assert next_line(process) == "closing\n"
        process.send_signal(signal.SIGTERM)
        process.communicate("go on\n")

    assert process.returncode == 143
    assert Path("ended").read_text() == "well"


def test_the_result_of_the_coroutine_is_returned() -> None:
    async def answer() -> int:
        return await asyncio.sleep(0, 7)

    assert run(answer()) == 7


def test_the_exception_of_the_coroutine_is_raised() -> None:
    async def fail() -> None:
        raise KeyError

    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    with pytest.raises(KeyError):
        run(fail())
    with pytest.raises(asyncio.CancelledError):
        run(cancel_itself())


def test_sigterm_ends_what_runs_and_the_old_handler_is_back() -> None:
    closed: list[str] = []

    async def wait() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            closed.append("well")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as ended:
        run(wait())

    assert ended.value.code == 143
    assert closed == ["well"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_coroutine_may_finish_after_sigterm() -> None:
    async def finish() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished"
        return "not reached"

    assert run(finish()) == "finished"


def test_other_threads_can_run_it_without_signals() -> None:
    answers: list[int] = []

    async def answer() -> int:
        return 7

    thread = threading.Thread(target=lambda: answers.append(run(answer())))
    thread.start()
    thread.join()

    assert answers == [7]


def test_a_task_that_swallows_its_cancellation_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("callyard.launch.signals._TIMEOUT_S", 0.05)
    ended: list[str] = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def obedient() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("well")

    tasks: list[asyncio.Task[None]] = []

    async def start() -> int:
        tasks.extend([asyncio.create_task(stubborn(), name="the stubborn one"), asyncio.create_task(obedient())])
        await asyncio.sleep(0)  # a turn of the loop, so that both begin
        return 7

    assert run(start()) == 7
    tasks[0]._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - it is thrown away as it is, and nobody need hear of it
    assert ended == ["well"]
    assert [record.message for record in caplog.records if "left_behind" in record.message] == [
        f"task_left_behind task='the stubborn one' of='{stubborn.__qualname__}'"
    ]
