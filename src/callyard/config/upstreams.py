"""Upstreams as they are configured: in 'callyard.toml', in an MCP client's file, or as a URL.

References to variables and secrets stay unresolved until `UpstreamEntry.resolve`. No upstream is started here.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from callyard._internal.mask import MASK, mask_arguments
from callyard.config.convert import ConfigError, Location, References, Table, build_struct, check_keys, convert_fields, require_table
from callyard.config.read import RESERVED, colliding_name, is_upstream_name, to_upstream_name
from callyard.providers.upstream.settings import Identity, Login, UpstreamSettings

__all__ = [
    "DEFAULTS",
    "OWN",
    "UPSTREAMS",
    "ClientFile",
    "UpstreamEntry",
    "from_file",
    "from_target",
    "mask",
    "parse_json",
    "read_client_file",
    "read_document",
    "read_server",
]


OWN: Final = "callyard"
"""The key of a server entry that holds Callyard's settings; other clients ignore it."""
_SECTIONS: Final = ("mcpServers", "servers", "mcp_servers", "context_servers", "amp.mcpServers")
_TRANSPORTS: Final = {"stdio": "stdio", "local": "stdio", "http": "http", "streamablehttp": "http", "remote": "http", "sse": "sse"}
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
            raise ConfigError(f"{location} and '{found.locations[other].name}' would both be the upstream '{name}'. Rename one of them.")
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
        table = {"url": address, **_picked(theirs, "headers"), **({} if transport in {None, "stdio"} else {"transport": transport})}
    else:
        return "it has neither a 'command' nor a 'url'."
    if theirs.get("disabled") is True or theirs.get("enabled") is False:
        table["enabled"] = False
    return {**table, **_own(theirs.get(OWN, {}), location.child(f".{OWN}"))}


def _process(theirs: Table) -> Table:
    command = theirs["command"]
    nested = _object(command)  # some clients have an object with the program and its arguments here
    table = {**_picked(theirs, "args", "env", "cwd"), **_picked(nested, "args", "env"), "command": nested.get("path", command)}
    if isinstance(command, list) and command:
        more: Any = table.get("args", [])
        table |= {"command": command[0], "args": [*cast("list[Any]", command)[1:], *more] if isinstance(more, list) else more}
    if isinstance(table.get("env"), dict):
        table["env"] = {name: _text(value) for name, value in _object(table["env"]).items()}
    return table


def _own(ours: object, location: Location) -> Table:
    table = require_table(ours, location)
    check_keys(table, UpstreamSettings.__struct_fields__, location)
    return table


def _picked(table: Table, *names: str) -> Table:
    return {name: table[name] for name in names if name in table}


def _text(value: object) -> object:
    """Return a number or a boolean as text, because environment variables are text."""
    return str(value).lower() if isinstance(value, int | float) else value


def _object(value: object) -> Table:
    return cast("Table", value) if isinstance(value, dict) else {}


def _blank(match: re.Match[str]) -> str:
    """Return a string as it is, and anything else as spaces, so that byte offsets stay right."""
    return match[1] or "".join(character if character == "\n" else " " for character in match[0])


UPSTREAMS: Final = "upstreams"
DEFAULTS: Final = "upstream_defaults"
"""The table with settings for all upstreams of a file."""
_HIDDEN: Final = "…"
_OWN_ENDPOINT: Final = ("command", "url")
_TEXTS: Final = ("command", "cwd", "url")
_LOGIN_TEXTS: Final = ("client_id", "client_secret", "private_key", "client_metadata_url", "issuer")
_IDENTITY_TEXTS: Final = ("issuer", "client_id", "client_secret", "id_token")
_SECRETS: Final = ("client_secret", "private_key", "id_token")
_CREDENTIALS: Final = re.compile(r"(?<=//)[^/?#@]*(?=@)|(?<==)[^&#]+")


class UpstreamEntry(NamedTuple):
    """One configured upstream with unresolved references."""

    settings: UpstreamSettings
    fields: Table
    """The values that were set, without defaults."""
    location: Location
    folder: Path
    """The folder that relative paths start from."""
    runs_in_folder: bool
    """Whether a program without a 'cwd' runs in that folder."""

    def resolve(self, variables: Mapping[str, str], warn: Callable[[str], None]) -> UpstreamSettings:
        """Return the settings with every variable and secret filled in.

        Raises:
            ConfigError: A variable or secret is missing.
        """
        references = References(variables=variables, folder=self.folder, warn=warn)
        found: Table = {}
        for name in _TEXTS:
            value = getattr(self.settings, name)
            if value is not None:
                found[name] = references.resolve(value, self.location.child(f".{name}"))
        found["args"] = tuple(
            references.resolve(text, self.location.child(f".args[{number}]")) for number, text in enumerate(self.settings.args)
        )
        for name in ("env", "headers"):
            texts: dict[str, str] = getattr(self.settings, name)
            found[name] = {key: references.resolve(text, self.location.child(f".{name}.{key}")) for key, text in texts.items()}
        if self.settings.login is not None:
            found["login"] = _resolve_login(self.settings.login, references, self.location.child(".login"))
        if self.settings.command is not None and (self.runs_in_folder or "cwd" in found):
            found["cwd"] = str(self.folder.resolve() / Path(found.get("cwd", "")).expanduser())
        return msgspec.structs.replace(self.settings, **found)


def _resolve_login(login: Login, references: References, location: Location) -> Login:
    found: Table = dict(_resolve_fields(login, _LOGIN_TEXTS, references, location))
    found["scopes"] = tuple(references.resolve(scope, location.child(f".scopes[{number}]")) for number, scope in enumerate(login.scopes))
    if login.identity is not None:
        identity = _resolve_fields(login.identity, _IDENTITY_TEXTS, references, location.child(".identity"))
        found["identity"] = msgspec.structs.replace(login.identity, **identity)
    return msgspec.structs.replace(login, **found)


def _resolve_fields(struct: msgspec.Struct, names: tuple[str, ...], references: References, location: Location) -> dict[str, str]:
    return {name: references.resolve(text, location.child(f".{name}")) for name in names if (text := getattr(struct, name)) is not None}


def from_file(document: Table, path: Path) -> dict[str, UpstreamEntry]:
    """Return the upstreams of 'callyard.toml'.

    Raises:
        ConfigError: An upstream is wrong; the message names its key and the file.
    """
    common = _defaults(document.get(DEFAULTS, {}), Location(DEFAULTS, str(path)))
    entries: dict[str, UpstreamEntry] = {}
    whole = Location(UPSTREAMS, str(path))
    for name, table in require_table(document.get(UPSTREAMS, {}), whole).items():
        location = whole.child(f".{name}")
        if not is_upstream_name(name):
            why = "is reserved" if name in RESERVED else "has characters that names of upstreams cannot have"
            raise ConfigError(f"{location} needs another name: '{name}' {why}. Use '{to_upstream_name(name)}', for example.")
        other = colliding_name(name, list(entries))
        if other is not None:
            raise ConfigError(f"{location} and '{UPSTREAMS}.{other}' would give their tools the same names. Rename one of them.")
        entries[name] = _entry(table, location, common=common, folder=path.parent, runs_in_folder=True)
    return entries


def from_target(target: str) -> tuple[dict[str, UpstreamEntry], tuple[str, ...]]:
    """Return the upstreams of a client's file, or the one at a URL, and warnings.

    Raises:
        ConfigError: The file or the URL is wrong.
    """
    if "://" in target:
        entry = _entry({"url": target, "prefix": ""}, Location(_without_credentials(target)), folder=Path())
        return {to_upstream_name(_host_of(target)): entry}, ()
    path = Path(target)
    file = read_client_file(path)
    return {name: _entry(table, file.locations[name], folder=path.parent) for name, table in file.upstreams.items()}, file.warnings


def mask(name: str, value: Any) -> Any:
    """Return the value of a field with secrets masked, so that it can be shown."""
    if name in {"env", "headers"}:
        return dict.fromkeys(value, _HIDDEN)
    if name == "login":
        return _without_secrets(value)
    if name == "reshape":
        return {
            tool: {**_set_fields(change), **({"fixed": dict.fromkeys(change.fixed, _HIDDEN)} if change.fixed else {})}
            for tool, change in value.items()
        }
    if name == "args":
        return [argument.replace(MASK, _HIDDEN) for argument in mask_arguments(value)]
    return _without_credentials(value) if name == "url" else value


def _without_secrets(struct: msgspec.Struct) -> Table:
    return {
        name: _HIDDEN if name in _SECRETS else _without_secrets(value) if isinstance(value, Identity) else value
        for name, value in _set_fields(struct).items()
    }


def _set_fields(struct: msgspec.Struct) -> Table:
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if value not in (None, (), {}, False)}


def _without_credentials(address: str) -> str:
    return _CREDENTIALS.sub(_HIDDEN, address)


def _entry(table: object, location: Location, *, folder: Path, common: Table | None = None, runs_in_folder: bool = False) -> UpstreamEntry:
    fields = convert_fields(table, UpstreamSettings, location)
    return UpstreamEntry(build_struct(UpstreamSettings, {**(common or {}), **fields}, location), fields, location, folder, runs_in_folder)


def _defaults(table: object, location: Location) -> Table:
    fields = convert_fields(table, UpstreamSettings, location)
    for name in _OWN_ENDPOINT:
        if name in fields:
            raise ConfigError(f"{location.child(f'.{name}')} cannot be a default: each upstream has its own.")
    return fields


def _host_of(address: str) -> str:
    try:
        host = urlsplit(address).hostname
    except ValueError:
        host = None
    if not host:
        raise ConfigError(f"'{_without_credentials(address)}' is not a URL.")
    return host
