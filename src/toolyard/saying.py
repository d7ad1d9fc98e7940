"""Saying: what is told from any thread to whoever listens, without waiting and without failing.

It knows no call: it is handed a function to run and the loop to run it on.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, Final

__all__ = ["DONE", "Done", "quietly", "runs_in"]

_log = logging.getLogger(__name__)


def runs_in(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this code runs on that loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def quietly(send: Callable[[], None]) -> None:
    """Send something that the sender does not depend on: a door that fails must not fail the call."""
    try:
        send()
    except Exception:  # noqa: BLE001 - a door may raise anything
        _log.exception("door_failed")


class Done:
    """Something that may be awaited and need not be."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE: Final = Done()
