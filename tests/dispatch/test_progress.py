import asyncio
import math
from collections.abc import Callable
from typing import Any, NoReturn, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callyard import Call, Channel, Yard, tool
from callyard.dispatch.progress import Progress, ProgressThrottle
from callyard.testing import connect


class FakeTimer:
    def __init__(self, when: float, run: Callable[[], None]) -> None:
        self.when = when
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """A loop whose time stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, run: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + seconds, run))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while due := sorted(
            (timer for timer in self.timers if not timer.cancelled and timer.when <= until),
            key=lambda timer: timer.when,
        ):
            self.timers.remove(due[0])
            self.now = due[0].when
            due[0].run()
        self.now = until


class Sent:
    """What went out, and when."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.notes: list[Progress] = []
        self.times: list[float] = []
        self.progress = ProgressThrottle(self._send, cast("asyncio.AbstractEventLoop", self.loop))

    def _send(self, note: Progress) -> None:
        self.notes.append(note)
        self.times.append(self.loop.now - 100)

    @property
    def done(self) -> list[float]:
        return [note.done for note in self.notes]

    def add(self, *done: float, own: bool = False) -> None:
        for one in done:
            self.progress.add(Progress(one), own=own)


@pytest.fixture
def sent() -> Sent:
    return Sent()


def test_a_note_goes_out_as_it_is(sent: Sent) -> None:
    note = Progress(1, 3, "one of three")
    sent.progress.add(note)

    assert sent.notes == [note]


def test_notes_only_grow(sent: Sent) -> None:
    sent.add(2, 2, 1, -5, 2.5, 2.5)

    assert sent.done == [2, 2.5]


@pytest.mark.parametrize("done", [math.nan, math.inf, -math.inf])
def test_a_note_that_is_no_number_is_dropped(sent: Sent, done: float) -> None:
    sent.add(done, 1)

    assert sent.done == [1]


def test_four_notes_go_out_at_once_and_then_four_a_second(sent: Sent) -> None:
    sent.add(*range(1, 11))
    assert sent.done == [1, 2, 3, 4]

    for _ in range(100):
        sent.loop.advance(0.05)
        sent.add(sent.done[-1] + 100)

    assert sent.times[:4] == [0, 0, 0, 0]
    steps = [later - earlier for earlier, later in zip(sent.times[3:], sent.times[4:], strict=False)]
    assert min(steps) >= 0.25 - 1e-6
    assert max(steps) <= 0.3
    assert len(sent.times) == pytest.approx(4 + 5 * 4, abs=4)


def test_of_the_notes_that_wait_only_the_last_goes_out(sent: Sent) -> None:
    sent.add(*range(1, 11))
    sent.loop.advance(0.3)

    assert sent.done == [1, 2, 3, 4, 10]


def test_a_pause_earns_another_burst_and_no_more(sent: Sent) -> None:
    sent.add(1, 2, 3, 4)
    sent.loop.advance(60)
    sent.add(*range(11, 20))

    assert sent.done == [1, 2, 3, 4, 11, 12, 13, 14]


def test_the_last_note_is_delivered_when_the_call_ends(sent: Sent) -> None:
    sent.add(*range(1, 8))
    sent.progress.close()
    sent.loop.advance(10)

    assert sent.done == [1, 2, 3, 4, 7]


def test_ending_without_a_note_that_waits_sends_nothing(sent: Sent) -> None:
    sent.progress.close()
    sent.add(1)
    sent.progress.close()

    assert sent.done == [1]


def test_a_timer_that_fires_with_nothing_to_send_sets_no_other(sent: Sent) -> None:
    sent.add(1, 2, 3, 4, 5)
    [timer] = sent.loop.timers
    sent.progress.close()
    timer.run()

    assert sent.done == [1, 2, 3, 4, 5]
    assert sent.loop.timers == [timer]


def test_after_twelve_notes_of_our_own_there_is_one_in_five_seconds(sent: Sent) -> None:
    for number in range(1, 101):
        sent.loop.advance(1)
        sent.add(number, own=True)

    assert sent.done[:12] == list(range(1, 13))
    late = [later - earlier for earlier, later in zip(sent.times[16:], sent.times[17:], strict=False)]
    assert late
    assert all(4.9 < pause < 5.1 for pause in late)
    sent.progress.close()
    assert sent.done[-1] == 100


@given(st.lists(st.tuples(st.floats(), st.floats(0, 2), st.booleans())))
def test_sent_progress_grows_and_ends_with_the_last_for_any_notes(steps: list[tuple[float, float, bool]]) -> None:
    sent = Sent()
    highest = -math.inf
    for done, pause, own in steps:
        sent.add(done, own=own)
        if math.isfinite(done) and done > highest:
            highest = done
        sent.loop.advance(pause)
    sent.progress.close()

    assert sent.done == sorted(set(sent.done))
    assert sent.done[-1:] == ([highest] if highest > -math.inf else [])
    for earlier, later in zip(sent.times, sent.times[5:], strict=False):
        if later != sent.times[-1]:  # the last is never held back
            assert later - earlier >= 0.25 - 1e-6


async def test_a_tool_tells_its_caller_how_far_it_is() -> None:
    @tool
    async def work(call: Call) -> int:
        """Work."""
        for number in range(1, 21):
            await call.progress(number, 20, f"step {number}")
        return 1

    async with connect(Yard(tools=[work])) as client:
        await client.call("work")

    assert [note.done for note in client.notes] == [1, 2, 3, 4, 20]
    assert client.notes[-1] == Progress(20, 20, "step 20")


async def test_a_tool_in_a_thread_tells_its_caller_how_far_it_is() -> None:
    @tool
    def work(call: Call) -> int:
        """Work."""
        call.progress(1)
        call.progress(2)
        return 1

    async with connect(Yard(tools=[work])) as client:
        await client.call("work")

    assert [note.done for note in client.notes] == [1, 2]


async def test_a_caller_that_wants_no_progress_costs_none() -> None:
    @tool
    async def work(call: Call) -> int:
        """Work."""
        await call.progress(1)
        return 1

    async with Yard(tools=[work]) as yard:
        answer = await yard.call("work")

    assert answer.success


async def test_a_failing_channel_does_not_fail_the_call(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def work(call: Call) -> int:
        """Work."""
        for number in range(10):
            await call.progress(number)
        return 1

    def broken(_: Progress) -> NoReturn:
        raise RuntimeError

    async with Yard(tools=[work]) as yard:
        answer = await yard.call("work", channel=Channel(progress=broken))

    assert answer.success
    assert caplog.text.count("door_failed") == 5


async def test_no_progress_is_sent_after_the_end_of_a_call() -> None:
    kept: list[Call] = []

    @tool
    async def work(call: Call) -> int:
        """Work."""
        kept.append(call)
        return 1

    async with connect(Yard(tools=[work])) as client:
        await client.call("work")
        await kept[0].progress(1)

    assert client.notes == []


def test_a_note_is_data() -> None:
    note: Any = Progress(1)

    assert (note.total, note.text) == (None, "")
    with pytest.raises(AttributeError):
        note.done = 2
