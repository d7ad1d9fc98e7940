"""Slots: how many programs run at one time, and which of them are frozen."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from callyard.runtimes.guest_runtime import GuestRuntime
from callyard.runtimes.host import RunClock
from callyard.runtimes.selection import Slot, Slots


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


def take(slots: Slots, runtime: FakeRuntime) -> Any:
    return slots.take("owner", cast("GuestRuntime", runtime), run_id="run")


async def settle() -> None:
    """Let every task go on as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_program_that_waits_is_frozen_before_another_takes_its_slot() -> None:
    slots, runtime = Slots(1), FakeRuntime()
    runtime.freezing.clear()
    async with take(slots, runtime) as slot:
        slot.pause()
        await settle()
        assert slots.free.locked(), "it still computes"
        assert slot.frozen_s == 0
        runtime.freezing.set()
        await settle()
        assert (runtime.done, slots.free.locked()) == (["freeze"], False)
        assert slot.frozen_s > 0


async def test_a_program_that_waits_starts_no_call_and_gets_no_answer() -> None:
    async with take(Slots(1), FakeRuntime()) as slot:
        go_on = slot.pause()
        ready = asyncio.create_task(slot.ready())
        await settle()
        assert not ready.done()
        go_on()
        await ready


async def test_a_clock_stands_still_until_the_program_has_a_slot_again_and_counts_the_wait_once() -> None:
    slots, runtime, expired = Slots(1), FakeRuntime(), list[Slot]()
    async with AsyncExitStack() as other, take(slots, runtime) as slot:
        go_on = slot.pause()
        await settle()
        await other.enter_async_context(take(slots, FakeRuntime()))
        go_on()
        clock = RunClock(0.1, lambda: slot.frozen_s, lambda: expired.append(slot))
        before = slot.frozen_s
        answers = [asyncio.create_task(slot.ready()) for _ in range(10)]
        await asyncio.sleep(0.3)  # longer than the program may run
        assert not any(answer.done() for answer in answers)
        await other.aclose()
        await asyncio.wait(answers)
        clock.stop()
        assert not expired
        assert 0.3 <= slot.frozen_s - before < 0.6
        assert clock.seconds < 0.1


async def test_a_program_that_cannot_be_frozen_keeps_its_slot_and_its_clock_goes_on() -> None:
    slots, runtime = Slots(1), FakeRuntime(can_freeze=False)
    async with take(slots, runtime) as slot:
        go_on = slot.pause()
        await settle()
        assert slots.free.locked()
        assert slot.frozen_s == 0
        go_on()
        await slot.ready()
    assert not slots.free.locked()


@pytest.mark.parametrize("pauses", [1, 2])
async def test_a_decision_that_comes_while_the_program_is_being_frozen_lets_it_go_on(pauses: int) -> None:
    slots, runtime = Slots(1), FakeRuntime()
    runtime.freezing.clear()
    async with take(slots, runtime) as slot:
        for _ in range(pauses):
            go_on = slot.pause()
            await settle()
            go_on()
        runtime.freezing.set()
        await slot.ready()
        assert slots.free.locked()
        assert runtime.done[-1] == "thaw"
        assert not slots.waiting.total()
    assert not slots.free.locked()


async def test_a_call_that_asks_while_the_program_queues_keeps_it_frozen() -> None:
    slots, runtime = Slots(1), FakeRuntime()
    async with take(slots, runtime) as slot:
        first = slot.pause()
        await settle()
        async with take(slots, FakeRuntime()):
            first()
            await settle()
            second = slot.pause()
        await settle()
        assert "thaw" not in runtime.done
        assert not slots.free.locked()
        second()
        await slot.ready()
        assert runtime.done[-1] == "thaw"


@pytest.mark.parametrize("decided", [False, True])
async def test_a_program_that_ends_while_it_is_frozen_gives_everything_back(*, decided: bool) -> None:
    slots = Slots(1)
    async with take(slots, FakeRuntime()) as slot:
        go_on = slot.pause()
        await settle()
        async with take(slots, FakeRuntime()):
            if decided:
                go_on()
                await settle()
            slot.end()
            await settle()
        assert not slots.free.locked()
        assert not slots.waiting.total()
    async with take(slots, FakeRuntime()):
        assert slots.free.locked()
