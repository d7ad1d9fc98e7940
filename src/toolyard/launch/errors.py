"""Causes: what went wrong in somebody's module, in half a sentence that names the file and the line."""

import logging
import os
from functools import cache
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Final, cast

import toolyard
from toolyard.model.errors import CODES, CodeName

if TYPE_CHECKING:
    from toolyard.yard import Yard

__all__ = [
    "CLOSED_PIPE",
    "DEFECT",
    "DIFFERENT",
    "INTERRUPTED",
    "STATUSES",
    "TERMINATED",
    "USAGE",
    "LaunchError",
    "cause_of",
    "failed_search",
    "innermost",
    "is_own",
    "refusal_of",
    "shown_path",
    "status_of",
]


DEFECT: Final = 1
DIFFERENT: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141
TERMINATED: Final = 143
STATUSES: Final[dict[int, str]] = {
    0: "Success.",
    DEFECT: "`diff`, `scan` or `upstreams --check` found something; or the yard did not close well, a file could not be used, the "
    "output could not be written, or Toolyard or a strategy of search has a defect.",
    USAGE: "The command is used wrongly, or TARGET cannot be loaded or opened.",
    INTERRUPTED: "Interrupted with Ctrl-C (SIGINT); the yard was closed first.",
    CLOSED_PIPE: "Whoever read the output closed it early, as `head` does.",
    TERMINATED: "Told to end (SIGTERM); the yard was closed first.",
}
"""Every status that is not of a code, and what it means."""


class LaunchError(Exception):
    """The command cannot go on: one sentence for people, and the status to exit with."""

    def __init__(self, message: str, *, status: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def status_of(code: CodeName | None) -> int:
    """Return what a call that ended with this code, or well, exits with."""
    return 0 if code is None else CODES[code].exit


_LENGTH: Final = 300
_OURS: Final = f"{Path(toolyard.__file__).parent}{os.sep}"
_COMPILED: Final = ".pyx"
_log = logging.getLogger(__name__)


def cause_of(error: BaseException) -> str:
    """Return what an exception says and where it was raised, as the end of a sentence."""
    outer, error = error, innermost(error)
    place = _place_of(error) or _place_of(outer)
    where = f" in '{shown_path(place[0])}', line {place[1]}" if place is not None else ""
    said = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    what = f": {said[:_LENGTH].removesuffix('.')}" if said else ""
    return f"{type(error).__name__}{where}{what}{'' if what.endswith(('?', '!')) else '.'}"


def refusal_of(failure: BaseException, yard: "Yard") -> str:
    """Return why a yard cannot be opened: a sentence of our own as it is, anything else with its place."""
    from toolyard.model.spec import PublishError  # noqa: PLC0415 - only for what went wrong

    error = innermost(failure)
    if isinstance(error, PublishError):
        return str(error)
    if isinstance(error, ValueError | ImportError) and is_own(error):
        return f"{error}{_origin(error, yard)}"
    return f"The yard '{yard.name}' cannot be opened: {cause_of(failure)}"


def failed_search(error: Exception, strategy: str) -> LaunchError:
    """Return what ends a command whose search failed, which is for whoever wrote the strategy to mend."""
    _log.debug("search_failed strategy=%s", strategy, exc_info=error)
    return LaunchError(f"The search strategy '{strategy}' failed: {cause_of(error)}", status=DEFECT)


def _origin(error: BaseException, yard: "Yard") -> str:
    """Return where the strategy came from that cannot be had, if not from the code of the yard."""
    from toolyard.search import StrategyError  # noqa: PLC0415 - only for what went wrong

    name = yard.origins.get("search.strategy", "").partition(" ")[2] if isinstance(error, StrategyError) else ""
    return f" It comes from '{name}'." if name else ""


def innermost(error: BaseException) -> BaseException:
    """Return the first exception of a group, however deep, or the exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def is_own(error: BaseException) -> bool:
    """Return whether an exception is our own, with none of somebody's code on its way, so that its message is for people."""
    return not _others(error)[1]


def shown_path(path: str) -> str:
    """Return a path as people write it from here."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


def _place_of(error: BaseException) -> tuple[str, int] | None:
    """Return the last place in somebody's own code, which is where they can mend it, or else in what is installed."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return error.filename, error.lineno or 1
    others, theirs = _others(error)
    return next(reversed(theirs or others), None)


def _others(error: BaseException) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the places on the way of an exception that are not in our code, and those of them that are somebody's own."""
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    others = [place for place in places if not place[0].startswith(("<", _OURS))]
    return others, [place for place in others if not place[0].startswith(_installed()) and not place[0].endswith(_COMPILED)]


@cache
def _installed() -> tuple[str, ...]:
    import sysconfig  # noqa: PLC0415 - only for what went wrong

    return tuple(f"{sysconfig.get_paths()[key]}{os.sep}" for key in ("stdlib", "purelib", "platlib"))
