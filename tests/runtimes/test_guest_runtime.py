"""The runtime over guests: its sessions, and how it ends."""

import asyncio
import signal

import pytest
from backends import answer

from callyard.runtimes import guest_runtime
from callyard.runtimes.guest_runtime import GuestRuntime, Subprocess
from callyard.runtimes.host import Guest
from callyard.runtimes.process import Child
from callyard.runtimes.runtime import GuestCall, RunLimits, RuntimeBusyError, RuntimeMissingError


class Launcher(Subprocess):
    """Starts plain processes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.error: Exception | None = None
        self.is_closed = False

    async def launch(self, limits: RunLimits) -> Guest:
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return await super().launch(limits)

    async def close(self) -> None:
        self.is_closed = True


async def test_a_start_that_failed_without_a_listener_neither_stops_the_end_nor_the_next_start() -> None:
    launcher = Launcher()
    runtime = GuestRuntime(launcher)
    for session in ("kept", "again"):
        run = asyncio.create_task(runtime.run("1", None, RunLimits(), answer, session=session))
        await asyncio.sleep(0)
        run.cancel()
        await asyncio.wait({run})
    launcher.error = RuntimeMissingError("The engine is gone.")
    launcher.go_on.set()
    await asyncio.sleep(0.01)
    launcher.error = None
    assert (await runtime.run("1", None, RunLimits(), answer, session="again")).value == 1
    await runtime.close()
    assert launcher.is_closed


async def test_the_end_waits_for_runs_whose_guests_start_and_run() -> None:
    started = asyncio.Event()

    async def wait(_call: GuestCall) -> object:
        started.set()
        await asyncio.sleep(60)

    launcher = Launcher()
    launcher.go_on.set()
    runtime = GuestRuntime(launcher)
    running = asyncio.create_task(runtime.run("await call_tool('x')", None, RunLimits(), wait, session="a"))
    await started.wait()
    launcher.go_on.clear()
    starting = [
        asyncio.create_task(runtime.run("1", None, RunLimits(), answer, session=session)) for session in ("", "b")
    ]
    await asyncio.sleep(0)
    closing = asyncio.create_task(runtime.close())
    result = await running
    assert result.failure is not None
    assert result.failure.kind == "cancelled"
    assert not launcher.is_closed
    launcher.go_on.set()
    await closing
    assert launcher.is_closed
    for run in (*starting, runtime.run("1", None, RunLimits(), answer)):
        with pytest.raises(RuntimeMissingError):
            await run


async def test_a_session_beyond_the_last_one_is_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest_runtime, "_SESSIONS", 1)
    launcher = Launcher()
    launcher.go_on.set()
    runtime = GuestRuntime(launcher)
    await runtime.run("1", None, RunLimits(), answer, session="a")
    with pytest.raises(RuntimeBusyError):
        await runtime.run("1", None, RunLimits(), answer, session="b")
    await runtime.end_session("a")
    assert (await runtime.run("1", None, RunLimits(), answer, session="b")).value == 1
    await runtime.close()


async def test_an_error_of_the_system_refuses_one_run() -> None:
    launcher = Launcher()
    launcher.go_on.set()
    launcher.error = OSError(24, "Too many open files")
    runtime = GuestRuntime(launcher)
    for session in ("", "a"):
        with pytest.raises(RuntimeBusyError):
            await runtime.run("1", None, RunLimits(), answer, session=session)
    await runtime.close()


async def test_a_guest_that_is_frozen_while_its_program_ends_runs_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher()
    launcher.go_on.set()
    runtime = GuestRuntime(launcher)
    freezing: list[asyncio.Task[bool]] = []
    has_begun, may_stop = asyncio.Event(), asyncio.Event()
    send_signal = Child.send_signal

    async def slowly(child: Child, number: int) -> bool:
        if number == signal.SIGSTOP:
            has_begun.set()
            await may_stop.wait()
        return await send_signal(child, number)

    async def freeze(_call: GuestCall) -> object:
        freezing.append(asyncio.create_task(runtime.freeze("mine")))
        await has_begun.wait()
        asyncio.get_running_loop().call_later(0.1, may_stop.set)  # when the program has ended
        return None

    monkeypatch.setattr(Child, "send_signal", slowly)
    limits = RunLimits(seconds=5)
    first = await runtime.run("x = 1\nawait call_tool('freeze')", None, limits, freeze, run_id="mine", session="one")
    await asyncio.wait(freezing)
    second = await runtime.run("x + 1", None, limits, answer, session="one")
    await runtime.close()

    assert (first.failure, second.failure, second.value) == (None, None, 2)
