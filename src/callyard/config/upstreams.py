"""Upstreams as they are configured: in 'callyard.toml', in an MCP client's file, or as a URL.

References to variables and secrets stay unresolved until `UpstreamEntry.resolve`. No upstream is started here.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from callyard._internal.mask import MASK, mask_arguments
from callyard.config.convert import (
    ConfigError,
    Location,
    References,
    Table,
    build_struct,
    check_keys,
    convert_fields,
    require_table,
)
from callyard.config.read import RESERVED, colliding_name, is_upstream_name, to_upstream_name
from callyard.providers.upstream.settings import Identity, ResolvedUpstream, UpstreamSettings

__all__ = [
    "DEFAULTS",
    "HIDDEN",
    "OWN",
    "UPSTREAMS",
    "ClientFile",
    "UpstreamEntry",
    "from_code",
    "from_file",
    "from_target",
    "parse_json",
    "read_client_file",
    "read_document",
    "read_server",
    "resolve_value",
    "without_credentials",
    "without_secrets",
]


OWN: Final = "callyard"
"""The key of a server entry that holds Callyard's settings; other clients ignore it."""
_SECTIONS: Final = ("mcpServers", "servers", "mcp_servers", "context_servers", "amp.mcpServers")
_TRANSPORTS: Final = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamablehttp": "http",
    "remote": "http",
    "sse": "sse",
}
_ADDRESSES: Final = ("url", "httpUrl", "serverUrl")
_TEXT_OR_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_BYTE_OFFSET: Final = re.compile(r" \(byte (\d+)\)")
_TEXT_OR_COMMA: Final = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\Z))|,(?=\s*[}\]])')


class ClientFile(NamedTuple):
    """The servers of a client's file as tables of '[upstreams.NAME]', the location of each, and warnings."""

    upstreams: dict[str, Table]
    locations: dict[str, Location]
    warnings: tuple[str, ...]


def read_client_file(path: Path) -> ClientFile:
    """Read a client's file.

    Raises:
        ConfigError: It cannot be read, or is not a client's file.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"The file '{path}' cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The file '{path}' is not UTF-8.") from None
    return read_document(parse_json(text, str(path)), str(path))


def parse_json(text: str, file: str) -> object:
    """Parse JSON with comments and trailing commas, which clients allow.

    Raises:
        ConfigError: It is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        json_text = _TEXT_OR_COMMA.sub(_blank, _TEXT_OR_COMMENT.sub(_blank, text))
    try:
        return msgspec.json.decode(json_text)
    except msgspec.DecodeError as error:
        offset = _BYTE_OFFSET.search(str(error))
        before = json_text.encode()[: int(offset[1])] if offset else json_text.encode()
        line, why = before.count(b"\n") + 1, _BYTE_OFFSET.sub("", str(error)).removesuffix(".")
        raise ConfigError(f"The file '{file}' is not JSON in line {line}: {why}.") from None


def read_document(document: object, file: str) -> ClientFile:
    """Return the servers of a client's parsed file.

    Raises:
        ConfigError: There are none, two get the same name, or a Callyard setting is unknown.
    """
    found = ClientFile({}, {}, ())
    warnings: list[str] = []
    section, servers = _servers(document, file)
    for theirs, entry in servers.items():
        location = Location(f"{section}.{theirs}" if section else theirs, file)
        table = read_server(entry, location)
        if isinstance(table, str):
            warnings.append(f"{location} is left out: {table}")
            continue
        name = theirs if is_upstream_name(theirs) else to_upstream_name(theirs)
        other = name if name in found.locations else colliding_name(name, list(found.locations))
        if other is not None:
            both = f"{location} and '{found.locations[other].name}'"
            raise ConfigError(f"{both} would both be the upstream '{name}'. Rename one of them.")
        if name != theirs:
            warnings.append(f"{location} is named '{name}' here.")
        found.upstreams[name], found.locations[name] = table, location
    return found._replace(warnings=tuple(warnings))


def _servers(document: object, file: str) -> tuple[str, Table]:
    """Return the section that has the servers, empty at the top level, and the servers."""
    whole = _object(document)
    mcp = _object(whole.get("mcp"))
    if isinstance(mcp.get("servers"), dict):
        return "mcp.servers", mcp["servers"]
    for section in _SECTIONS:
        if isinstance(whole.get(section), dict):
            return section, whole[section]
    if whole and all(_object(entry).keys() & {"command", *_ADDRESSES} for entry in whole.values()):
        return "", whole
    raise ConfigError(f"There are no servers in '{file}'. They belong under 'mcpServers' or 'servers'.")


def read_server(entry: object, location: Location) -> Table | str:
    """Return a client's server entry as a table of '[upstreams.NAME]', or the reason why it cannot be used.

    Raises:
        ConfigError: A Callyard setting in it is unknown.
    """
    theirs = {key: value for key, value in _object(entry).items() if value is not None}
    kind = str(theirs.get("type") or theirs.get("transport") or "")
    transport = _TRANSPORTS.get(re.sub("[-_]", "", kind.lower()))
    if kind and transport is None:
        return f"its type '{kind}' is not supported."
    address = next((theirs[key] for key in _ADDRESSES if key in theirs), None)
    if "command" in theirs and (transport == "stdio" or address is None):
        table = _process(theirs)
    elif address is not None:
        table = {"url": address, **_picked(theirs, "headers")}
        if transport not in {None, "stdio"}:
            table["transport"] = transport
    else:
        return "it has neither a 'command' nor a 'url'."
    if theirs.get("disabled") is True or theirs.get("enabled") is False:
        table["enabled"] = False
    own = require_table(theirs.get(OWN, {}), location.child(f".{OWN}"))
    check_keys(own, UpstreamSettings.__struct_fields__, location.child(f".{OWN}"))
    return {**table, **own}


def _process(theirs: Table) -> Table:
    command = theirs["command"]
    nested = _object(command)  # some clients have an object with the program and its arguments here
    table = {
        **_picked(theirs, "args", "env", "cwd"),
        **_picked(nested, "args", "env"),
        "command": nested.get("path", command),
    }
    if isinstance(command, list) and command:
        more: Any = table.get("args", [])
        args: Any = [*cast("list[Any]", command)[1:], *more] if isinstance(more, list) else more
        table |= {"command": command[0], "args": args}
    if isinstance(table.get("env"), dict):
        table["env"] = env = dict(_object(table["env"]))
        for name, value in env.items():
            if isinstance(value, int | float):  # environment variables are text
                env[name] = str(value).lower()
    return table


def _picked(table: Table, *names: str) -> Table:
    return {name: table[name] for name in names if name in table}


def _object(value: object) -> Table:
    return cast("Table", value) if isinstance(value, dict) else {}


def _blank(match: re.Match[str]) -> str:
    """Return a string as it is, and anything else as spaces, so that byte offsets stay right."""
    return match[1] or "".join(character if character == "\n" else " " for character in match[0])


UPSTREAMS: Final = "upstreams"
DEFAULTS: Final = "upstream_defaults"
"""The table with settings for all upstreams of a file."""
HIDDEN: Final = "…"
"""What is shown in place of a secret."""
_WITH_REFERENCES: Final = ("command", "args", "env", "cwd", "url", "headers", "login")
_SECRETS: Final = ("client_secret", "private_key", "id_token")
_CREDENTIALS: Final = re.compile(r"(?<=//)[^/?#@]*(?=@)|(?<==)[^&#]+")


class UpstreamEntry(NamedTuple):
    """One configured upstream with unresolved references."""

    settings: UpstreamSettings
    fields: Table
    """The values that were set, without defaults."""
    location: Location
    folder: Path
    runs_in_folder: bool
    """Whether a program without a 'cwd' runs in that folder."""

    def masked(self) -> Table:
        """Return the values that were set, with secrets masked, so that they can be shown."""
        return {name: _mask(name, value) for name, value in self.fields.items()}

    def resolve(self, variables: Mapping[str, str], warn: Callable[[str], None]) -> UpstreamSettings:
        """Return the settings with every variable and secret filled in.

        Raises:
            ConfigError: A variable or secret is missing.
        """
        references = References(variables=variables, folder=self.folder, warn=warn)
        found = {
            name: resolve_value(getattr(self.settings, name), references, self.location.child(f".{name}"))
            for name in _WITH_REFERENCES
        }
        if self.settings.command is not None and (self.runs_in_folder or found["cwd"] is not None):
            found["cwd"] = str(self.folder.resolve() / Path(found["cwd"] or "").expanduser())
        return msgspec.structs.replace(self.settings, **found)

    def try_resolve(self, variables: Mapping[str, str], warn: Callable[[str], None]) -> ResolvedUpstream:
        """Return the settings with every variable and secret, or the problem, which must not stop other upstreams."""
        try:
            return ResolvedUpstream(self.resolve(variables, warn))
        except ConfigError as error:
            return ResolvedUpstream(self.settings, str(error))


def resolve_value(value: Any, references: References, location: Location) -> Any:
    """Return a value of the settings with every reference in it filled in.

    Raises:
        ConfigError: A variable or secret is missing.
    """
    if isinstance(value, str):
        return references.resolve(value, location)
    if isinstance(value, tuple):
        items = enumerate(cast("tuple[Any, ...]", value))
        return tuple(resolve_value(item, references, location.child(f"[{number}]")) for number, item in items)
    if not isinstance(value, dict | msgspec.Struct):
        return value
    fields = cast("Table", value) if isinstance(value, dict) else msgspec.structs.asdict(value)
    found = {name: resolve_value(item, references, location.child(f".{name}")) for name, item in fields.items()}
    return found if isinstance(value, dict) else msgspec.structs.replace(value, **found)


def from_file(document: Table, path: Path) -> dict[str, UpstreamEntry]:
    """Return the upstreams of 'callyard.toml'.

    Raises:
        ConfigError: An upstream is wrong; the message names its key and the file.
    """
    defaults = Location(DEFAULTS, str(path))
    common = convert_fields(document.get(DEFAULTS, {}), UpstreamSettings, defaults)
    for name in ("command", "url"):
        if name in common:
            raise ConfigError(f"{defaults.child(f'.{name}')} cannot be a default: each upstream has its own.")
    whole = Location(UPSTREAMS, str(path))
    tables = require_table(document.get(UPSTREAMS, {}), whole)
    return _entries(tables, whole, common=common, folder=path.parent, runs_in_folder=True)


def from_code(upstreams: Mapping[str, Any], warn: Callable[[str], None]) -> dict[str, ResolvedUpstream]:
    """Return the enabled upstreams of a program, with variables and secrets; paths start from the current folder.

    Raises:
        ConfigError: An upstream is wrong; the message names its key.
    """
    entries = _entries(upstreams, Location(UPSTREAMS), common={}, folder=Path(), runs_in_folder=False).items()
    return {name: entry.try_resolve(os.environ, warn) for name, entry in entries if entry.settings.enabled}


def _entries(
    tables: Mapping[str, Any], whole: Location, *, common: Table, folder: Path, runs_in_folder: bool
) -> dict[str, UpstreamEntry]:
    entries: dict[str, UpstreamEntry] = {}
    for name, table in tables.items():
        location = whole.child(f".{name}")
        if not is_upstream_name(name):
            why = "is reserved" if name in RESERVED else "has characters that names of upstreams cannot have"
            usable = to_upstream_name(name)
            raise ConfigError(f"{location} needs another name: '{name}' {why}. Use '{usable}', for example.")
        other = colliding_name(name, list(entries))
        if other is not None:
            both = f"{location} and '{UPSTREAMS}.{other}'"
            raise ConfigError(f"{both} would give their tools the same names. Rename one of them.")
        entries[name] = _entry(table, location, common=common, folder=folder, runs_in_folder=runs_in_folder)
    return entries


def from_target(target: str) -> tuple[dict[str, UpstreamEntry], tuple[str, ...]]:
    """Return the upstreams of a client's file, or the one at a URL, and warnings.

    Raises:
        ConfigError: The file or the URL is wrong.
    """
    if "://" in target:
        shown = without_credentials(target)
        entry = _entry({"url": target, "prefix": ""}, Location(shown), folder=Path())
        host = None
        with suppress(ValueError):
            host = urlsplit(target).hostname
        if not host:
            raise ConfigError(f"'{shown}' is not a URL.")
        return {to_upstream_name(host): entry}, ()
    path = Path(target)
    upstreams, locations, warnings = read_client_file(path)
    return {name: _entry(table, locations[name], folder=path.parent) for name, table in upstreams.items()}, warnings


def _mask(name: str, value: Any) -> Any:
    if name in {"env", "headers"}:
        return dict.fromkeys(value, HIDDEN)
    if name == "login":
        return without_secrets(value)
    if name == "reshape":
        return {tool: without_secrets(change) for tool, change in value.items()}
    if name == "args":
        return [argument.replace(MASK, HIDDEN) for argument in mask_arguments(value)]
    return without_credentials(value) if name == "url" else value


def without_secrets(struct: msgspec.Struct) -> Table:
    """Return the fields that are set, with secrets and fixed arguments masked."""
    shown: Table = {}
    for name, value in msgspec.structs.asdict(struct).items():
        if value in (None, (), {}, False):
            continue
        shown[name] = HIDDEN if name in _SECRETS else value
        if name == "fixed":
            shown[name] = dict.fromkeys(value, HIDDEN)
        elif isinstance(value, Identity):
            shown[name] = without_secrets(value)
    return shown


def without_credentials(address: str) -> str:
    """Return a URL with what may be credentials in it masked."""
    return _CREDENTIALS.sub(HIDDEN, address)


def _entry(
    table: object, location: Location, *, folder: Path, common: Table | None = None, runs_in_folder: bool = False
) -> UpstreamEntry:
    fields = convert_fields(table, UpstreamSettings, location)
    settings = build_struct(UpstreamSettings, {**(common or {}), **fields}, location)
    return UpstreamEntry(settings, fields, location, folder, runs_in_folder)
