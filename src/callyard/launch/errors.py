"""Failures to launch: the error and its exit status, and explanations that name the file and line of the cause."""

import logging
import os
import sysconfig
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Final, cast

import callyard
from callyard.model.errors import CODES, CodeName

if TYPE_CHECKING:
    from callyard.yard import Yard

__all__ = [
    "CLOSED_PIPE",
    "DEFECT",
    "DIFFERENT",
    "INTERRUPTED",
    "STATUSES",
    "TERMINATED",
    "USAGE",
    "WAITING",
    "LaunchError",
    "NotOpenedError",
    "as_launch_error",
    "exit_status",
    "explain_cause",
    "explain_refusal",
    "innermost",
    "is_own",
    "search_failure",
    "shown_path",
]


DEFECT: Final = 1
DIFFERENT: Final = 1
USAGE: Final = 2
WAITING: Final = 75
"""As `EX_TEMPFAIL` of `sysexits.h`: it is not done, and trying again later may do it."""
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141
TERMINATED: Final = 143
STATUSES: Final[dict[int, str]] = {
    0: "Success.",
    DEFECT: "`diff`, `scan`, `packs`, `doctor` or `upstreams --check` found something; or the yard did not close "
    "cleanly, a file could not be used, the output could not be written, or Callyard or a search strategy has a "
    "defect.",
    USAGE: "The command line is wrong, or TARGET cannot be loaded or opened.",
    WAITING: "The call has not run yet: it waits for the approval of a person.",
    INTERRUPTED: "Interrupted with Ctrl-C (SIGINT); the yard was closed first.",
    CLOSED_PIPE: "The reader of the output closed it early, as `head` does.",
    TERMINATED: "Terminated (SIGTERM); the yard was closed first. `serve` exits with 0 instead.",
}
"""The meaning of every exit status that belongs to no code."""


class LaunchError(Exception):
    """A command or server cannot go on: a message for people, and the exit status."""

    def __init__(self, message: str, *, status: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


@contextmanager
def as_launch_error(*kinds: type[Exception], status: int = USAGE) -> Generator[None]:
    """Turn exceptions whose message is for people into `LaunchError`."""
    try:
        yield
    except kinds as error:
        raise LaunchError(str(error), status=status) from error


class NotOpenedError(Exception):
    """No worker could open the yard; the message says why."""


def exit_status(code: CodeName | None) -> int:
    """Return the exit status of a call that failed with this code, or succeeded."""
    return 0 if code is None else CODES[code].exit


_LENGTH: Final = 300
_OURS: Final = f"{Path(callyard.__file__).parent}{os.sep}"
_log = logging.getLogger(__name__)


def explain_cause(error: BaseException) -> str:
    """Return the type, place and message of an exception, as the end of a sentence."""
    outer, error = error, innermost(error)
    place = _place_of(error) or _place_of(outer)
    where = f" in '{shown_path(place[0])}', line {place[1]}" if place is not None else ""
    message = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    what = f": {message[:_LENGTH].removesuffix('.')}" if message else ""
    return f"{type(error).__name__}{where}{what}{'' if what.endswith(('?', '!')) else '.'}"


def explain_refusal(failure: BaseException, yard: "Yard") -> str:
    """Return why a yard cannot be opened: Callyard's own message, or the cause with its place."""
    error = innermost(failure)
    if isinstance(error, callyard.PublishError | callyard.StoreUnavailableError | callyard.PackError):
        return str(error)
    if isinstance(error, ValueError | ImportError) and is_own(error):
        from callyard.search import StrategyError  # noqa: PLC0415 - '--version' starts without

        # the variable or file that set an unknown search strategy, if code did not
        name = yard.origins.get("search.strategy", "").partition(" ")[2] if isinstance(error, StrategyError) else ""
        return f"{error} It comes from '{name}'." if name else str(error)
    return f"The yard '{yard.name}' cannot be opened: {explain_cause(failure)}"


def search_failure(error: Exception, strategy: str) -> LaunchError:
    """Log the traceback of a search strategy and return the error to raise."""
    _log.debug("search_failed strategy=%s", strategy, exc_info=error)
    return LaunchError(f"The search strategy '{strategy}' failed: {explain_cause(error)}", status=DEFECT)


def innermost(error: BaseException) -> BaseException:
    """Return the first exception of a group, however deep, or the exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def is_own(error: BaseException) -> bool:
    """Return whether Callyard raised an exception without user code on the stack, so that its message is for people."""
    return not _frames_outside(error)[1]


def shown_path(path: str) -> str:
    """Return a path relative to the current folder, if it is inside."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _place_of(error: BaseException) -> tuple[str, int] | None:
    """Return the innermost file and line of user code, or else of an installed package."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return error.filename, error.lineno or 1
    outside, user = _frames_outside(error)
    return next(reversed(user or outside), None)


def _frames_outside(error: BaseException) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the files and lines of a traceback outside Callyard, and those outside installed packages."""
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    outside = [place for place in places if not place[0].startswith(("<", _OURS))]
    return outside, [
        place for place in outside if not place[0].startswith(_installed()) and not place[0].endswith(".pyx")
    ]


@cache
def _installed() -> tuple[str, ...]:
    return tuple(f"{sysconfig.get_paths()[key]}{os.sep}" for key in ("stdlib", "purelib", "platlib"))
