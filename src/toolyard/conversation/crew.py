"""A crew: tasks that take on one piece of work after another, because a task for each costs more than most of the work.

Nothing passes from one piece to the next: a task whose context was changed, or that was cancelled, takes on no more. And nobody waits
for somebody else's work: when the task at work has to wait for something, another one goes on with the rest.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Final

__all__ = ["Crew", "Work"]

Work = Callable[["asyncio.Task[Any]"], Coroutine[Any, Any, None]]
"""Is told the task that does it."""

_IDLE: Final = 64
_log = logging.getLogger(__name__)


class Crew:
    """As many tasks as there is work that waits for something, and one more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._waiting: deque[Work] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_called = False
        self._is_closed = False

    def take_on(self, work: Work) -> None:
        """Let somebody begin with this, in the next turn of the loop."""
        self._waiting.append(work)
        if not self._is_called:
            self._is_called = True
            self._call()

    def close(self) -> None:
        """Let whoever is idle go home."""
        self._is_closed = True
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()

    def _call(self) -> None:
        """Call somebody to work, and look afterwards whether that one got stuck."""
        while self._idle:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
                break
        else:
            task = self._loop.create_task(self._work(), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._loop.call_soon(self._look)

    def _look(self) -> None:
        if self._waiting:
            self._call()
        else:
            self._is_called = False

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it runs in one
        clean = copy_context()
        while True:
            while self._waiting:
                try:
                    await self._waiting.popleft()(task)
                except Exception:  # noqa: BLE001 - one piece of work must not keep the others from being done
                    _log.exception("work_failed")
                if task.cancelling() or copy_context() != clean:
                    return
            if self._is_closed or len(self._idle) >= _IDLE:
                return
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(idle)
            await idle
