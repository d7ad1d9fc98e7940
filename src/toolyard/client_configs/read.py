"""The standard shape: what each client calls the parts of a server, brought to the words that most of them use."""

import re
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, cast

from toolyard.client_configs.known import Found, Surroundings
from toolyard.config.convert import ConfigError, Location, Table, build_struct, convert_fields
from toolyard.config.read import is_upstream_name, to_upstream_name
from toolyard.config.upstreams import OWN, parse_json, read_server
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = ["OURS", "YAML", "Entry", "Server", "decode", "parse", "read_bytes", "read_servers", "runs_toolyard", "standard_servers"]


YAML: Final = (".yaml", ".yml")
"""How the names of files in YAML end."""


def read_bytes(path: Path) -> bytes | None:
    """Return what is in a file, nothing if there is no such file.

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
    """Return the text of a file; a mark of the order of bytes stays.

    Raises:
        ConfigError: It is not written in UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"The file '{path}' is not written in UTF-8.") from None


def parse(text: str, path: Path) -> object:
    """Return what a text says, as the name of its file tells how to read it; one without any content says nothing.

    Raises:
        ConfigError: It says nothing that can be understood.
    """
    plain = text.removeprefix("\ufeff")
    if path.suffix == ".toml":
        return _parse_toml(plain, path)
    if path.suffix in YAML:
        return _parse_yaml(plain, path)
    if not plain.strip():
        return {}
    try:
        return parse_json(plain, str(path))
    except RecursionError:
        raise ConfigError(f"The file '{path}' is nested too deeply.") from None


def _parse_toml(text: str, path: Path) -> object:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"The file '{path}' is no TOML: {str(error).removesuffix('.')}.") from None


def _parse_yaml(text: str, path: Path) -> object:
    try:
        yaml: Any = import_module("yaml")  # few clients need it, so it is no requirement of ours
    except ImportError:
        raise ConfigError(f"The file '{path}' is YAML, and no reader for it is installed; 'pip install pyyaml' brings one.") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"The file '{path}' is no YAML{where}.") from None


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


OURS: Final = "toolyard"
"""What Toolyard is called in the files of clients, unless somebody chose another name."""


class Server(NamedTuple):
    """A server of a client: what it is called there and here, and its table, or else why it has none."""

    client: str
    file: Path
    theirs: str
    name: str
    table: Table
    why: str = ""


def read_servers(found: Found, surroundings: Surroundings) -> list[Server]:
    """Return the servers of a file; what is wrong with one is said of that one.

    Raises:
        ConfigError: The file cannot be read or understood.
    """
    content = read_bytes(found.path)
    if content is None:
        raise ConfigError(f"There is no file '{found.path}'.")
    parsed = parse(decode(content, found.path), found.path)
    if not isinstance(parsed, dict):
        raise ConfigError(f"The file '{found.path}' has no servers in it.")
    document, folder = cast("dict[str, object]", parsed), surroundings.folder
    documents: list[tuple[object, tuple[str, ...]]] = [(document, found.client.section)]
    if found.client.name == "claude-code":
        documents.append((_of_project(document, folder), found.client.section))
    servers: dict[str, Entry] = {}
    for part, section in documents:
        servers |= standard_servers(part, section, client=found.client.name, folder=folder, home=surroundings.home)
    return [_server(found, name, entry, folder=folder) for name, entry in servers.items()]


def runs_toolyard(entry: Entry) -> bool:
    """Return whether a server is Toolyard itself, as 'toolyard connect' writes it."""
    fields = [entry.get("command"), entry.get("args")]
    parts = [part for field in fields for part in (cast("list[object]", field) if isinstance(field, list) else [field])]
    words = [part for part in parts if isinstance(part, str)]
    for number, word in enumerate(words[:-1]):
        is_ours = PurePath(word.replace("\\", "/")).stem == OURS
        if is_ours and words[number + 1] == "serve":
            return True
    return False


def _of_project(document: dict[str, object], folder: Path) -> object:
    """Return what Claude Code keeps for one folder alone."""
    projects = document.get("projects")
    return cast("dict[str, object]", projects).get(str(folder)) if isinstance(projects, dict) else None


def _server(found: Found, theirs: str, entry: Entry, *, folder: Path) -> Server:
    name = theirs if is_upstream_name(theirs) else to_upstream_name(theirs)
    server = Server(found.client.name, found.path, theirs, name, {})
    place = Location(".".join([*found.client.section, theirs]), str(found.path))
    if theirs == OURS or runs_toolyard(entry):
        return server._replace(why="It is Toolyard itself.")
    try:
        table = read_server(entry, place)
        if isinstance(table, str):
            return server._replace(why=f"{table[:1].upper()}{table[1:]}")
        build_struct(UpstreamSettings, convert_fields(table, UpstreamSettings, place), place)
    except ConfigError as error:
        return server._replace(why=str(error))
    if found.scope == "project" and "command" in table:
        table["cwd"] = str(folder / table.get("cwd", ""))
    return server._replace(table=table)
