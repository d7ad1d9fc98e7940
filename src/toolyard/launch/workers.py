"""Workers: several processes that serve one address, each started anew if it dies.

They share the socket and nothing else, so they can serve only what keeps nothing between requests.
"""

import asyncio
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from toolyard._internal.logfmt import log_fields
from toolyard.launch.serve import NotOpenedError
from toolyard.launch.signals import Terminated

__all__ = ["Parent", "run_workers"]

_TRIES: Final = 5
_PAUSE: Final = 1.0
_TICK: Final = 0.05
_LONGEST: Final = 1000
"""Characters of a sentence: so many arrive in one piece, whoever else writes."""
_MUCH: Final = 1 << 16
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger(__name__)


class Parent:
    """What a worker knows of the process that started it: when it is gone, and how to tell it what became of the yard."""

    def __init__(self, alive: int, reports: int) -> None:
        self._alive = alive
        self._reports = reports
        self.knows = False
        """Whether it was told that the yard was opened."""

    def end_with(self) -> None:
        """End this process as if it were told to when the other is gone, however that went."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            loop.remove_reader(self._alive)
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(self._alive, end)  # nothing is ever written there, so it can only be closed

    def tell_opened(self) -> None:
        """Tell that the yard was opened."""
        self.knows = True
        self._tell("")

    def tell_failure(self, sentence: str) -> None:
        """Tell why the yard cannot be opened."""
        self._tell(" ".join(sentence.split())[:_LONGEST])

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # whoever would read it may be gone
            os.write(self._reports, f"{line}\n".encode())


class _Reports:
    """What workers told of opening their yards."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce
        self._pipe, self.told_by = os.pipe()
        self._failure = ""
        self.opened = False
        """Whether one of them opened its yard."""

    def failure(self) -> str:
        """Return why one of them could not, if one said so since the last time."""
        self.read()
        failure, self._failure = self._failure, ""
        return failure

    def read(self, seconds: float = 0.0) -> None:
        """Take what they told, once they told something, or after so long."""
        if select.select([self._pipe], [], [], seconds)[0]:
            lines = os.read(self._pipe, _MUCH).decode("utf-8", "replace").split("\n")[:-1]
            self._failure = self._failure or next(filter(None, lines), "")
            if "" in lines and not self.opened:
                self.opened = True
                self._announce()

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._pipe)
        os.close(self.told_by)


def run_workers(count: int, work: Callable[[Parent], None], announce: Callable[[], None], *, hangs_up: bool) -> None:
    """Run something in so many processes until this one is told to end, and end them then; announce it once one of them opened the yard.

    Unless SIGHUP is to end it as it ends other programs, it is passed on to all of them.

    Raises:
        NotOpenedError: None of them could open the yard.
        Terminated: SIGTERM came, and all of them ended.
        KeyboardInterrupt: SIGINT came, and all of them ended.
    """
    started: dict[int, float] = {}
    told: list[int] = []
    pipe, reports = os.pipe(), _Reports(announce)

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
                started[_fork(work, pipe, reports.told_by, terminate=before[signal.SIGTERM])] = time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    try:
        for _ in range(count):
            start()
        _keep(started, told, start, reports=reports)
    finally:
        _send(started)  # only if it went wrong are there any left
        for number, handler in before.items():
            signal.signal(number, handler)
        for end in pipe:
            os.close(end)
        reports.close()
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


def _wait(reports: _Reports) -> tuple[int, int]:
    """Return the next process that ended, and how; hear meanwhile that the first of all opened the yard."""
    while not reports.opened:
        ended = os.waitpid(-1, os.WNOHANG)
        if ended[0]:
            return ended
        reports.read(_TICK)
    return os.wait()


def _keep(started: dict[int, float], told: list[int], start: Callable[[], None], *, reports: _Reports) -> None:
    """Start anew whatever dies, until all ended because they were told to.

    Raises:
        NotOpenedError: The first of them could not open the yard, so no other will, or none lives long enough to.
        RuntimeError: They do nothing but die.
    """
    quick = 0
    while started:
        process, status = _wait(reports)
        since = started.pop(process, None)
        if told or since is None:  # it may be a child of the yard's own
            continue
        failure = reports.failure()
        if failure:
            if not reports.opened:
                raise NotOpenedError(failure)
            _log.warning("worker_failed%s", log_fields({"pid": process, "why": failure}))
        lasted = time.monotonic() - since
        quick = quick + 1 if lasted < _PAUSE else 0
        if quick > _TRIES:
            raise (RuntimeError if reports.opened else NotOpenedError)("The workers end as soon as they begin; the log says why.")
        _log.warning("worker_died pid=%d status=%d", process, os.waitstatus_to_exitcode(status))
        if lasted < _PAUSE:
            time.sleep(_PAUSE - lasted)  # not to start in a frenzy what dies at once
            for other in started:
                started[other] += _PAUSE - lasted  # it may have died meanwhile, and nobody looked
        start()


def _ignore(*_: object) -> None:
    """Do nothing: unlike 'SIG_IGN', programs that a tool starts do not inherit this."""


def _fork(work: Callable[[Parent], None], pipe: tuple[int, int], reports: int, *, terminate: Any) -> int:
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
        work(Parent(pipe[0], reports))
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - it ends here, and its parent must know how
        _log.exception("worker_failed")
    finally:
        os._exit(status)
