"""Exit statuses: what the command line tells the shell.

A failed call exits with the status of its code, which `errors` knows.
"""

from typing import Final

from toolyard.errors import CODES, CodeName

__all__ = ["CLOSED_PIPE", "DEFECT", "DIFFERENT", "INTERRUPTED", "STATUSES", "TERMINATED", "USAGE", "CommandError", "status_of"]

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


class CommandError(Exception):
    """The command cannot go on: one sentence for people, and the status to exit with."""

    def __init__(self, message: str, *, status: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def status_of(code: CodeName | None) -> int:
    """Return what a call that ended with this code, or well, exits with."""
    return 0 if code is None else CODES[code].exit
