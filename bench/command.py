"""The interface of a command: options in, a report out."""

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Command", "Options", "Report"]


class Options(NamedTuple):
    """The options of the command line."""

    rounds: int
    calls: int
    seconds: float
    eras: tuple[str, ...]
    peers: tuple[str, ...]


class Report(NamedTuple):
    """The result of a command: rows as data, a table, and whether something failed."""

    data: dict[str, Any]
    table: str
    fault: str = ""


Command = Callable[[Options], Report]
