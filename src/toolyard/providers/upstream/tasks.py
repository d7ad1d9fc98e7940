"""Tasks: what goes on beside the calls of an upstream, and how it ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Tasks"]

T = TypeVar("T")


class Tasks:
    """Work that is stopped at the end, and links that are closed, which is never cut short."""

    def __init__(self) -> None:
        self._works: set[asyncio.Task[Any]] = set()
        self._closings: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work on something that nobody waits for, or several do."""
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task

    def let_go(self, closing: Coroutine[Any, Any, None]) -> None:
        """Close something, without waiting for that."""
        task = asyncio.get_running_loop().create_task(closing)
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def end(self) -> None:
        """Stop all work, and wait until everything is closed."""
        works = tuple(self._works)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        if self._closings:
            await asyncio.wait(self._closings)
