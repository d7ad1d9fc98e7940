"""Turns: how many programs run at one time, and which of them are frozen."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from toolyard.runtimes.run_state import RunClock
from toolyard.runtimes.runtime import Runtime
from toolyard.runtimes.turns import Turn, Turns


class FakeRuntime:
    """A runtime whose guests note what happens to them."""

    def __init__(self, *, can_freeze: bool = True) -> None:
        self.can_freeze = can_freeze
        self.done: list[str] = []
        self.freezing = asyncio.Event()
        self.freezing.set()

    def cancel(self, _run_id: str) -> bool:
        self.done.append("cancel")
        return True

    async def freeze(self, _run_id: str) -> bool:
        await self.freezing.wait()
        self.done.append("freeze")
        return self.can_freeze

    async def thaw(self, _run_id: str) -> None:
        self.done.append("thaw")


def take(turns: Turns, runtime: FakeRuntime) -> Any:
    return turns.take("owner", cast("Runtime", runtime), run_id="run")


async def settle() -> None:
    """Let every task go on as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_program_that_waits_is_frozen_before_another_takes_its_place() -> None:
    turns, runtime = Turns(1), FakeRuntime()
    runtime.freezing.clear()
    async with take(turns, runtime) as turn:
        turn.pause()
        await settle()
        assert turns.free.locked(), "it still computes"
        assert turn.frozen_s == 0
        runtime.freezing.set()
        await settle()
        assert (runtime.done, turns.free.locked()) == (["freeze"], False)
        assert turn.frozen_s > 0


async def test_a_program_that_waits_starts_no_call_and_gets_no_answer() -> None:
    async with take(Turns(1), FakeRuntime()) as turn:
        go_on = turn.pause()
        ready = asyncio.create_task(turn.ready())
        await settle()
        assert not ready.done()
        go_on()
        await ready


async def test_a_clock_stands_still_until_the_program_has_a_place_again_and_counts_the_wait_once() -> None:
    turns, runtime, expired = Turns(1), FakeRuntime(), list[Turn]()
    async with AsyncExitStack() as other, take(turns, runtime) as turn:
        go_on = turn.pause()
        await settle()
        await other.enter_async_context(take(turns, FakeRuntime()))
        go_on()
        clock = RunClock(0.1, lambda: turn.frozen_s, lambda: expired.append(turn))
        before = turn.frozen_s
        answers = [asyncio.create_task(turn.ready()) for _ in range(10)]
        await asyncio.sleep(0.3)  # longer than the program may run
        assert not any(answer.done() for answer in answers)
        await other.aclose()
        await asyncio.wait(answers)
        clock.stop()
        assert not expired
        assert 0.3 <= turn.frozen_s - before < 0.6
        assert clock.seconds < 0.1


async def test_a_program_that_cannot_be_frozen_keeps_its_place_and_its_clock_goes_on() -> None:
    turns, runtime = Turns(1), FakeRuntime(can_freeze=False)
    async with take(turns, runtime) as turn:
        go_on = turn.pause()
        await settle()
        assert turns.free.locked()
        assert turn.frozen_s == 0
        go_on()
        await turn.ready()
    assert not turns.free.locked()


@pytest.mark.parametrize("pauses", [1, 2])
async def test_a_decision_that_comes_while_the_program_is_being_frozen_lets_it_go_on(pauses: int) -> None:
    turns, runtime = Turns(1), FakeRuntime()
    runtime.freezing.clear()
    async with take(turns, runtime) as turn:
        for _ in range(pauses):
            go_on = turn.pause()
            await settle()
            go_on()
        runtime.freezing.set()
        await turn.ready()
        assert turns.free.locked()
        assert runtime.done[-1] == "thaw"
        assert not turns.waiting.total()
    assert not turns.free.locked()


async def test_a_call_that_asks_while_the_program_queues_keeps_it_frozen() -> None:
    turns, runtime = Turns(1), FakeRuntime()
    async with take(turns, runtime) as turn:
        first = turn.pause()
        await settle()
        async with take(turns, FakeRuntime()):
            first()
            await settle()
            second = turn.pause()
        await settle()
        assert "thaw" not in runtime.done
        assert not turns.free.locked()
        second()
        await turn.ready()
        assert runtime.done[-1] == "thaw"


@pytest.mark.parametrize("decided", [False, True])
async def test_a_program_that_ends_while_it_is_frozen_gives_everything_back(*, decided: bool) -> None:
    turns = Turns(1)
    async with take(turns, FakeRuntime()) as turn:
        go_on = turn.pause()
        await settle()
        async with take(turns, FakeRuntime()):
            if decided:
                go_on()
                await settle()
            turn.end()
            await settle()
        assert not turns.free.locked()
        assert not turns.waiting.total()
    async with take(turns, FakeRuntime()):
        assert turns.free.locked()
