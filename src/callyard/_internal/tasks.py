"""Tasks of the event loop: those of requests and of open contexts, and those in which servers accept connections."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

__all__ = ["CreateTask", "background_task", "close_server", "run_to_end", "task_creator"]

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


async def close_server(server: asyncio.Server) -> None:
    """Close a server, also while it accepts a connection.

    asyncio accepts in one turn of the loop and makes the transport in the next one. If the server is closed in between,
    the transport fails silently and its socket stays open. So this stops accepting first; uvloop accepts in one step.
    """
    loop = server.get_loop()
    try:
        for listener in server.sockets:
            loop.remove_reader(listener.fileno())
        for _ in range(2):
            await asyncio.sleep(0)
    finally:
        server.close()


async def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end even if this task is cancelled meanwhile, which is raised afterwards."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
