"""Limits: times, sizes and counts that the dispatcher enforces, each a setting with a default."""

from typing import Any, Final

import msgspec

__all__ = ["CLEANUP_S", "LIVE", "Limits"]

CLEANUP_S: Final = 5.0
"""Seconds for one clean-up of a session, and for interrupted calls and jobs when a yard closes."""

_MAX_APPROVAL_S: Final = 7200.0
_CLIENT_SECONDS: Final = {
    # Claude Desktop uses the default of the TypeScript SDK, DEFAULT_REQUEST_TIMEOUT_MSEC = 60000, and has no setting
    # for it: https://github.com/anthropics/claude-code/issues/22542 and 63379. Claude Code itself states 'claude-code'
    # and waits for MCP_TOOL_TIMEOUT, by default 28 hours, so it is not listed.
    "claude-ai": 60.0,
    # Codex: 'tool_timeout_sec' of a server in 'config.toml', documented with the default 60.
    "codex-mcp-client": 60.0,
    # Cline and Roo Code: 'timeout' of a server in their settings; the default in 'src/services/mcp' of both is 60.
    "cline": 60.0,
    "roo code": 60.0,
}
"""Time limits of MCP clients for one call, by the name that they state; a person may have changed it there.

Only clients are listed whose own documentation or source names a limit below the default timeout.
"""


class Limits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Times, sizes and counts that the dispatcher enforces.

    A yard makes its own copy. The fields named in `LIVE` may be assigned while the yard is open.
    """

    timeout: float = 120.0
    """Timeout of a call in seconds, unless its tool has its own; 0 means none."""
    client_timeout: float = 0.0
    """Seconds that MCP clients wait for a call; 0 goes by the name of the client. The default timeout stays below."""
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
    threads: int = 64
    """Worker threads for handlers that block."""
    eval_characters: int = 100_000
    """Characters of an eval tool's payload."""
    schema_bytes: int = 256 * 1024
    """Bytes of a tool's schema."""
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

    def client_seconds(self, client: str) -> float:
        """Return how long a client with this name waits for a call; 0 if that is not known."""
        return self.client_timeout or _CLIENT_SECONDS.get(client.strip().lower(), 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return every limit by name."""
        return msgspec.structs.asdict(self)


_READ_AT_START: Final = ("listed_tokens", "name_characters", "repair", "schema_bytes", "session_idle", "store_bytes")
LIVE: Final = frozenset(Limits.__struct_fields__).difference(_READ_AT_START)
"""Limits that are read for every call, so that a change takes effect while a yard is open."""
