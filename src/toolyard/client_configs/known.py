"""Clients that are known: what they are called, where their files are and under which key their servers stand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

__all__ = ["CLIENTS", "Client", "Found", "Scope", "Surroundings", "entry_of_address", "entry_of_command", "find_files", "path_for"]


Scope = Literal["user", "project"]
_JSON_SECTION: Final = ("mcpServers",)
_VSCODE_STORAGE: Final = "{apps}/Code/User/globalStorage"


class Client(NamedTuple):
    """A client: its name, as people know it, where its servers stand, and its files, those that are written first."""

    name: str
    title: str
    user: tuple[str, ...]
    project: tuple[str, ...] = ()
    section: tuple[str, ...] = _JSON_SECTION


class Surroundings(NamedTuple):
    """What decides where files are: the system, the environment, the user's home and the folder of the project."""

    platform: str
    variables: Mapping[str, str]
    home: Path
    folder: Path

    def path(self, pattern: str) -> Path:
        """Return the path that a pattern stands for here."""
        home = str(self.home)
        config = self._named("XDG_CONFIG_HOME", f"{home}/.config")
        roaming = self._named("APPDATA", f"{home}/AppData/Roaming")
        apps = {"darwin": f"{home}/Library/Application Support", "win32": roaming}.get(self.platform, config)
        places = {
            "home": home,
            "config": config,
            "apps": apps,
            "claude": self._named("CLAUDE_CONFIG_DIR", home),
            "codex": self._named("CODEX_HOME", f"{home}/.codex"),
            "goose": f"{roaming}/Block/goose/config" if self.platform == "win32" else f"{config}/goose",
            "zed": f"{roaming}/Zed" if self.platform == "win32" else f"{config}/zed",
            "opencode": self._named("OPENCODE_CONFIG", f"{config}/opencode/opencode.json"),
        }
        return self.folder / pattern.format_map(places)

    def _named(self, variable: str, usual: str) -> str:
        return self.variables.get(variable) or usual


class Found(NamedTuple):
    """A file of a client that is there."""

    client: Client
    scope: Scope
    path: Path


CLIENTS: Final[Mapping[str, Client]] = {
    client.name: client
    for client in (
        Client("claude-code", "Claude Code", ("{claude}/.claude.json",), (".mcp.json",)),
        Client("claude-desktop", "Claude Desktop", ("{apps}/Claude/claude_desktop_config.json",)),
        Client("cursor", "Cursor", ("{home}/.cursor/mcp.json",), (".cursor/mcp.json",)),
        Client("vscode", "VS Code", ("{apps}/Code/User/mcp.json",), (".vscode/mcp.json",), ("servers",)),
        Client("vscode-insiders", "VS Code Insiders", ("{apps}/Code - Insiders/User/mcp.json",), (), ("servers",)),
        Client("windsurf", "Windsurf", ("{home}/.codeium/windsurf/mcp_config.json",)),
        Client("codex", "Codex", ("{codex}/config.toml",), (".codex/config.toml",), ("mcp_servers",)),
        Client("gemini", "Gemini CLI", ("{home}/.gemini/settings.json",), (".gemini/settings.json",)),
        Client("antigravity", "Antigravity", ("{home}/.gemini/antigravity/mcp_config.json",)),
        Client(
            "opencode",
            "OpenCode",
            ("{opencode}", "{config}/opencode/opencode.jsonc"),
            ("opencode.json", "opencode.jsonc"),
            ("mcp",),
        ),
        Client("zed", "Zed", ("{zed}/settings.json",), (".zed/settings.json",), ("context_servers",)),
        Client("goose", "Goose", ("{goose}/config.yaml",), (), ("extensions",)),
        Client("lmstudio", "LM Studio", ("{home}/.lmstudio/mcp.json", "{home}/.cache/lm-studio/mcp.json")),
        Client("copilot", "Copilot CLI", ("{home}/.copilot/mcp-config.json",)),
        Client("cline", "Cline", (f"{_VSCODE_STORAGE}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",)),
        Client("roo", "Roo Code", (f"{_VSCODE_STORAGE}/rooveterinaryinc.roo-cline/settings/mcp_settings.json",), (".roo/mcp.json",)),
        Client("kiro", "Kiro", ("{home}/.kiro/settings/mcp.json",), (".kiro/settings/mcp.json",)),
        Client("factory", "Factory", ("{home}/.factory/mcp.json",), (".factory/mcp.json",)),
        Client("kimi", "Kimi", ("{home}/.kimi/mcp.json",)),
        Client("amazonq", "Amazon Q", ("{home}/.aws/amazonq/mcp.json",), (".amazonq/mcp.json",)),
        Client("amp", "Amp", ("{config}/amp/settings.json",), (".amp/settings.json",), ("amp.mcpServers",)),
        Client("trae", "Trae", ("{apps}/Trae/User/mcp.json",)),
        Client("continue", "Continue", ("{home}/.continue/config.yaml",)),
    )
}
"""Every client that is known, by name."""


def find_files(client: Client, surroundings: Surroundings) -> list[Found]:
    """Return the files of a client that are there, the user's first."""
    found: dict[Path, Found] = {}
    scopes: tuple[tuple[Scope, tuple[str, ...]], ...] = (("user", client.user), ("project", client.project))
    for scope, patterns in scopes:
        for path in map(surroundings.path, patterns):
            if path.is_file():
                found.setdefault(path.resolve(), Found(client, scope, path))
    return list(found.values())


def path_for(client: Client, surroundings: Surroundings, scope: Scope) -> Path | None:
    """Return the file of a client that is written: the first that is there, or else the usual one; nothing if it has none of that kind."""
    patterns = client.user if scope == "user" else client.project
    paths = [surroundings.path(pattern) for pattern in patterns]
    return next((path for path in paths if path.is_file()), paths[0] if paths else None)


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
