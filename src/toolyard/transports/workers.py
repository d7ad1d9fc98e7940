"""Workers: several processes that serve one address, each started anew if it dies.

They share the socket and nothing else, so they can serve only what keeps nothing between requests.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from toolyard.signals import Terminated

__all__ = ["end_with_parent", "run_workers"]

Work = Callable[[int], None]
"""Is told the pipe that ends when its parent does."""

_TRIES: Final = 5
_PAUSE: Final = 1.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger(__name__)


def end_with_parent(pipe: int) -> None:
    """End this process as if it were told to when the one that started it is gone, however that went."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(pipe)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(pipe, end)  # nothing is ever written there, so it can only be closed


def run_workers(count: int, work: Work, announce: Callable[[], None], *, hangs_up: bool) -> None:
    """Run something in so many processes until this one is told to end, and end them then; announce it once signals are heard.

    Unless SIGHUP is to end it as it ends other programs, it is passed on to all of them.

    Raises:
        Terminated: SIGTERM came, and all of them ended.
        KeyboardInterrupt: SIGINT came, and all of them ended.
    """
    started: dict[int, float] = {}
    told: list[int] = []
    pipe = os.pipe()

    def tell(number: int, _: object) -> None:
        told.append(number)
        _send(started)

    before = {number: signal.signal(number, tell) for number in _SIGNALS}
    if not hangs_up:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _passing_on(started, tell))

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a signal that came between the two lines would miss the new one
        try:
            if not told:
                started[_fork(work, pipe, before[signal.SIGTERM])] = time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    try:
        announce()
        for _ in range(count):
            start()
        _keep(started, told, start)
    finally:
        _send(started)  # only if it went wrong are there any left
        for number, handler in before.items():
            signal.signal(number, handler)
        for end in pipe:
            os.close(end)
    raise KeyboardInterrupt if told[0] == signal.SIGINT else Terminated


def _passing_on(started: Iterable[int], tell: Callable[[int, object], None]) -> Callable[[int, object], None]:
    """Return what hands a signal to the workers, or ends them if it tells that the terminal is gone."""
    attended = os.isatty(2)

    def pass_on(number: int, frame: object) -> None:
        if attended and not os.isatty(2):
            tell(signal.SIGTERM, frame)
        else:
            _send(started, number)

    return pass_on


def _send(processes: Iterable[int], number: int = signal.SIGTERM) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(process, number)


def _keep(started: dict[int, float], told: list[int], start: Callable[[], None]) -> None:
    """Start anew whatever dies, until all ended because they were told to.

    Raises:
        RuntimeError: They do nothing but die.
    """
    quick = 0
    while started:
        process, status = os.wait()
        since = started.pop(process, None)
        if told or since is None:  # it may be a child of the yard's own
            continue
        lasted = time.monotonic() - since
        quick = quick + 1 if lasted < _PAUSE else 0
        if quick > _TRIES:
            raise RuntimeError("The workers end as soon as they begin; the log says why.")
        _log.warning("worker_died pid=%d status=%d", process, os.waitstatus_to_exitcode(status))
        if lasted < _PAUSE:
            time.sleep(_PAUSE - lasted)  # not to start in a frenzy what dies at once
            for other in started:
                started[other] += _PAUSE - lasted  # it may have died meanwhile, and nobody looked
        start()


def _ignore(*_: object) -> None:
    """Do nothing: unlike 'SIG_IGN', programs that a tool starts do not inherit this."""


def _fork(work: Work, pipe: tuple[int, int], terminate: Any) -> int:
    """Start a process that works and then ends, whatever happens; return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        signal.signal(signal.SIGTERM, terminate)
        # Ctrl-C reaches every process of a terminal; this one is told to end by its parent, and once is enough.
        signal.signal(signal.SIGINT, _ignore)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:  # its parent passes it on, which is not its own business
            signal.signal(signal.SIGHUP, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(pipe[1])  # only the parent holds this end
        work(pipe[0])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - it ends here, and its parent must know how
        _log.exception("worker_failed")
    finally:
        os._exit(status)
