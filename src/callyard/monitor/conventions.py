"""The names of OpenTelemetry's conventions for MCP and generative AI, which are still in development.

All names that are exported are here and nowhere else, so that a change of the conventions is a change of this file.
"""

from typing import Final

__all__ = [
    "BOUNDS_S",
    "CALL_ID",
    "CALL_METHODS",
    "CLIENT_OPERATION",
    "CLIENT_SESSION",
    "ERROR_BLAME",
    "ERROR_CODE",
    "ERROR_TYPE",
    "EXECUTE_TOOL",
    "JOB_ID",
    "METHOD",
    "OPERATION",
    "OTHER_METHOD",
    "OWN",
    "PROMPT",
    "REQUEST_ID",
    "RETRY",
    "RPC_STATUS",
    "SERVER_ADDRESS",
    "SERVER_OPERATION",
    "SERVER_PORT",
    "SERVER_SESSION",
    "SESSION_ID",
    "SOURCE",
    "SPANS_DROPPED",
    "TOOL",
    "TOOL_ERROR",
    "TRANSPORT",
    "TRANSPORTS",
    "VERSION",
    "WAIT",
    "WAIT_KIND",
    "WAIT_SECONDS",
]

METHOD: Final = "mcp.method.name"
VERSION: Final = "mcp.protocol.version"
SESSION_ID: Final = "mcp.session.id"
OPERATION: Final = "gen_ai.operation.name"
EXECUTE_TOOL: Final = "execute_tool"
TOOL: Final = "gen_ai.tool.name"
PROMPT: Final = "gen_ai.prompt.name"
REQUEST_ID: Final = "jsonrpc.request.id"
RPC_STATUS: Final = "rpc.response.status_code"
ERROR_TYPE: Final = "error.type"
TOOL_ERROR: Final = "tool_error"
"""The `error.type` of a result with `isError`."""
TRANSPORT: Final = "network.transport"
TRANSPORTS: Final = {"stdio": "pipe", "http": "tcp", "sse": "tcp"}
"""The value of `network.transport`; calls in memory have none."""
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
OTHER_METHOD: Final = "_OTHER"
"""Stands for methods that do not exist, because clients choose their names."""
CALL_METHODS: Final = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
"""The methods that make a call, by the kind of what is called."""

SERVER_OPERATION: Final = "mcp.server.operation.duration"
CLIENT_OPERATION: Final = "mcp.client.operation.duration"
SERVER_SESSION: Final = "mcp.server.session.duration"
CLIENT_SESSION: Final = "mcp.client.session.duration"
BOUNDS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""The bounds of the four histograms, in seconds."""

OWN: Final = "callyard."
"""The prefix of the names that no convention has."""
CALL_ID: Final = f"{OWN}call.id"
JOB_ID: Final = f"{OWN}job.id"
SOURCE: Final = f"{OWN}source"
ERROR_CODE: Final = f"{OWN}error.code"
ERROR_BLAME: Final = f"{OWN}error.blame"
WAIT: Final = f"{OWN}wait"
WAIT_KIND: Final = f"{OWN}wait.kind"
WAIT_SECONDS: Final = f"{OWN}wait.seconds"
RETRY: Final = f"{OWN}retry"
SPANS_DROPPED: Final = f"{OWN}spans.dropped"
