"""Tasks that take on one piece of work after another, and what must not pass from one to the next."""

import asyncio
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import Any

import pytest

from toolyard.conversation.crew import Crew

WORD: ContextVar[str] = ContextVar("WORD", default="unsaid")


@pytest.fixture
async def crew() -> AsyncGenerator[Crew]:
    made = Crew()
    yield made
    made.close()
    await turns()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_task_does_what_never_waits(crew: Crew) -> None:
    tasks: list[Any] = []

    async def work(task: "asyncio.Task[Any]") -> None:
        tasks.append(task)

    for _ in range(3):
        crew.take_on(work)
    await turns()
    crew.take_on(work)
    await turns()

    assert len(tasks) == 4
    assert len(set(tasks)) == 1


async def test_nobody_waits_for_the_work_of_somebody_else(crew: Crew) -> None:
    gate = asyncio.Event()
    done: list[int] = []

    async def stuck(_: object) -> None:
        await gate.wait()
        done.append(1)

    async def quick(_: object) -> None:
        done.append(2)

    crew.take_on(stuck)
    crew.take_on(quick)
    await turns()
    assert done == [2]
    gate.set()
    await turns()

    assert done == [2, 1]


async def test_work_that_fails_is_logged_and_the_next_is_done(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()

    async def broken(_: object) -> None:
        raise ValueError("No.")

    async def work(_: object) -> None:
        done.set()

    crew.take_on(broken)
    crew.take_on(work)
    await turns()

    assert done.is_set()
    assert [record.message for record in caplog.records] == ["work_failed"]


async def test_what_work_says_of_itself_is_not_heard_by_the_next(crew: Crew) -> None:
    heard: list[str] = []

    async def work(_: object) -> None:
        heard.append(WORD.get())
        WORD.set("said")

    for _ in range(3):
        crew.take_on(work)
        await turns()

    assert heard == ["unsaid"] * 3
    assert WORD.get() == "unsaid"


async def test_work_that_is_cancelled_cancels_no_other(crew: Crew) -> None:
    done: list[int] = []
    running: list[asyncio.Task[Any]] = []

    async def stuck(task: "asyncio.Task[Any]") -> None:
        running.append(task)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            done.append(1)

    async def work(task: "asyncio.Task[Any]") -> None:
        await asyncio.sleep(0)
        running.append(task)
        done.append(2)

    crew.take_on(stuck)
    await turns()
    running[0].cancel()
    crew.take_on(work)
    await turns()

    assert done == [1, 2]
    assert running[0] is not running[1]


async def test_whoever_was_idle_and_is_gone_is_not_waited_for() -> None:
    crew = Crew()
    done: list[int] = []

    async def work(task: "asyncio.Task[Any]") -> None:
        done.append(1)
        tasks.add(task)

    tasks: set[asyncio.Task[Any]] = set()
    crew.take_on(work)
    await turns()
    for task in tasks:
        task.cancel()
    crew.take_on(work)
    await turns()
    for task in tasks:
        task.cancel()
    await turns()
    crew.close()

    assert done == [1, 1]
    assert all(task.done() for task in tasks)
