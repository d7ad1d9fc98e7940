import asyncio
import threading

import pytest

from callyard import Call, Channel, Limits, Session, Yard, tool
from callyard.testing import FakeSink


async def until(true: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await true.wait()


async def test_a_sync_handler_does_not_block_the_loop() -> None:
    gate = threading.Event()

    def block() -> str:
        """Block."""
        gate.wait(10)
        return "done"

    async def quick() -> int:
        """Answer."""
        return 1

    async with Yard(tools=[block, quick]) as yard:
        task = asyncio.create_task(yard.call("block"))
        assert (await yard.call("quick")).data == 1
        gate.set()
        assert (await task).data == "done"


async def test_a_sync_handler_is_answered_at_its_deadline_can_see_it_and_its_late_result_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(timeout=0.01, timeout_hint="Ask for less.")
    def spin(call: Call) -> str:
        """Spin until cancelled."""
        while not call.cancelled:
            pass
        gate.wait(10)
        loop.call_soon_threadsafe(ended.set)
        return "late"

    gate = threading.Event()
    async with Yard(tools=[spin], packs=["system"]) as yard:
        answer = await yard.call("spin")
        assert yard.abandoned_threads == 1
        assert (await yard.call("status")).data["abandoned_threads"] == 1
        gate.set()
        await until(ended)
        while yard.abandoned_threads:  # noqa: ASYNC110 - the thread tells nobody else
            await asyncio.sleep(0)  # a turn of the loop, not a wait

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run, answer.error.hint) == ("timeout", True, "Ask for less.")
    assert "late_result_dropped" in caplog.text


async def test_beyond_the_cap_of_abandoned_threads_sync_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.dispatch.threads._MAX_ABANDONED", 2)
    gate = threading.Event()

    @tool(timeout=0.01)
    def block() -> int:
        """Block."""
        gate.wait(10)
        return 1

    async with Yard(tools=[block]) as yard:
        codes = [(await yard.call("block")).error for _ in range(3)]
        gate.set()
        while yard.abandoned_threads:  # noqa: ASYNC110 - the thread tells nobody else
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        assert (await yard.call("block")).data == 1

    assert [error.code for error in codes if error] == ["timeout", "timeout", "overloaded"]
    assert codes[2] is not None
    assert not codes[2].may_have_run


async def test_a_call_that_waits_for_a_thread_until_its_deadline_has_not_run() -> None:
    gate = threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(timeout=5)
    def block() -> int:
        """Block."""
        loop.call_soon_threadsafe(started.set)
        gate.wait(10)
        return 1

    @tool(timeout=0.01)
    def never() -> int:
        """Never start."""
        raise AssertionError

    async with Yard(tools=[block, never], limits=Limits(threads=1)) as yard:
        task = asyncio.create_task(yard.call("block"))
        await until(started)
        answer = await yard.call("never")
        gate.set()
        await task

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("timeout", False)


async def test_a_serial_turn_is_held_until_the_thread_really_ends() -> None:
    gate = threading.Event()
    order: list[str] = []

    async def begin(call: Call) -> str:
        """Begin."""
        return call.start_session().id

    @tool(timeout=0.01, serial=True)
    def first(session: Session) -> int:
        """Block."""
        gate.wait(10)
        order.append("first")
        return 1

    @tool(serial=True)
    async def second(session: Session) -> int:
        """Follow."""
        order.append("second")
        return 2

    async with Yard(tools=[begin, first, second]) as yard:
        await yard.call("begin")
        late = await yard.call("first")
        follower = asyncio.create_task(yard.call("second"))
        while yard.calls_in_flight == 0:  # noqa: ASYNC110 - a call that waits for its turn tells nobody
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        gate.set()
        assert (await follower).data == 2

    assert late.error is not None
    assert late.error.code == "timeout"
    assert order == ["first", "second"]


async def test_a_cancelled_caller_abandons_its_thread() -> None:
    gate = threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def block() -> int:
        """Block."""
        loop.call_soon_threadsafe(started.set)
        gate.wait(10)
        return 1

    sink = FakeSink()
    async with Yard(tools=[block], sinks=[sink]) as yard:
        task = asyncio.create_task(yard.call("block"))
        await until(started)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert yard.abandoned_threads == 1
        gate.set()
        while yard.abandoned_threads:  # noqa: ASYNC110 - the thread tells nobody else
            await asyncio.sleep(0)  # a turn of the loop, not a wait

    assert sink.codes == ["cancelled"]


async def test_threads_are_used_again_and_not_more_than_allowed_at_once() -> None:
    names: set[str] = set()

    def name() -> str:
        """Tell the thread."""
        names.add(threading.current_thread().name)
        return "ok"

    async with Yard(tools=[name], limits=Limits(threads=3)) as yard:
        await asyncio.gather(*(yard.call("name") for _ in range(50)))

    assert 1 <= len(names) <= 3


async def test_an_awaitable_returned_by_a_thread_is_awaited() -> None:
    async def later() -> int:
        return 7

    def make() -> int:
        """Return something to await."""
        return later()  # pyright: ignore[reportReturnType] - what sloppy code does

    async with Yard(tools=[make]) as yard:
        assert (await yard.call("make")).data == 7


def test_a_thread_that_never_ends_does_not_keep_the_process_alive() -> None:
    gate = threading.Event()

    @tool(timeout=0.01)
    def block() -> int:
        """Block."""
        gate.wait()
        return 1

    async def main() -> None:
        async with Yard(tools=[block]) as yard:
            await yard.call("block")

    before = set(threading.enumerate())  # other tests may have left some
    asyncio.run(main())
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("callyard-")]
    assert left
    assert all(thread.daemon for thread in left)
    gate.set()
    for thread in left:
        thread.join(10)


async def test_a_thread_that_ends_as_its_call_is_cancelled_is_counted_once_and_gives_its_turn_back() -> None:
    ended = threading.Event()

    @tool(serial=True)
    def finish() -> int:
        """Finish at once."""
        ended.set()
        return 1

    async with Yard(tools=[finish]) as yard:
        for _ in range(50):
            ended.clear()
            task = asyncio.create_task(yard.call("finish"))
            while not yard.calls_in_flight:  # noqa: ASYNC110 - a call tells nobody that it began
                await asyncio.sleep(0)  # a turn of the loop, not a wait
            ended.wait(10)  # block the loop, so that the call is cancelled before the loop sees the end of the thread
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        while yard.abandoned_threads > 0:  # noqa: ASYNC110 - a thread tells nobody else that it ended
            await asyncio.sleep(0)  # a turn of the loop, not a wait

        assert yard.abandoned_threads == 0
        async with asyncio.timeout(60):
            assert (await yard.call("finish")).data == 1


async def test_threads_that_wait_for_nested_calls_do_not_count_against_the_limit() -> None:
    def inner() -> int:
        """Answer."""
        return 1

    def outer(call: Call) -> int:
        """Wait for another tool that needs a thread."""
        return call.wait(call.invoke("inner")).data

    async with Yard(tools=[inner, outer], limits=Limits(threads=2, timeout=10)) as yard:
        answers = await asyncio.gather(*(yard.call("outer") for _ in range(8)))

    assert [answer.data for answer in answers] == [1] * 8


async def test_wait_is_refused_in_an_async_handler() -> None:
    async def wrong(call: Call) -> int:
        """Wait where it could await."""
        with pytest.raises(RuntimeError, match="await"):
            call.wait(call.invoke("wrong"))
        return 1

    async with Yard(tools=[wrong]) as yard:
        assert (await yard.call("wrong")).data == 1


async def test_a_thread_with_its_own_loop_still_sends_progress_and_logs() -> None:
    threads: list[str] = []

    def walk(call: Call) -> int:
        """Walk in a loop of my own."""

        async def inside() -> None:
            call.progress(1, 1)

        asyncio.run(inside())
        return 1

    async with Yard(tools=[walk]) as yard:
        channel = Channel(progress=lambda _: threads.append(threading.current_thread().name))
        assert (await yard.call("walk", channel=channel)).data == 1

    assert threads == [threading.current_thread().name]
