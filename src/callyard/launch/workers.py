"""Worker processes that serve one address; each is restarted when it dies.

They are forked, because a yard holds functions and cannot be pickled, and share the listening socket and nothing else.
So they can serve only clients without HTTP sessions.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from callyard._internal.logfmt import log_exception, log_fields
from callyard.launch.errors import NotOpenedError
from callyard.launch.signals import Terminated, terminate_on_close

__all__ = ["Parent", "run_workers"]

_QUICK_DEATHS: Final = 5
_RESTART_DELAY_S: Final = 1.0
_POLL_S: Final = 0.1
_FOLLOW_S: Final = 0.5
_REPORT_CHARACTERS: Final = 1000
"""A write of this size to a pipe is atomic (PIPE_BUF), so that reports of several workers do not mix."""
_READ_BYTES: Final = 1 << 16
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger(__name__)


class Parent:
    """The parent process as a worker sees it: reports go to it, and its death ends the worker."""

    def __init__(self, alive: int, reports: int) -> None:
        self._alive = alive
        self._reports = reports
        self.is_informed = False
        """Whether it was reported that the yard is open."""

    def terminate_with(self) -> None:
        """Terminate this process when the parent dies, even if it is killed."""
        terminate_on_close(self._alive)

    def report_opened(self) -> None:
        """Report that the yard is open."""
        self.is_informed = True
        self._report("")

    def report_failure(self, sentence: str) -> None:
        """Report why the yard cannot be opened."""
        self._report(" ".join(sentence.split())[:_REPORT_CHARACTERS])

    def _report(self, line: str) -> None:
        with suppress(OSError):  # the parent may have died
            os.write(self._reports, f"{line}\n".encode())


class _Reports:
    """Reports of the workers about opening their yards; an empty line says that one is open."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce = announce
        self._pipe, self.writer = os.pipe()
        self._failure = ""
        self.opened = False

    def failure(self) -> str:
        """Return why a worker could not open its yard, once per failure; empty if none failed since the last call."""
        self.read()
        failure, self._failure = self._failure, ""
        return failure

    def read(self, seconds: float = 0.0) -> None:
        """Read the reports, waiting up to so many seconds for the first."""
        if select.select([self._pipe], [], [], seconds)[0]:
            lines = os.read(self._pipe, _READ_BYTES).decode("utf-8", "replace").split("\n")[:-1]
            self._failure = self._failure or next(filter(None, lines), "")
            if "" in lines and not self.opened:
                self.opened = True
                self._announce()

    def close(self) -> None:
        os.close(self._pipe)
        os.close(self.writer)


def run_workers(
    count: int,
    work: Callable[[Parent], None],
    announce: Callable[[], None],
    *,
    forwards_hangup: bool,
    follow: Callable[[], None],
) -> None:
    """Run `work` in several processes until a signal ends this one.

    `announce` is called once a worker has opened the yard. With `forwards_hangup`, SIGHUP is passed on
    to the workers and does not end the program. `follow` is called twice a second.

    Raises:
        NotOpenedError: No worker could open the yard.
        Terminated: SIGTERM came, and all workers ended.
        KeyboardInterrupt: SIGINT came, and all workers ended.
    """
    started: dict[int, float] = {}
    received: list[int] = []
    pipe, reports = os.pipe(), _Reports(announce)

    def end(number: int, _: object) -> None:
        received.append(number)
        _send(started)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    if forwards_hangup:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _forward(started, end))

    def start() -> None:
        # a signal between fork and assignment would miss the new worker
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            if not received:
                started[_fork(work, pipe, reports.writer, terminate=before[signal.SIGTERM])] = time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    try:
        for _ in range(count):
            start()
        _restart_workers(started, received, start, reports=reports, follow=follow)
    finally:
        _send(started)  # after an exception some are still running
        for number, handler in before.items():
            signal.signal(number, handler)
        for descriptor in pipe:
            os.close(descriptor)
        reports.close()
    raise KeyboardInterrupt if received[0] == signal.SIGINT else Terminated


def _forward(started: Iterable[int], end: Callable[[int, object], None]) -> Callable[[int, object], None]:
    """Return a handler that forwards a signal to the workers.

    It ends them if the terminal was closed, which sends SIGHUP, too.
    """
    had_terminal = os.isatty(2)

    def forward(number: int, frame: object) -> None:
        if had_terminal and not os.isatty(2):
            end(signal.SIGTERM, frame)
        else:
            _send(started, number)

    return forward


def _send(processes: Iterable[int], number: int = signal.SIGTERM) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process, number)


def _wait(reports: _Reports, follow: Callable[[], None]) -> tuple[int, int]:
    """Return the id and status of the next process that ends; read reports and follow files meanwhile."""
    follow_at = time.monotonic()
    while True:
        ended = os.waitpid(-1, os.WNOHANG)
        if ended[0]:
            return ended
        reports.read(_POLL_S)
        if time.monotonic() >= follow_at:
            follow_at = time.monotonic() + _FOLLOW_S
            try:
                follow()
            except Exception:  # noqa: BLE001 - the workers must be watched in any case
                log_exception(_log, "follow_failed")


def _restart_workers(
    started: dict[int, float],
    received: list[int],
    start: Callable[[], None],
    *,
    reports: _Reports,
    follow: Callable[[], None],
) -> None:
    """Restart workers that die, until all have ended because of a signal.

    Raises:
        NotOpenedError: The first worker could not open the yard, or none lived long enough to.
        RuntimeError: Workers keep dying at once.
    """
    quick = 0
    while started:
        process, status = _wait(reports, follow)
        since = started.pop(process, None)
        if received or since is None:  # the yard may have child processes of its own
            continue
        failure = reports.failure()
        if failure:
            if not reports.opened:
                raise NotOpenedError(failure)
            _log.warning("worker_failed%s", log_fields({"pid": process, "why": failure}))
        lasted = time.monotonic() - since
        quick = quick + 1 if lasted < _RESTART_DELAY_S else 0
        if quick > _QUICK_DEATHS:
            kind = RuntimeError if reports.opened else NotOpenedError
            raise kind("The workers end right after they start; the log says why.")
        _log.warning("worker_died pid=%d status=%d", process, os.waitstatus_to_exitcode(status))
        pause = max(0.0, _RESTART_DELAY_S - lasted)
        time.sleep(pause)  # a worker that dies at once is not restarted in a busy loop
        for other in started:
            started[other] += pause  # this process slept meanwhile, so the time does not count as theirs
        start()


def _ignore(*_: object) -> None:
    """Do nothing; unlike `SIG_IGN`, a handler is not inherited by programs that a tool starts."""


def _fork(work: Callable[[Parent], None], pipe: tuple[int, int], reports: int, *, terminate: Any) -> int:
    """Fork a process that runs `work` and then exits in any case; return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        signal.signal(signal.SIGTERM, terminate)
        # Ctrl-C reaches every process of a terminal; the parent forwards it, and once is enough.
        signal.signal(signal.SIGINT, _ignore)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:  # inherited from the parent, which forwards it to workers
            signal.signal(signal.SIGHUP, _ignore)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(pipe[1])  # held by the parent alone, so that its death closes the pipe
        work(Parent(pipe[0], reports))
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - the process ends here, with a status for its parent
        log_exception(_log, "worker_failed")
    finally:
        os._exit(status)
