"""The standard shape: what each client calls the parts of a server, brought to the words that most of them use."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from toolyard.config.foreign import OWN

__all__ = ["Entry", "standard_servers"]

Entry = dict[str, Any]

_SECTIONS: Final = ("mcpServers", "servers", "mcp_servers", "mcp", "context_servers", "amp.mcpServers", "extensions")
_SAME: Final = {
    "cmd": "command",
    "uri": "url",
    "envs": "env",
    "environment": "env",
    "http_headers": "headers",
}
_FILTERS: Final = {
    "includeTools": "tools",
    "enabled_tools": "tools",
    "excludeTools": "without",
    "disabled_tools": "without",
    "disabledTools": "without",
}
_SECONDS: Final = {"startup_timeout_sec": "connect_seconds", "tool_timeout_sec": "call_seconds"}
_INPUT: Final = re.compile(r"\$\{input:([^{}]+)\}")
_ENVIRONMENT: Final = re.compile(r"(?<!\$)\{env:(\w+)\}")
_FILE: Final = re.compile(r"(?<!\$)\{file:([^{}]+)\}")
_BARE: Final = re.compile(r"(?<!\$)\$([A-Za-z_]\w*)")


def standard_servers(document: object, section: tuple[str, ...], *, client: str, folder: Path, home: Path) -> dict[str, Entry]:
    """Return the servers of a client's document by name, in the standard shape; without a section those that stand anywhere."""
    servers = _section(document, section)
    return {name: _entry(entry, client, folders={"workspaceFolder": str(folder), "userHome": str(home)}) for name, entry in servers.items()}


def _section(document: object, section: tuple[str, ...]) -> dict[str, Any]:
    whole = _table(document)
    if not section:
        nested = _table(whole.get("mcp")).get("servers")
        found = next((whole[name] for name in _SECTIONS if name in whole), whole) if nested is None else nested
        return _named(found)
    for key in section:
        whole = _named(whole.get(key))
    return whole


def _named(servers: object) -> dict[str, Any]:
    """Return servers by name, also those of a list in which each says its own."""
    if isinstance(servers, list):
        entries = [_table(entry) for entry in cast("list[object]", servers)]
        return {str(entry["name"]): {key: value for key, value in entry.items() if key != "name"} for entry in entries if "name" in entry}
    return _table(servers)


def _entry(theirs: object, client: str, *, folders: Mapping[str, str]) -> Entry:
    entry: Entry = _rewritten(_table(theirs), client, folders)
    for word, ours in _SAME.items():
        if word in entry:
            entry.setdefault(ours, entry.pop(word))
    if "requestOptions" in entry:
        entry.setdefault("headers", _table(entry["requestOptions"]).get("headers", {}))
    _name_variables(entry)
    own = {ours: entry[word] for word, ours in _FILTERS.items() if _is_list(entry.get(word))}
    own |= {ours: entry[word] for word, ours in _SECONDS.items() if isinstance(entry.get(word), int | float)}
    if client == "copilot" and _is_list(entry.get("tools")):
        own["tools"] = entry["tools"]
    if own:
        entry[OWN] = {**own, **_table(entry.get(OWN))}
    return entry


def _name_variables(entry: Entry) -> None:
    """Say in our way which variables a server is given: by name, as a header, or as the token that it lets us in with."""
    env = {str(name): f"${{{name}}}" for word in ("env_vars", "env_keys") for name in _texts(entry.get(word))}
    if env:
        entry["env"] = {**env, **_table(entry.get("env"))}
    headers = {name: f"${{{variable}}}" for name, variable in _table(entry.get("env_http_headers")).items()}
    if isinstance(entry.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{entry['bearer_token_env_var']}}}"
    if headers:
        entry["headers"] = {**_table(entry.get("headers")), **headers}


def _rewritten(value: Any, client: str, folders: Mapping[str, str]) -> Any:
    """Return a value with every variable written as it is here."""
    if isinstance(value, dict):
        return {name: _rewritten(inner, client, folders) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_rewritten(inner, client, folders) for inner in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    text = _INPUT.sub(lambda found: "${" + re.sub(r"\W", "_", found[1]).upper() + "}", value)
    text = _FILE.sub(r"${secretref:file:\1}", _ENVIRONMENT.sub(r"${\1}", text))
    for name, folder in folders.items():
        text = text.replace(f"${{{name}}}", folder)
    return _BARE.sub(r"${\1}", text) if client in {"gemini", "antigravity"} else text


def _texts(value: object) -> list[str]:
    return [item for item in cast("list[Any]", value) if isinstance(item, str)] if isinstance(value, list) else []


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(_texts(cast("list[Any]", value))) == len(cast("list[Any]", value))


def _table(value: object) -> dict[str, Any]:
    return {str(name): inner for name, inner in cast("dict[Any, Any]", value).items()} if isinstance(value, dict) else {}
