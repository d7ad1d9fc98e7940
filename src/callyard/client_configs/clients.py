"""MCP clients: their names, where their configuration files are, and how an entry for a server looks there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "CLIENTS",
    "Client",
    "ClientFile",
    "Environment",
    "Scope",
    "command_entry",
    "find_files",
    "path_to_write",
    "url_entry",
]

Scope = Literal["user", "project"]
_NOTHING: Final[Mapping[str, str]] = {}
_STORAGE: Final = "{apps}/Code/User/globalStorage"
_TYPED: Final[Mapping[str, Any]] = {"url_type": "http", "command_type": "stdio"}
_VSCODE: Final[Mapping[str, Any]] = {"section": ("servers",), **_TYPED}


class Client(NamedTuple):
    """An MCP client, and the format of its configuration files."""

    name: str
    title: str
    user: tuple[str, ...]
    """Patterns of the user's files; the first is the one to create."""
    project: tuple[str, ...] = ()
    section: tuple[str, ...] = ("mcpServers",)
    url_key: str | None = "url"
    """The key of a server's URL; None if the client can only start commands."""
    url_type: str | None = None
    """The type of a server with a URL, if entries need one."""
    command_type: str | None = None
    """The type of a server with a command, if entries need one."""


class Environment(NamedTuple):
    """What decides where files are: the platform, variables, the user's home and the project's folder."""

    platform: str
    variables: Mapping[str, str]
    home: Path
    folder: Path

    def path(self, pattern: str) -> Path:
        """Return the path of a pattern."""
        home = str(self.home)
        config = self._variable("XDG_CONFIG_HOME", f"{home}/.config")
        roaming = self._variable("APPDATA", f"{home}/AppData/Roaming")
        apps = {"darwin": f"{home}/Library/Application Support", "win32": roaming}.get(self.platform, config)
        places = {
            "home": home,
            "config": config,
            "apps": apps,
            "claude": self._variable("CLAUDE_CONFIG_DIR", home),
            "codex": self._variable("CODEX_HOME", f"{home}/.codex"),
            "goose": f"{roaming}/Block/goose/config" if self.platform == "win32" else f"{config}/goose",
            "zed": f"{roaming}/Zed" if self.platform == "win32" else f"{config}/zed",
            "opencode": self._variable("OPENCODE_CONFIG", f"{config}/opencode/opencode.json"),
        }
        return self.folder / pattern.format_map(places)

    def _variable(self, name: str, default: str) -> str:
        return self.variables.get(name) or default


class ClientFile(NamedTuple):
    """An existing file of a client."""

    client: Client
    scope: Scope
    path: Path


CLIENTS: Final[Mapping[str, Client]] = {
    client.name: client
    for client in (
        Client("claude-code", "Claude Code", ("{claude}/.claude.json",), (".mcp.json",), url_type="http"),
        Client("claude-desktop", "Claude Desktop", ("{apps}/Claude/claude_desktop_config.json",), url_key=None),
        Client("cursor", "Cursor", ("{home}/.cursor/mcp.json",), (".cursor/mcp.json",)),
        Client("vscode", "VS Code", ("{apps}/Code/User/mcp.json",), (".vscode/mcp.json",), **_VSCODE),
        Client("vscode-insiders", "VS Code Insiders", ("{apps}/Code - Insiders/User/mcp.json",), **_VSCODE),
        Client("windsurf", "Windsurf", ("{home}/.codeium/windsurf/mcp_config.json",), url_key="serverUrl"),
        Client("codex", "Codex", ("{codex}/config.toml",), (".codex/config.toml",), ("mcp_servers",)),
        Client(
            "gemini", "Gemini CLI", ("{home}/.gemini/settings.json",), (".gemini/settings.json",), url_key="httpUrl"
        ),
        Client("antigravity", "Antigravity", ("{home}/.gemini/antigravity/mcp_config.json",), url_key="serverUrl"),
        Client(
            "opencode",
            "OpenCode",
            ("{opencode}", "{config}/opencode/opencode.jsonc"),
            ("opencode.json", "opencode.jsonc"),
            ("mcp",),
            url_type="remote",
        ),
        Client("zed", "Zed", ("{zed}/settings.json",), (".zed/settings.json",), ("context_servers",)),
        Client(
            "goose", "Goose", ("{goose}/config.yaml",), (), ("extensions",), url_key="uri", url_type="streamable_http"
        ),
        Client("lmstudio", "LM Studio", ("{home}/.lmstudio/mcp.json", "{home}/.cache/lm-studio/mcp.json")),
        Client("copilot", "Copilot CLI", ("{home}/.copilot/mcp-config.json",), url_type="http", command_type="local"),
        Client(
            "cline",
            "Cline",
            (f"{_STORAGE}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",),
            url_type="streamableHttp",
        ),
        Client(
            "roo",
            "Roo Code",
            (f"{_STORAGE}/rooveterinaryinc.roo-cline/settings/mcp_settings.json",),
            (".roo/mcp.json",),
            url_type="streamable-http",
        ),
        Client("kiro", "Kiro", ("{home}/.kiro/settings/mcp.json",), (".kiro/settings/mcp.json",)),
        Client("factory", "Factory", ("{home}/.factory/mcp.json",), (".factory/mcp.json",), **_TYPED),
        Client("kimi", "Kimi", ("{home}/.kimi/mcp.json",)),
        Client("amazonq", "Amazon Q", ("{home}/.aws/amazonq/mcp.json",), (".amazonq/mcp.json",), url_type="http"),
        Client("amp", "Amp", ("{config}/amp/settings.json",), (".amp/settings.json",), ("amp.mcpServers",)),
        Client("trae", "Trae", ("{apps}/Trae/User/mcp.json",)),
        Client("continue", "Continue", ("{home}/.continue/config.yaml",), url_type="streamable-http"),
    )
}


def find_files(client: Client, environment: Environment) -> list[ClientFile]:
    """Return the existing files of a client, the user's first."""
    files: dict[Path, ClientFile] = {}
    scopes: tuple[tuple[Scope, tuple[str, ...]], ...] = (("user", client.user), ("project", client.project))
    for scope, patterns in scopes:
        for path in map(environment.path, patterns):
            if path.is_file():
                files.setdefault(path.resolve(), ClientFile(client, scope, path))
    return list(files.values())


def path_to_write(client: Client, environment: Environment, scope: Scope) -> Path | None:
    """Return the first existing file of a client, or the one to create; None if it has no files of that scope."""
    paths = list(map(environment.path, client.user if scope == "user" else client.project))
    return next((path for path in paths if path.is_file()), paths[0] if paths else None)


_VARIABLES_KEYS: Final = {"opencode": "environment", "goose": "envs"}
"""The key of environment variables in clients that do not call it 'env'."""


def command_entry(
    client: Client, command: Sequence[str], *, name: str, variables: Mapping[str, str] = _NOTHING
) -> dict[str, Any]:
    """Return the entry that lets a client start a command with environment variables."""
    env: dict[str, Any] = {_VARIABLES_KEYS.get(client.name, "env"): dict(variables)} if variables else {}
    if client.name == "opencode":
        return {"type": "local", "command": list(command), **env, "enabled": True}
    program, *arguments = command
    if client.name == "goose":
        entry = {"name": name, "enabled": True, "type": "stdio", "cmd": program, "args": arguments}
        return {**entry, **env, "timeout": 300}
    entry: dict[str, Any] = {"type": client.command_type} if client.command_type else {}
    if client.name == "zed":
        entry = {"source": "custom"}
    return {**entry, "command": program, "args": arguments, **env, **_extras(client)}


def url_entry(client: Client, url: str, *, name: str, headers: Mapping[str, str] = _NOTHING) -> dict[str, Any] | None:
    """Return the entry that lets a client call a URL with headers; None if the client can only start commands."""
    if client.url_key is None:
        return None
    entry: dict[str, Any] = {**({"type": client.url_type} if client.url_type else {}), client.url_key: url}
    if headers and client.name == "continue":
        entry["requestOptions"] = {"headers": dict(headers)}
    elif headers:
        entry["http_headers" if client.name == "codex" else "headers"] = dict(headers)
    if client.name == "opencode":
        return {**entry, "enabled": True}
    if client.name == "goose":
        return {"name": name, "enabled": True, **entry, "timeout": 300}
    return {**entry, **_extras(client)}


_EXTRAS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Both clients hide the tools of servers behind a search of their own, with many tools or always, unless their file
    # says otherwise: colbymchenry/codegraph, pull request 1697, 2026-09-04. What lists few tools is better seen.
    "claude-code": {"alwaysLoad": True},
    "copilot": {"tools": ["*"], "deferTools": "never"},
}


def _extras(client: Client) -> dict[str, Any]:
    return dict(_EXTRAS.get(client.name, {}))
