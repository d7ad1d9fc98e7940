"""Signals: SIGTERM ends a program as Ctrl-C does, by cancelling what runs, so that everything open is closed.

It knows no yard: what it runs is a coroutine.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from toolyard._internal.logfmt import log_fields

__all__ = ["Terminated", "run"]

T = TypeVar("T")

_STATUS: Final = 128 + signal.SIGTERM
_PATIENCE: Final = 2.0
_log = logging.getLogger(__name__)


class Terminated(SystemExit):
    """The process was told to end, and what it ran has been cancelled and closed; it exits with 143."""

    def __init__(self) -> None:
        super().__init__(_STATUS)


def run(main: Coroutine[Any, Any, T], *, loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> T:
    """Run a coroutine as `asyncio.run` does, by default on asyncio's own loop, and cancel it on SIGTERM, too.

    Raises:
        Terminated: SIGTERM came, and the coroutine ended by it.
        KeyboardInterrupt: SIGINT came, and the coroutine ended by it.
    """
    came: list[int] = []

    async def watched() -> T:
        with _cancelled_by_sigterm(came):
            return await main

    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            try:
                return runner.run(watched())
            finally:
                runner.run(_end_others())
    except asyncio.CancelledError:
        if came:
            raise Terminated from None
        raise


async def _end_others() -> None:
    """Cancel what still runs and wait for it, but not for ever: what swallows that is left behind, so that the program can end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return
    _, left = await asyncio.wait(others, timeout=_PATIENCE)
    for task in left:
        _log.warning("task_left_behind%s", log_fields({"task": task.get_name(), "of": getattr(task.get_coro(), "__qualname__", "")}))
        asyncio._unregister_task(task)  # noqa: SLF001 - the documented way to let the runner not wait for it


@contextmanager
def _cancelled_by_sigterm(came: list[int]) -> Generator[None]:
    """Cancel the current task when SIGTERM comes, once, so that a second one does not interrupt the closing."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is told of signals
        return

    def terminate() -> None:
        if not came:
            task.cancel()
        came.append(signal.SIGTERM)

    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
