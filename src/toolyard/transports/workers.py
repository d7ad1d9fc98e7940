"""Workers: several processes that serve one address, each started anew if it dies.

They share the socket and nothing else, so they can serve only what keeps nothing between requests.
"""

import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["run_workers"]

_PAUSE: Final = 1.0
_log = logging.getLogger(__name__)


def run_workers(count: int, work: Callable[[], None]) -> None:
    """Run something in so many processes until this one is told to end, and end them then."""
    os.environ.setdefault("TOOLYARD_SECRET", secrets.token_hex(32))  # what one worker seals another must open
    started: dict[int, float] = {}
    told: list[int] = []

    def tell(number: int, _: object) -> None:
        told.append(number)
        for process in started:
            os.kill(process, signal.SIGTERM)

    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for _ in range(count):
            started[_fork(work, before)] = time.monotonic()
        while started:
            process, status = os.wait()
            lasted = time.monotonic() - started.pop(process)
            if told:
                continue
            _log.warning("worker_died pid=%d status=%d", process, os.waitstatus_to_exitcode(status))
            if lasted < _PAUSE:
                time.sleep(_PAUSE - lasted)
            started[_fork(work, before)] = time.monotonic()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fork(work: Callable[[], None], handlers: Mapping[signal.Signals, object]) -> int:
    """Start a process that works and then ends, whatever happens; return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - what 'signal' itself returned
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        status = 0
    except BaseException:  # noqa: BLE001 - it ends here, and its parent must know how
        _log.exception("worker_failed")
    finally:
        os._exit(status)
