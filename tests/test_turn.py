import asyncio

import pytest

from toolyard import Call, Session, Yard, tool


async def test_serial_tools_of_one_session_run_one_at_a_time_and_those_of_another_meanwhile() -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    together = asyncio.Event()

    async def begin(call: Call) -> str:
        """Begin."""
        return call.start_session().id

    @tool(serial=True)
    async def work(session: Session) -> int:
        """Work."""
        running[session.id] = running.get(session.id, 0) + 1
        most[session.id] = max(most.get(session.id, 0), running[session.id])
        if sum(running.values()) == 2:
            together.set()
        await together.wait()
        running[session.id] -= 1
        return 1

    async with Yard(tools=[begin, work]) as yard:
        ids = [(await yard.call("begin")).data for _ in range(2)]
        await asyncio.gather(*(yard.call("work", session=one) for one in ids for _ in range(3)))

    assert set(most.values()) == {1}


async def test_a_serial_tool_without_a_session_runs_one_at_a_time_at_all() -> None:
    running: list[int] = []

    @tool(serial=True)
    async def work() -> int:
        """Work."""
        running.append(1)
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        seen = len(running)
        running.pop()
        return seen

    async with Yard(tools=[work]) as yard:
        answers = await asyncio.gather(*(yard.call("work") for _ in range(5)))

    assert {answer.data for answer in answers} == {1}


async def test_a_serial_tool_may_call_another_of_its_session_without_waiting_for_itself() -> None:
    async def begin(call: Call) -> str:
        """Begin."""
        return call.start_session().id

    running: list[int] = []

    @tool(serial=True)
    async def inner(session: Session) -> int:
        """Do a part."""
        running.append(1)
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        seen = len(running)
        running.pop()
        return seen

    @tool(serial=True)
    async def outer(session: Session, call: Call) -> list[int]:
        """Do the whole."""
        return [answer.data for answer in await asyncio.gather(call.invoke("inner"), call.invoke("inner"))]

    async with Yard(tools=[begin, inner, outer]) as yard:
        await yard.call("begin")
        assert (await yard.call("outer")).data == [1, 1]


async def test_a_caller_that_goes_away_while_it_waits_leaves_no_lock_behind() -> None:
    gate = asyncio.Event()
    started = asyncio.Event()

    @tool(serial=True)
    async def work() -> int:
        """Work."""
        started.set()
        await gate.wait()
        return 1

    async with Yard(tools=[work]) as yard:
        first = asyncio.create_task(yard.call("work"))
        await started.wait()
        second = asyncio.create_task(yard.call("work"))
        while yard.calls_in_flight < 2:  # noqa: ASYNC110 - a call that waits for its turn tells nobody
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.set()
        assert (await first).success
        assert len(yard.dispatcher.admission.serial_turns) == 0
