"""Messages to a server in both eras: the older has a handshake, the newer has all facts in each request."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = ["ERAS", "FIRST_ID", "Message", "body_of", "call", "handshake", "headers_of", "listing"]

FIRST_ID: Final = 10_000_000
"""The id that a body is written with; the generator puts others of the same length in its place."""

ERAS: Final = {"2025": "2025-11-25", "2026": "2026-07-28"}
"""The version that stands for each era."""

_CLIENT: Final = {"name": "bench", "version": "1"}
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": ERAS["2026"],
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Message(NamedTuple):
    """A request, and a text that every correct answer contains."""

    method: str
    params: Mapping[str, Any]
    expect: str


def call(tool: str, arguments: Mapping[str, Any], expect: str) -> Message:
    """Return a call of a tool."""
    return Message("tools/call", {"name": tool, "arguments": arguments}, expect)


def listing(expect: str, cursor: str = "") -> Message:
    """Return a request for the list of tools, or for the page at a cursor."""
    return Message("tools/list", {"cursor": cursor} if cursor else {}, expect)


def body_of(message: Message, era: str) -> str:
    """Return the request as JSON."""
    params = {**message.params, "_meta": _META} if era == "2026" else message.params
    return _compact(
        {"jsonrpc": "2.0", "id": FIRST_ID, "method": message.method, **({"params": params} if params else {})}
    )


def headers_of(message: Message, era: str, session: str = "") -> dict[str, str]:
    """Return the headers of the request over HTTP."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": ERAS[era],
    }
    if era == "2026":
        headers["Mcp-Method"] = message.method
        if "name" in message.params:
            headers["Mcp-Name"] = message.params["name"]
    return headers | ({"Mcp-Session-Id": session} if session else {})


def handshake() -> tuple[str, str]:
    """Return the two messages of the handshake in the older era: a request, and a notification after its answer."""
    params = {"protocolVersion": ERAS["2025"], "capabilities": {}, "clientInfo": _CLIENT}
    first = _compact({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    return first, _compact({"jsonrpc": "2.0", "method": "notifications/initialized"})


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
