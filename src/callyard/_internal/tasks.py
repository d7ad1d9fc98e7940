"""Tasks of the event loop: those of requests and of open contexts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

__all__ = ["CreateTask", "background_task", "task_creator"]

CreateTask = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


def task_creator(loop: asyncio.AbstractEventLoop, name: str) -> CreateTask:
    """Return a function that starts tasks of one name in a loop."""
    return partial(loop.create_task, name=name)


@asynccontextmanager
async def background_task(work: Any) -> AsyncGenerator[None]:
    """Run a coroutine in a task while the context is open."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
