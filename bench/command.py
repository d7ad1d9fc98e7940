"""What a command is: options in, a report out."""

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Command", "Options", "Report"]


class Options(NamedTuple):
    """What the command line asked for."""

    rounds: int
    calls: int
    seconds: float
    eras: tuple[str, ...]
    peers: tuple[str, ...]


class Report(NamedTuple):
    """What a command found: all of it as data, its table, and whether something is wrong."""

    data: dict[str, Any]
    table: str
    fault: str = ""


Command = Callable[[Options], Report]
