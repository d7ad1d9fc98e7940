import asyncio
from typing import Any

from callyard._internal.tasks import task_creator


async def note(names: list[str]) -> None:
    task = asyncio.current_task()
    assert task is not None
    names.append(task.get_name())


async def test_tasks_run_in_their_loop_under_their_name() -> None:
    names: list[str] = []
    await task_creator(asyncio.get_running_loop(), "a request")(note(names))

    assert names == ["a request"]


async def test_a_task_factory_of_the_loop_is_used() -> None:
    made: list[str] = []
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
        made.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **options)

    names: list[str] = []
    loop.set_task_factory(factory)
    try:
        await task_creator(loop, "a request")(note(names))
    finally:
        loop.set_task_factory(None)

    assert (made, names) == (["note"], ["a request"])
