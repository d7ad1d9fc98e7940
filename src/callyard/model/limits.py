"""Limits: times, sizes and counts that the dispatcher enforces, each a setting with a default."""

from typing import Any, Final

import msgspec

__all__ = ["LIVE", "Limits"]

_MAX_APPROVAL_S: Final = 7200.0


class Limits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Times, sizes and counts that the dispatcher enforces.

    A yard makes its own copy. The fields named in `LIVE` may be assigned while the yard is open.
    """

    timeout: float = 120.0
    """Timeout of a call in seconds, unless its tool has its own; 0 means none."""
    client_timeout: float = 0.0
    """Seconds that MCP clients wait for a call; the default timeout stays below. 0 uses what is known by the client's name."""
    job_timeout: float = 3600.0
    """Timeout of a job in seconds, unless its tool has its own; 0 means none."""
    job_ttl: float = 86_400.0
    """Seconds that a job and its result are kept after it ended."""
    jobs: int = 100
    """Jobs of one identity that run in one process at the same time."""
    approval_hold_s: float = 45.0
    """Seconds that a call is held for the approval of a person before it is answered with `approval_required`."""
    approval_ttl_s: float = 3600.0
    """Seconds until an approval expires; at most 7200."""
    slow: float = 1.0
    """Seconds after which a call is logged as slow."""
    depth: int = 4
    """Depth to which a tool may call other tools."""
    argument_bytes: int = 4 * 1024 * 1024
    """Bytes of a call's arguments as JSON, which may have at most 500,000 values."""
    result_characters: int = 50_000
    """Characters of an answer's data; longer data is stored and answered with a handle."""
    stored_bytes: int = 16 * 1024 * 1024
    """Bytes of one stored result."""
    stored_results: int = 100
    """Stored results per caller; the oldest is dropped first."""
    stored_seconds: float = 3600.0
    """Seconds until a stored result expires."""
    store_bytes: int = 256 * 1024 * 1024
    """Bytes of the in-memory store, which a yard has if it is given no other."""
    sessions: int = 1000
    """Live sessions of all callers together."""
    caller_sessions: int = 100
    """Live sessions of one caller."""
    session_idle: float = 1800.0
    """Seconds until an idle session is ended; 0 means never."""
    cleanup: float = 5.0
    """Seconds for one clean-up of a session, and for interrupted calls when a yard closes; 0 means no limit."""
    threads: int = 64
    """Worker threads for handlers that block."""
    abandoned: int = 16
    """Threads still running past their deadline; at this number, calls that need a thread are refused."""
    eval_characters: int = 100_000
    """Characters of an eval tool's payload."""
    schema_bytes: int = 256 * 1024
    """Bytes of a tool's schema."""
    schema_depth: int = 64
    """Nesting depth of a tool's schema."""
    name_characters: int = 48
    """Characters of a published name; clients put a prefix in front of it."""
    listed_tokens: int = 4000
    """Tokens of a tool list; the surface 'auto' lists metatools instead of a longer one."""
    repair: bool = True
    """Whether common mistakes of models in arguments are corrected."""

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            if not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"The limit '{name}' must be a number that is not negative.")
        if not 0 < self.approval_ttl_s <= _MAX_APPROVAL_S:
            raise ValueError(f"The limit 'approval_ttl_s' must be above 0 and at most {_MAX_APPROVAL_S:g}.")
        if self.threads < 1:
            raise ValueError("The limit 'threads' must be at least 1.")

    def as_dict(self) -> dict[str, Any]:
        """Return every limit by name."""
        return msgspec.structs.asdict(self)


_READ_AT_START: Final = ("listed_tokens", "name_characters", "repair", "schema_bytes", "schema_depth", "session_idle", "store_bytes")
LIVE: Final = frozenset(Limits.__struct_fields__).difference(_READ_AT_START)
"""Limits that are read for every call, so that a change takes effect while a yard is open."""
