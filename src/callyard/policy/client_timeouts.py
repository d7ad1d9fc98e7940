"""Time limits of MCP clients for one tool call, by the name that a client states.

The default timeout stays below them, so that an agent sees our `timeout` with its hint, and not the error of its client. Only clients
are listed whose own documentation or source names a limit below the default of 120 seconds; a person may have changed it there.
"""

from typing import Final

from callyard.dispatch.call import CLIENT_SHARE

__all__ = ["ClientTimeouts"]

_MAX_NAMES: Final = 1000
_SECONDS: Final = {
    # Claude Desktop uses the default of the TypeScript SDK, DEFAULT_REQUEST_TIMEOUT_MSEC = 60000, and has no setting for it:
    # https://github.com/anthropics/claude-code/issues/22542 and 63379. Claude Code itself states 'claude-code' and waits for
    # MCP_TOOL_TIMEOUT, by default 28 hours, so it is not listed.
    "claude-ai": 60.0,
    # Codex: 'tool_timeout_sec' of a server in 'config.toml', documented with the default 60.
    "codex-mcp-client": 60.0,
    # Cline and Roo Code: 'timeout' of a server in their settings; the default in 'src/services/mcp' of both is 60.
    "cline": 60.0,
    "roo code": 60.0,
}


class ClientTimeouts(dict[str, float]):
    """Maps the name of a client to the seconds that a call of it may take; 0 if its time limit is not known."""

    def __missing__(self, name: str) -> float:
        """Return the seconds for a name, and remember them."""
        known = _SECONDS.get(name.strip().lower(), 0.0) * CLIENT_SHARE
        if len(self) < _MAX_NAMES:
            self[name] = known
        return known
