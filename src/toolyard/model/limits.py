"""Limits: the numbers the funnel keeps to, each a setting with a default."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = ["LIVE", "Limits", "change_limits"]

LIVE: Final = frozenset(
    {
        "abandoned",
        "argument_bytes",
        "cleanup",
        "depth",
        "eval_characters",
        "result_characters",
        "sessions",
        "slow",
        "stored_bytes",
        "stored_results",
        "stored_seconds",
        "threads",
        "timeout",
    }
)
"""Limits that are looked at for each call, so that they can change while a yard is open."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers the funnel keeps to."""

    timeout: float = 120.0
    """Seconds a call may take, unless its tool says otherwise; 0 is for ever."""
    slow: float = 1.0
    """Seconds after which a call is logged as slow."""
    depth: int = 4
    """Calls inside calls."""
    argument_bytes: int = 4 * 1024 * 1024
    """Size of a call's arguments as JSON."""
    result_characters: int = 50_000
    """Length of an answer's data before it becomes a handle."""
    stored_bytes: int = 16 * 1024 * 1024
    """Size of one stored result."""
    stored_results: int = 100
    """Stored results of one caller; the oldest goes first."""
    stored_seconds: float = 3600.0
    """Seconds a stored result is kept."""
    store_bytes: int = 256 * 1024 * 1024
    """Size of everything that a yard without a store of its own keeps in memory."""
    sessions: int = 1000
    """Live sessions of all callers together."""
    session_idle: float = 1800.0
    """Seconds a session may be idle before it is ended; 0 is for ever."""
    cleanup: float = 5.0
    """Seconds one clean-up of a session may take, and a closing yard waits for the calls it interrupted; 0 is for ever."""
    threads: int = 64
    """Worker threads for handlers that block."""
    abandoned: int = 16
    """Threads that may run on past their deadline before calls that need one are refused."""
    eval_characters: int = 100_000
    """Length of a payload that an eval tool takes."""
    schema_bytes: int = 256 * 1024
    """Size of a tool's schema."""
    schema_depth: int = 64
    """Depth of a tool's schema."""
    name_characters: int = 48
    """Length of a published name; clients put a prefix in front of it."""
    listed_tokens: int = 4000
    """What a list may cost before an automatic surface shows metatools instead."""
    repair: bool = True
    """Whether arguments that models get wrong in known ways are put right."""

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            if not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"The limit '{name}' must be a number that is not negative.")
        if self.threads < 1:
            raise ValueError("The limit 'threads' must be at least 1.")

    def as_dict(self) -> dict[str, Any]:
        """Return every limit by name."""
        return msgspec.structs.asdict(self)


def change_limits(limits: Limits, values: Mapping[str, Any]) -> None:
    """Change the limits of a yard that is open, in place, because everything that keeps to them holds this one object."""
    for name, value in values.items():
        msgspec.structs.force_setattr(limits, name, value)
