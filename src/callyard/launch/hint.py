"""What a server says once it listens: the hint for a person at a terminal, and where its console is."""

import json
import logging
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from urllib.parse import urlsplit

from callyard._internal.files import find_state_dir, write_atomically
from callyard._internal.logfmt import log_value
from callyard._internal.project import project_dir
from callyard.config import Config
from callyard.launch.notices import Line, Painted
from callyard.yard import Yard

__all__ = ["hint", "log_console"]

_log = logging.getLogger("callyard.launch.serve")


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
        program, *arguments = command
        server = {"command": program, "args": arguments}
        entries = {
            "Claude Code": f"claude mcp add {client_name} -- {shlex.join(command)}",
            "Cursor": json.dumps({"mcpServers": {client_name: server}}, ensure_ascii=False),
            "Any MCP client": shlex.join(command),
        }
    else:
        yield (Painted(f"Serving '{name}' at ", "bold"), Painted(address, "good"), " until Ctrl-C.")
        if console is not None:
            yield (Painted("The console is at ", "bold"), Painted(console(_console_base(address, public_url)), "good"))
        entries = {}
        if address.startswith(("http://", "https://")):
            entries = _over_http(client_name, _client_url(address, public_url), transport=transport, keyed=keyed)
        elif address.startswith("unix:"):
            path = address.removeprefix("unix:")
            entries = _over_socket(client_name, path, transport=transport, keyed=keyed, public_url=public_url)
    if entries:
        yield ("",)
        width = max(map(len, entries)) + 2
        yield from ((Painted(f"  {client:<{width}}", "faint"), text) for client, text in entries.items())


def _console_base(address: str, public_url: str | None) -> str:
    if address.startswith("unix:"):
        return (public_url or "http://localhost").rstrip("/")
    return _client_url(address, public_url).removesuffix(urlsplit(address).path)


def log_console(console: Callable[[str], str], yard: Yard, config: Config, address: str) -> None:
    """Log where the console is; a private file has the address with the token, because others may read the log."""
    login = console(_console_base(address, config.settings.serve.public_url))
    try:
        state = find_state_dir(config.settings.state_dir or yard.state_dir)
        # by the real address, because several servers of a project may run at one time
        place = sha256(address.encode()).hexdigest()[:12] if address.startswith("unix:") else urlsplit(address).port
        path = project_dir(state, config.project) / f"console-{place}.url"
        write_atomically(path, f"{login}\n".encode())
    except OSError as error:
        reason = log_value(error.strerror or str(error))
        _log.warning("console_address_not_written address=%s reason=%s", login.partition("#")[0], reason)
    else:
        _log.info("console address=%s file=%s", login.partition("#")[0], log_value(str(path)))


def _over_http(name: str, address: str, *, transport: str, keyed: bool) -> dict[str, str]:
    kind = "sse" if transport == "sse" else "http"
    header = ' --header "Authorization: Bearer KEY"' if keyed else ""
    headers = {"headers": {"Authorization": "Bearer KEY"}} if keyed else {}
    return {
        "Claude Code": f"claude mcp add --transport {kind} {name} {address}{header}",
        "Cursor": json.dumps({"mcpServers": {name: {"url": address, **headers}}}, ensure_ascii=False),
        "Any MCP client": address,
    }


def _over_socket(name: str, path: str, *, transport: str, keyed: bool, public_url: str | None) -> dict[str, str]:
    """Return how a proxy reaches a socket, and how clients reach the proxy if its URL is set."""
    endpoint = "/sse" if transport == "sse" else "/mcp"
    curl = shlex.join(["curl", "--unix-socket", path, "http://localhost/healthz"])
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
