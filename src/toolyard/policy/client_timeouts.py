"""Time limits of MCP clients for one tool call, by the name that a client states.

The default timeout stays below them, so that an agent sees our `timeout` with its hint, and not the error of its client. Only clients
are listed whose own documentation or source names a limit below the default of 120 seconds; a person may have changed it there.
"""

from typing import Final

__all__ = ["ClientTimeouts"]

_SHARE: Final = 0.9
"""The share of a client's time limit that a call may take; the rest is for the way there and back."""
_MAX_NAMES: Final = 1000
_SECONDS: Final = {
    # Claude Desktop uses the default of the TypeScript SDK, DEFAULT_REQUEST_TIMEOUT_MSEC = 60000, and has no setting for it:
    # https://github.com/anthropics/claude-code/issues/22542 and 63379. Claude Code itself states 'claude-code' and waits for
    # MCP_TOOL_TIMEOUT, by default 28 hours, so it is not listed.
    "claude-ai": 60.0,
    # Codex: 'tool_timeout_sec' of a server in 'config.toml', documented with the default 60.
    "codex-mcp-client": 60.0,
    # Cline and Roo Code: the timeout of a server in their settings, DEFAULT_MCP_TIMEOUT_SECONDS = 60 in the source of Cline.
    "cline": 60.0,
    "roo code": 60.0,
}


class ClientTimeouts(dict[str, float]):
    """Maps the name of a client to the seconds that a call of it may take; 0 if its time limit is not known."""

    def __missing__(self, name: str) -> float:
        """Return the seconds for a name, and remember them."""
        known = _SECONDS.get(name.strip().lower(), 0.0) * _SHARE
        if len(self) < _MAX_NAMES:
            self[name] = known
        return known

    @staticmethod
    def below(limit: float) -> float:
        """Return the seconds that a call may take if its client waits for `limit` seconds."""
        return limit * _SHARE
