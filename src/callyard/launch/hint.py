"""The hint at the start of a server: its address, and how clients connect."""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

from callyard.launch.notices import Line, Painted

__all__ = ["console_base", "hint"]


def hint(
    name: str,
    address: str,
    *,
    transport: str,
    command: Sequence[str],
    keyed: bool,
    public_url: str | None = None,
    console: Callable[[str], str] | None = None,
) -> Iterator[Line]:
    """Return the lines of the hint; `command` starts the server, `keyed` says that clients need an API key.

    `console` returns the address of the console, with its token, for the server at a URL.
    """
    client_name = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "yard"
    if transport == "stdio":
        yield (Painted(f"Serving '{name}' over stdio.", "bold"), " It waits for a client on stdin; Ctrl-C ends it.")
        yield ("",)
        yield from _entries(_over_stdio(client_name, command))
    elif address.startswith(("http://", "https://")):
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")
        yield from _console_line(console, address, public_url)
        yield ("",)
        yield from _entries(_over_http(client_name, _client_url(address, public_url), transport=transport, keyed=keyed))
    else:
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")
        yield from _console_line(console, address, public_url)
        if address.startswith("unix:"):
            yield ("",)
            path = address.removeprefix("unix:")
            yield from _entries(_over_socket(client_name, path, transport=transport, keyed=keyed, public_url=public_url))


def console_base(address: str, public_url: str | None) -> str:
    """Return the URL below which the console of a server is."""
    if address.startswith("unix:"):
        return (public_url or "http://localhost").rstrip("/")
    return _client_url(address, public_url).removesuffix(urlsplit(address).path)


def _console_line(console: Callable[[str], str] | None, address: str, public_url: str | None) -> Iterator[Line]:
    if console is not None:
        yield (Painted("The console is at ", "bold"), Painted(console(console_base(address, public_url)), "good"))


def _entries(entries: dict[str, str]) -> Iterator[Line]:
    width = max(map(len, entries)) + 2
    yield from ((Painted(f"  {client:<{width}}", "faint"), text) for client, text in entries.items())


def _over_stdio(name: str, command: Sequence[str]) -> dict[str, str]:
    program, *arguments = command
    return {
        "Claude Code": f"claude mcp add {name} -- {shlex.join(command)}",
        "Cursor": _json({"mcpServers": {name: {"command": program, "args": arguments}}}),
        "Any MCP client": shlex.join(command),
    }


def _over_http(name: str, address: str, *, transport: str, keyed: bool) -> dict[str, str]:
    kind = "sse" if transport == "sse" else "http"
    header = ' --header "Authorization: Bearer KEY"' if keyed else ""
    headers = {"headers": {"Authorization": "Bearer KEY"}} if keyed else {}
    return {
        "Claude Code": f"claude mcp add --transport {kind} {name} {address}{header}",
        "Cursor": _json({"mcpServers": {name: {"url": address, **headers}}}),
        "Any MCP client": address,
    }


def _over_socket(name: str, path: str, *, transport: str, keyed: bool, public_url: str | None) -> dict[str, str]:
    """Return how a proxy reaches a socket, and how clients reach the proxy if its URL is set."""
    endpoint, check = ("/sse", "/sse") if transport == "sse" else ("/mcp", "/healthz")
    curl = shlex.join(["curl", "--unix-socket", path, f"http://localhost{check}"])
    entries = {"nginx": f"proxy_pass http://unix:{path};", "Check": curl}
    if public_url is not None:
        entries |= _over_http(name, public_url.rstrip("/") + endpoint, transport=transport, keyed=keyed)
    return entries


def _client_url(address: str, public_url: str | None) -> str:
    """Return the URL for clients: the public one, or a loopback address where the server listens on all addresses."""
    parts = urlsplit(address)
    if public_url is not None:
        return public_url.rstrip("/") + parts.path
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(parts.hostname or "")  # noqa: S104 - nothing listens here
    return address if host is None else f"{parts.scheme}://{host}:{parts.port}{parts.path}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
