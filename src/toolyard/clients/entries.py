"""Entries: how each client wants a server to be written, as a command or as an address."""

from collections.abc import Sequence
from typing import Any, Final

from toolyard.clients.known import Client

__all__ = ["entry_of_address", "entry_of_command"]

_TYPED: Final = {"vscode": "stdio", "vscode-insiders": "stdio", "copilot": "local", "goose": "stdio", "factory": "stdio"}
_ADDRESSES: Final[dict[str, tuple[str, str | None]]] = {
    "claude-code": ("url", "http"),
    "cursor": ("url", None),
    "vscode": ("url", "http"),
    "vscode-insiders": ("url", "http"),
    "windsurf": ("serverUrl", None),
    "codex": ("url", None),
    "gemini": ("httpUrl", None),
    "antigravity": ("serverUrl", None),
    "opencode": ("url", "remote"),
    "zed": ("url", None),
    "goose": ("uri", "streamable_http"),
    "lmstudio": ("url", None),
    "copilot": ("url", "http"),
    "cline": ("url", "streamableHttp"),
    "roo": ("url", "streamable-http"),
    "kiro": ("url", None),
    "factory": ("url", "http"),
    "kimi": ("url", None),
    "amazonq": ("url", "http"),
    "amp": ("url", None),
    "trae": ("url", None),
    "continue": ("url", "streamable-http"),
}


def entry_of_command(client: Client, command: Sequence[str], *, name: str) -> dict[str, Any]:
    """Return the entry that lets a client start a command."""
    if client.name == "opencode":
        return {"type": "local", "command": list(command), "enabled": True}
    program, *arguments = command
    if client.name == "goose":
        return {"name": name, "enabled": True, "type": "stdio", "cmd": program, "args": arguments, "timeout": 300}
    entry = {"command": program, "args": arguments}
    if client.name == "zed":
        return {"source": "custom", **entry}
    typed = {"type": _TYPED[client.name], **entry} if client.name in _TYPED else entry
    return {**typed, "tools": ["*"]} if client.name == "copilot" else typed


def entry_of_address(client: Client, address: str, *, name: str) -> dict[str, Any] | None:
    """Return the entry that lets a client call an address, nothing if it can only start commands."""
    if client.name not in _ADDRESSES:
        return None
    key, kind = _ADDRESSES[client.name]
    entry: dict[str, Any] = {**({"type": kind} if kind else {}), key: address}
    if client.name == "opencode":
        return {**entry, "enabled": True}
    if client.name == "goose":
        return {"name": name, "enabled": True, **entry, "timeout": 300}
    return {**entry, "tools": ["*"]} if client.name == "copilot" else entry
