"""Runs a coroutine and cancels it on SIGTERM, as Ctrl-C does, so that it closes what it opened.

It knows no yards.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from callyard._internal.logfmt import log_fields

__all__ = ["Terminated", "run", "success_on_sigterm", "terminate_on_close"]

T = TypeVar("T")

_TIMEOUT_S: Final = 2.0
_log = logging.getLogger(__name__)


class Terminated(SystemExit):
    """SIGTERM ended the program after its coroutine was cancelled; the exit status is 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def run(main: Coroutine[Any, Any, T], *, loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> T:
    """Run a coroutine as `asyncio.run` does and cancel it on SIGTERM as well.

    `loop` makes an event loop other than asyncio's own.

    Raises:
        Terminated: SIGTERM cancelled the coroutine.
        KeyboardInterrupt: SIGINT cancelled the coroutine.
    """
    received: list[int] = []

    async def cancellable() -> T:
        with _cancelled_by_sigterm(received):
            return await main

    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            try:
                return runner.run(cancellable())
            finally:
                runner.run(_cancel_other_tasks())
    except asyncio.CancelledError:
        if received:
            raise Terminated from None
        raise


@contextmanager
def success_on_sigterm() -> Generator[None]:
    """Exit with 0 after an orderly end: SIGTERM is how a supervisor such as systemd stops a server, and no failure."""
    try:
        yield
    except Terminated:
        raise SystemExit(0) from None


def terminate_on_close(descriptor: int) -> None:
    """Send SIGTERM to this process when the other end of a pipe is closed, also by the kill of its owner."""
    loop = asyncio.get_running_loop()

    def terminate() -> None:
        loop.remove_reader(descriptor)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(descriptor, terminate)  # nothing is ever written to it


async def _cancel_other_tasks() -> None:
    """Cancel the remaining tasks and wait for them; abandon a task that ignores it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return
    _, left = await asyncio.wait(others, timeout=_TIMEOUT_S)
    for task in left:
        facts = {"task": task.get_name(), "of": getattr(task.get_coro(), "__qualname__", "")}
        _log.warning("task_left_behind%s", log_fields(facts))
        asyncio._unregister_task(task)  # noqa: SLF001 - otherwise the runner waits for it


@contextmanager
def _cancelled_by_sigterm(received: list[int]) -> Generator[None]:
    """Cancel the current task on the first SIGTERM; a second one must not interrupt the closing."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return

    def terminate() -> None:
        if not received:
            task.cancel()
        received.append(signal.SIGTERM)

    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
