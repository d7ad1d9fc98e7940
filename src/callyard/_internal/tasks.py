"""Tasks for requests: one for each, so how fast they are made counts."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

__all__ = ["CreateTask", "task_creator"]

CreateTask = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


def task_creator(loop: asyncio.AbstractEventLoop, name: str) -> CreateTask:
    """Return a function that starts tasks of one name in a loop, with its task factory if it has one.

    uvloop's own `create_task` makes up a name first, even if it gets one: a hundredth of a call.
    """
    return partial(asyncio.Task, loop=loop, name=name) if loop.get_task_factory() is None else partial(loop.create_task, name=name)
