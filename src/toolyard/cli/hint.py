"""Hints: what a person who starts a server in a terminal wants to know, in a few lines."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence

from toolyard.cli.terminal import Painted, Part

__all__ = ["hint"]

Line = tuple[Part, ...]


def hint(name: str, address: str, *, transport: str, command: Sequence[str], keyed: bool) -> Iterator[Line]:
    """Return where a yard is served and how clients connect; `command` starts the server, `keyed` is whether an API key lets in."""
    known_as = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "yard"
    if transport == "stdio":
        yield (Painted(f"Serving '{name}' over stdio.", "bold"), " It waits for a client on stdin; Ctrl-C ends it.")
        yield ("",)
        yield from _ways(_over_stdio(known_as, command))
    elif address.startswith(("http://", "https://")):
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")
        yield ("",)
        yield from _ways(_over_http(known_as, address, transport=transport, keyed=keyed))
    else:
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")


def _ways(ways: dict[str, str]) -> Iterator[Line]:
    width = max(map(len, ways)) + 2
    yield from ((Painted(f"  {client:<{width}}", "faint"), way) for client, way in ways.items())


def _over_stdio(name: str, command: Sequence[str]) -> dict[str, str]:
    program, *arguments = command
    return {
        "Claude Code": f"claude mcp add {name} -- {shlex.join(command)}",
        "Cursor": _written({"mcpServers": {name: {"command": program, "args": arguments}}}),
        "Any MCP client": shlex.join(command),
    }


def _over_http(name: str, address: str, *, transport: str, keyed: bool) -> dict[str, str]:
    kind = "sse" if transport == "sse" else "http"
    header = ' --header "Authorization: Bearer KEY"' if keyed else ""
    headers = {"headers": {"Authorization": "Bearer KEY"}} if keyed else {}
    return {
        "Claude Code": f"claude mcp add --transport {kind} {name} {address}{header}",
        "Cursor": _written({"mcpServers": {name: {"url": address, **headers}}}),
        "Any MCP client": address,
    }


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
