"""The hint for a person who starts a server: where it is served, and how clients connect to it."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from toolyard.launch.notices import Line, Painted

__all__ = ["hint"]


def hint(name: str, address: str, *, transport: str, command: Sequence[str], keyed: bool, public_url: str | None = None) -> Iterator[Line]:
    """Return where a yard is served and how clients connect; `command` starts the server, `keyed` is whether an API key lets in."""
    known_as = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "yard"
    if transport == "stdio":
        yield (Painted(f"Serving '{name}' over stdio.", "bold"), " It waits for a client on stdin; Ctrl-C ends it.")
        yield ("",)
        yield from _ways(_over_stdio(known_as, command))
    elif address.startswith(("http://", "https://")):
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")
        yield ("",)
        yield from _ways(_over_http(known_as, _reached_at(address, public_url), transport=transport, keyed=keyed))
    else:
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")
        if address.startswith("unix:"):
            yield ("",)
            yield from _ways(_over_socket(known_as, address.removeprefix("unix:"), transport=transport, keyed=keyed, public_url=public_url))


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


def _over_socket(name: str, path: str, *, transport: str, keyed: bool, public_url: str | None) -> dict[str, str]:
    """Return how a socket is reached: by a proxy, and by clients through that where it is known how they call it."""
    endpoint, look = ("/sse", "/sse") if transport == "sse" else ("/mcp", "/healthz")
    curl = shlex.join(["curl", "--unix-socket", path, f"http://localhost{look}"])
    ways = {"nginx": f"proxy_pass http://unix:{path};", "A look at it": curl}
    if public_url is not None:
        ways |= _over_http(name, public_url.rstrip("/") + endpoint, transport=transport, keyed=keyed)
    return ways


def _reached_at(address: str, public_url: str | None) -> str:
    """Return what a client is given: the address that people know, or one on this machine where all of its are listened on."""
    parts = urlsplit(address)
    if public_url is not None:
        return public_url.rstrip("/") + parts.path
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(parts.hostname or "")  # noqa: S104 - nothing is listened on here
    return address if host is None else f"{parts.scheme}://{host}:{parts.port}{parts.path}"


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
