"""Servers read from the configuration files of clients, whose different keys become those that most clients use."""

import re
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, cast

from callyard.client_configs.clients import ClientFile, Environment
from callyard.config.convert import ConfigError, Location, Table, build_struct, convert_fields
from callyard.config.read import is_upstream_name, to_upstream_name
from callyard.config.upstreams import OWN, parse_json, read_server
from callyard.providers.upstream.settings import UpstreamSettings

__all__ = ["OURS", "YAML", "Server", "decode", "parse", "read_bytes", "read_servers", "runs_callyard"]

YAML: Final = (".yaml", ".yml")


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file, or None if it does not exist.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"The file '{path}' cannot be read: {error.strerror}.") from None


def decode(content: bytes, path: Path) -> str:
    """Return the text of a file; a byte order mark stays.

    Raises:
        ConfigError: It is not written in UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"The file '{path}' is not written in UTF-8.") from None


def parse(text: str, path: Path) -> object:
    """Return the document in a text, in the format of its file's suffix; an empty text is an empty document.

    Raises:
        ConfigError: It is not in that format.
    """
    text = text.removeprefix("\ufeff")
    if path.suffix in YAML:
        return _parse_yaml(text, path)
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        return parse_json(text, str(path)) if text.strip() else {}
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if path.suffix == ".toml":
            raise ConfigError(f"The file '{path}' is not valid TOML: {str(error).removesuffix('.')}.") from None
        raise ConfigError(f"The file '{path}' is nested too deeply.") from None


def _parse_yaml(text: str, path: Path) -> object:
    try:
        yaml: Any = import_module("yaml")  # few clients need it, so it is optional
    except ImportError:
        raise ConfigError(
            f"The file '{path}' is YAML, for which no parser is installed. Run 'pip install pyyaml'."
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"The file '{path}' is not valid YAML{where}.") from None


Entry = dict[str, Any]
_SECTIONS: Final = ("mcpServers", "servers", "mcp_servers", "mcp", "context_servers", "amp.mcpServers", "extensions")
_SYNONYMS: Final = {"cmd": "command", "uri": "url", "envs": "env", "environment": "env", "http_headers": "headers"}
_FILTERS: Final = {
    "includeTools": "tools",
    "enabled_tools": "tools",
    "excludeTools": "without",
    "disabled_tools": "without",
    "disabledTools": "without",
}
_SECONDS: Final = {"startup_timeout_sec": "connect_seconds", "tool_timeout_sec": "call_seconds"}


def _section(document: object, section: tuple[str, ...]) -> dict[str, Any]:
    """Return the servers of a document by name; without a section, those of any section."""
    whole = _table(document)
    if not section:
        nested = _table(whole.get("mcp")).get("servers")
        return _by_name(next((whole[name] for name in _SECTIONS if name in whole), whole) if nested is None else nested)
    for key in section:
        whole = _by_name(whole.get(key))
    return whole


def _by_name(servers: object) -> dict[str, Any]:
    """Return servers by name; in a list, each has its name inside."""
    if isinstance(servers, list):
        entries = [_table(entry) for entry in cast("list[object]", servers)]
        return {str(entry.pop("name")): entry for entry in entries if "name" in entry}
    return _table(servers)


def _standard_entry(original: object, client: str, *, folders: Mapping[str, str]) -> Entry:
    """Return an entry with the keys that most clients use."""
    entry: Entry = _rewritten(_table(original), client, folders)
    for word, ours in _SYNONYMS.items():
        if word in entry:
            entry.setdefault(ours, entry.pop(word))
    if "requestOptions" in entry:
        entry.setdefault("headers", _table(entry["requestOptions"]).get("headers", {}))
    _add_variables(entry)
    own = {ours: entry[word] for word, ours in _FILTERS.items() if _is_list(entry.get(word))}
    own |= {ours: entry[word] for word, ours in _SECONDS.items() if isinstance(entry.get(word), int | float)}
    if client == "copilot" and _is_list(entry.get("tools")):
        own["tools"] = entry["tools"]
    if own:
        entry[OWN] = {**own, **_table(entry.get(OWN))}
    return entry


def _add_variables(entry: Entry) -> None:
    """Turn names of variables into references: in the environment, in headers and as a bearer token."""
    env = {str(name): f"${{{name}}}" for word in ("env_vars", "env_keys") for name in _texts(entry.get(word))}
    if env:
        entry["env"] = {**env, **_table(entry.get("env"))}
    headers = {name: f"${{{variable}}}" for name, variable in _table(entry.get("env_http_headers")).items()}
    if isinstance(entry.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{entry['bearer_token_env_var']}}}"
    if headers:
        entry["headers"] = {**_table(entry.get("headers")), **headers}


def _rewritten(value: Any, client: str, folders: Mapping[str, str]) -> Any:
    """Return a value with every reference in the syntax of Callyard."""
    if isinstance(value, dict):
        return {name: _rewritten(inner, client, folders) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_rewritten(inner, client, folders) for inner in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    text = re.sub(r"\$\{input:([^{}]+)\}", lambda match: "${" + re.sub(r"\W", "_", match[1]).upper() + "}", value)
    text = re.sub(r"(?<!\$)\{env:(\w+)\}", r"${\1}", text)
    text = re.sub(r"(?<!\$)\{file:([^{}]+)\}", r"${secretref:file:\1}", text)
    for name, folder in folders.items():
        text = text.replace(f"${{{name}}}", folder)
    return re.sub(r"(?<!\$)\$([A-Za-z_]\w*)", r"${\1}", text) if client in {"gemini", "antigravity"} else text


def _texts(value: object) -> list[str]:
    return [item for item in cast("list[Any]", value) if isinstance(item, str)] if isinstance(value, list) else []


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(_texts(cast("list[Any]", value))) == len(cast("list[Any]", value))


def _table(value: object) -> dict[str, Any]:
    return {str(key): inner for key, inner in cast("dict[Any, Any]", value).items()} if isinstance(value, dict) else {}


OURS: Final = "callyard"
"""The default name of Callyard in the files of clients."""


class Server(NamedTuple):
    """A server of a client: its name there and here, and its table, or else the reason why it has none."""

    client: str
    file: Path
    original_name: str
    name: str
    table: Table
    reason: str = ""


def read_servers(file: ClientFile, environment: Environment) -> list[Server]:
    """Return the servers of a file; an unusable one has a reason.

    Raises:
        ConfigError: The file cannot be read or understood.
    """
    content = read_bytes(file.path)
    if content is None:
        raise ConfigError(f"There is no file '{file.path}'.")
    parsed = parse(decode(content, file.path), file.path)
    if not isinstance(parsed, dict):
        raise ConfigError(f"The file '{file.path}' has no servers in it.")
    client, folder, document = file.client, environment.folder, cast("dict[str, object]", parsed)
    servers = _section(document, client.section)
    if client.name == "claude-code":  # which has servers of each folder, too
        servers |= _section(_table(document.get("projects")).get(str(folder)), client.section)
    folders = {"workspaceFolder": str(folder), "userHome": str(environment.home)}
    entries = {name: _standard_entry(entry, client.name, folders=folders) for name, entry in servers.items()}
    return [_server(file, name, entry, folder=folder) for name, entry in entries.items()]


def runs_callyard(entry: Entry) -> bool:
    """Return whether an entry runs Callyard, as 'callyard connect' writes it."""
    command = entry.get("command")
    words = [*_texts([command]), *_texts(command), *_texts(entry.get("args"))]
    programs = [PurePath(word.replace("\\", "/")).stem for word in words]
    return (OURS, "serve") in zip(programs, words[1:], strict=False)


def _server(file: ClientFile, original: str, entry: Entry, *, folder: Path) -> Server:
    name = original if is_upstream_name(original) else to_upstream_name(original)
    server = Server(file.client.name, file.path, original, name, {})
    place = Location(".".join([*file.client.section, original]), str(file.path))
    if original == OURS or runs_callyard(entry):
        return server._replace(reason="It is Callyard itself.")
    try:
        table = read_server(entry, place)
        if isinstance(table, str):
            return server._replace(reason=f"{table[:1].upper()}{table[1:]}")
        build_struct(UpstreamSettings, convert_fields(table, UpstreamSettings, place), place)
    except ConfigError as error:
        return server._replace(reason=str(error))
    if file.scope == "project" and "command" in table:
        table["cwd"] = str(folder / table.get("cwd", ""))
    return server._replace(table=table)
