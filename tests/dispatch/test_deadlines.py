import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from callyard import Call, Limits, Yard, tool
from callyard.dispatch.call import Channel
from callyard.dispatch.deadlines import Deadlines
from callyard.dispatch.run import run_of
from callyard.model.elicitation import ClientRequest
from callyard.testing import FakeSink


async def test_a_deadline_cancels_an_async_handler() -> None:
    cleaned = asyncio.Event()

    @tool(timeout=0.01)
    async def wait() -> int:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return 1

    async with Yard(tools=[wait]) as yard:
        answer = await yard.call("wait")

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("timeout", True)
    assert cleaned.is_set()


async def test_no_deadline_is_kept_where_the_tool_wants_none() -> None:
    @tool(timeout=0)
    async def quick() -> int:
        """Answer."""
        return 1

    async with Yard(tools=[quick], limits=Limits(timeout=0.001)) as yard:
        assert (await yard.call("quick")).data == 1


async def test_calls_of_one_duration_end_each_in_its_own_time() -> None:
    gate = asyncio.Event()

    async def wait(last: bool) -> int:  # noqa: FBT001 - an argument
        """Wait."""
        if last:
            gate.set()
        await asyncio.Event().wait()
        return 1

    sink = FakeSink()
    async with Yard(tools=[wait], limits=Limits(timeout=0.02), sinks=[sink]) as yard:
        first = asyncio.create_task(yard.call("wait", {"last": False}))
        later = asyncio.get_running_loop().time() + 0.005
        while asyncio.get_running_loop().time() < later:  # noqa: ASYNC110 - time alone sets the two apart
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        second = asyncio.create_task(yard.call("wait", {"last": True}))
        await gate.wait()
        await asyncio.gather(first, second)

    assert sink.codes == ["timeout", "timeout"]
    assert all(record.elapsed_ms >= 19 for record in sink.records)


async def test_a_result_that_comes_after_the_deadline_is_dropped() -> None:
    @tool(timeout=0.01)
    async def stubborn() -> str:
        """Swallow the interruption and answer anyway."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        return "never"

    async with Yard(tools=[stubborn]) as yard:
        answer = await yard.call("stubborn")
        task = asyncio.current_task()

    assert answer.error is not None
    assert answer.error.code == "timeout"
    assert answer.data is None
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("nested", [False, True])
async def test_a_cancellation_from_before_a_call_is_not_taken_for_its_handlers_own(*, nested: bool) -> None:
    sink = FakeSink()

    @tool
    async def wait() -> None:
        """Wait for the cancellation, which is there already."""
        await asyncio.Event().wait()

    @tool
    async def cancel_and_call(call: Call) -> None:
        """Be cancelled, and make another call before that arrives."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await call.invoke("wait")

    async def come_too_late() -> None:
        task = asyncio.current_task()
        assert task is not None
        if not nested:
            task.cancel()  # while it runs, so that it is pending when the call begins
        await yard.call("cancel_and_call" if nested else "wait")

    async with Yard(tools=[wait, cancel_and_call], sinks=[sink]) as yard:
        task = asyncio.create_task(come_too_late())
        await asyncio.wait({task})

    assert task.cancelled()
    assert set(sink.codes) == {"cancelled"}
    assert len(sink.codes) == 1 + nested


async def test_an_interruption_turned_into_another_error_is_still_a_timeout() -> None:
    @tool(timeout=0.01)
    async def translate() -> str:
        """Raise something else."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError from None
        return "never"

    async with Yard(tools=[translate]) as yard:
        answer = await yard.call("translate")

    assert answer.error is not None
    assert answer.error.code == "timeout"


async def test_a_handler_that_does_not_listen_is_interrupted_again(caplog: pytest.LogCaptureFixture) -> None:
    @tool(timeout=0.01)
    async def deaf() -> str:
        """Swallow the first interruption."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()
        return "never"

    async with Yard(tools=[deaf]) as yard:
        answer = await yard.call("deaf")

    assert answer.error is not None
    assert answer.error.code == "timeout"
    assert "handler_ignores_cancellation" in caplog.text


async def test_a_nested_deadline_ends_only_the_nested_call() -> None:
    @tool(timeout=0.01)
    async def inner() -> int:
        """Wait."""
        await asyncio.Event().wait()
        return 1

    async def outer(call: Call) -> str:
        """Call."""
        answer = await call.invoke("inner")
        return answer.error.code if answer.error else "ok"

    async with Yard(tools=[inner, outer]) as yard:
        assert (await yard.call("outer")).data == "timeout"


async def test_a_deadline_around_a_nested_call_ends_both() -> None:
    async def inner() -> int:
        """Wait."""
        await asyncio.Event().wait()
        return 1

    @tool(timeout=0.01)
    async def outer(call: Call) -> int:
        """Call."""
        return (await call.invoke("inner")).data

    sink = FakeSink()
    async with Yard(tools=[inner, outer], sinks=[sink]) as yard:
        answer = await yard.call("outer")

    assert answer.error is not None
    assert answer.error.code == "timeout"
    assert sink.codes == ["cancelled", "timeout"]


async def test_a_handler_that_stops_its_own_call_does_no_harm_to_the_next() -> None:
    async def stop(call: Call) -> int:
        """Stop myself."""
        yard.dispatcher.cancel(call.id)
        return 1

    async with Yard(tools=[stop]) as yard:
        answer = await yard.call("stop")
        await asyncio.sleep(0)  # a turn of the loop, not a wait

    assert answer.error is not None
    assert answer.error.code == "cancelled"


async def test_cancelling_the_caller_wins_over_a_deadline_at_the_same_time() -> None:
    started = asyncio.Event()

    async def wait(call: Call) -> int:
        """Wait."""
        calls.append(call)
        started.set()
        await asyncio.Event().wait()
        return 1

    calls: list[Call] = []
    sink = FakeSink()
    async with Yard(tools=[wait], sinks=[sink]) as yard:
        task = asyncio.create_task(yard.call("wait"))
        await started.wait()
        run_of(yard.dispatcher.in_flight[calls[0].id]).stop("timeout")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert sink.codes == ["cancelled"]


class People:
    """Several persons, who each answer when told to."""

    def __init__(self, *keys: str) -> None:
        self.answers = {key: asyncio.Event() for key in keys}
        self.asked = {key: asyncio.Event() for key in keys}
        self.channel = Channel(name="test", ask=self.ask, capabilities=frozenset({"elicitation"}))

    async def ask(self, asks: Mapping[str, ClientRequest], _: object) -> Mapping[str, Any]:
        """Answer later."""
        for key in asks:
            self.asked[key].set()
            await self.answers[key].wait()
        return {key: {"action": "accept", "content": {}} for key in asks}


async def pass_time(seconds: float) -> None:
    """Let time pass that a deadline would take for its own."""
    later = time.monotonic() + seconds
    while time.monotonic() < later:  # noqa: ASYNC110 - time alone is what counts
        await asyncio.sleep(0)  # a turn of the loop, not a wait


async def test_the_time_stands_still_while_somebody_is_asked() -> None:
    @tool(timeout=0.5)
    async def inner(call: Call) -> str:
        """Ask."""
        await call.ask({"type": "object", "properties": {}}, "Sure?", key="a")
        return "done"

    @tool(timeout=0.5)
    async def outer(call: Call) -> str:
        """Call what asks."""
        return (await call.invoke("inner")).data

    people = People("a")
    async with Yard(tools=[inner, outer]) as yard:
        running = asyncio.create_task(yard.call("outer", channel=people.channel))
        await people.asked["a"].wait()
        await pass_time(0.8)
        people.answers["a"].set()
        assert (await running).data == "done"


async def test_time_that_two_questions_take_at_once_is_counted_once() -> None:
    @tool
    async def ask_two(call: Call) -> None:
        """Ask two persons at once."""
        schema: dict[str, Any] = {"type": "object", "properties": {}}
        await asyncio.gather(call.ask(schema, "Sure?", key="a"), call.ask(schema, "Sure?", key="b"))
        seen.append(run_of(call).paused_s)

    seen: list[float] = []
    people = People("a", "b")
    async with Yard(tools=[ask_two]) as yard:
        began = time.perf_counter()
        running = asyncio.create_task(yard.call("ask_two", channel=people.channel))
        await people.asked["b"].wait()
        await pass_time(0.02)
        people.answers["a"].set()
        people.answers["b"].set()
        await running
        took = time.perf_counter() - began

    assert 0.02 <= seen[0] <= took


async def test_the_time_of_a_yard_around_stands_still_while_somebody_is_asked() -> None:
    async def ask(call: Call) -> str:
        """Ask."""
        await call.ask({"type": "object", "properties": {}}, "Sure?", key="a")
        return "done"

    async def turn(call: Call) -> Callable[[], None]:
        taken.append(f"{call.name} out here")
        return lambda: None

    async def turn_inside(call: Call) -> Callable[[], None]:
        taken.append(f"{call.name} inside")
        return lambda: None

    taken: list[str] = []
    people = People("a")
    inner = Yard("inner", tools=[ask], limiters=[turn_inside], limits=Limits(timeout=0.5))
    async with Yard(providers=[inner], limiters=[turn], limits=Limits(timeout=0.5)) as yard:
        running = asyncio.create_task(yard.call("ask", channel=people.channel))
        await people.asked["a"].wait()
        await pass_time(0.8)
        people.answers["a"].set()
        assert (await running).data == "done"

    assert taken == ["ask out here", "ask inside"] * 2


async def test_a_time_that_nobody_has_any_more_is_forgotten() -> None:
    async def quick() -> int:
        """Answer."""
        return 1

    async with Yard(tools=[quick]) as yard:
        deadlines = yard.dispatcher._execution.deadlines  # pyright: ignore[reportPrivateUsage] - memory is what is tested
        for seconds in (3000, 2999.5, 7):
            step = {"tool_id": "run_tool", "args": {"tool_id": "quick"}, "timeout_s": 500}
            assert (await yard.call("run_chain", {"steps": [step, step], "timeout_s": seconds})).success
        assert not deadlines._waiting  # pyright: ignore[reportPrivateUsage] - the same
        assert not deadlines._timers  # pyright: ignore[reportPrivateUsage] - the same


async def test_the_time_goes_on_where_it_stood_still() -> None:
    @tool(timeout=0.5)
    async def ask_and_hang(call: Call) -> None:
        """Ask, and then take for ever."""
        await call.ask({"type": "object", "properties": {}}, "Sure?", key="a")
        await asyncio.Event().wait()

    people = People("a")
    async with Yard(tools=[ask_and_hang]) as yard:
        running = asyncio.create_task(yard.call("ask_and_hang", channel=people.channel))
        await people.asked["a"].wait()
        await pass_time(0.8)
        people.answers["a"].set()
        answer = await running

    assert answer.error is not None
    assert answer.error.code == "timeout"


async def test_the_time_stands_still_until_the_last_question_is_answered() -> None:
    @tool(timeout=0.5)
    async def ask_two(call: Call) -> str:
        """Ask two at the same time."""
        await asyncio.gather(
            call.ask({"type": "object", "properties": {}}, "Sure?", key="a"),
            call.ask({"type": "object", "properties": {}}, "Really?", key="b"),
        )
        return "done"

    people = People("a", "b")
    async with Yard(tools=[ask_two]) as yard:
        running = asyncio.create_task(yard.call("ask_two", channel=people.channel))
        await people.asked["a"].wait()
        await people.asked["b"].wait()
        people.answers["a"].set()
        await pass_time(0.8)
        people.answers["b"].set()
        assert (await running).data == "done"


async def test_a_call_without_a_deadline_has_none_after_a_question_either() -> None:
    @tool(timeout=0)
    async def ask(call: Call) -> str:
        """Ask."""
        await call.ask({"type": "object", "properties": {}}, "Sure?", key="a")
        return "done"

    people = People("a")
    people.answers["a"].set()
    async with Yard(tools=[ask]) as yard:
        assert (await yard.call("ask", channel=people.channel)).data == "done"


async def test_nothing_is_kept_of_a_call_that_asked_and_is_over() -> None:
    @tool
    async def ask(call: Call) -> str:
        """Ask."""
        await call.ask({"type": "object", "properties": {}}, "Sure?", key="a")
        return "done"

    people = People("a")
    people.answers["a"].set()
    async with Yard(tools=[ask]) as yard:
        assert (await yard.call("ask", channel=people.channel)).data == "done"
        deadlines = yard.dispatcher._execution.deadlines  # pyright: ignore[reportPrivateUsage] - memory is what is tested
        assert not any(deadlines._waiting.values())  # pyright: ignore[reportPrivateUsage] - the same


async def test_a_handler_that_listened_is_not_interrupted_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("callyard.dispatch.deadlines._REPEAT_S", 0.005)

    @tool(timeout=0.005)
    async def wait() -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    async with Yard(tools=[wait]) as yard:
        answer = await yard.call("wait")
        await pass_time(0.02)

    assert answer.error is not None
    assert "handler_ignores_cancellation" not in caplog.text


class Item:
    """A call that expires."""

    def __init__(self) -> None:
        self.expired = asyncio.Event()
        self.finished = False

    def stop(self, code: str) -> None:
        assert code == "timeout"
        self.finished = True
        self.expired.set()


def timers() -> Any:
    return Deadlines(asyncio.get_running_loop())


async def test_items_expire_once_and_are_forgotten() -> None:
    shared = timers()
    first, second = Item(), Item()
    waiting = shared.start(first, 0.01)
    shared.start(second, 0.01)
    await first.expired.wait()
    await second.expired.wait()

    assert not waiting


async def test_an_item_with_more_time_left_expires_later() -> None:
    shared = timers()
    first, second = Item(), Item()
    shared.start(first, 0.01)
    shared.start(second, 0.01)[second] += 0.02
    await second.expired.wait()

    assert first.expired.is_set()


async def test_an_item_that_removed_itself_does_not_expire_and_later_ones_do() -> None:
    shared = timers()
    gone, first, later = Item(), Item(), Item()
    waiting = shared.start(gone, 0.01)
    shared.start(first, 0.01)
    waiting.pop(gone)
    await first.expired.wait()
    shared.start(later, 0.01)
    await later.expired.wait()

    assert not gone.expired.is_set()


async def test_a_delay_of_nothing_expires_in_the_next_turn_of_the_loop() -> None:
    item = Item()
    timers().start(item, 0.0)
    await item.expired.wait()


async def test_removing_an_item_says_how_long_it_had_left() -> None:
    shared = timers()
    item = Item()
    shared.start(item, 60)
    left = shared.remove(item)

    assert left is not None
    assert 50 < left <= 60
    assert shared.remove(item) is None


async def test_nothing_expires_after_closing() -> None:
    shared = timers()
    item = Item()
    shared.start(item, 0.0)
    shared.close()
    await asyncio.sleep(0)  # a turn of the loop, not a wait

    assert not item.expired.is_set()
