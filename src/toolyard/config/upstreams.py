"""Upstreams as they are written: in 'toolyard.toml', in a client's file, or as an address; and what they are once all is looked up."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from toolyard.config.convert import ConfigError, Place, References, Table, fitted_fields, made, table_of, unknown
from toolyard.config.read import RESERVED, is_name, made_name, twin_of
from toolyard.providers.upstream.settings import Identity, Login, UpstreamSettings

__all__ = [
    "DEFAULTS",
    "OWN",
    "UPSTREAMS",
    "Foreign",
    "Written",
    "from_file",
    "from_target",
    "masked",
    "parse_json",
    "read_document",
    "read_foreign",
    "read_server",
]


OWN: Final = "toolyard"
"""The object of a server that holds our own settings, so that its file stays valid for everybody else."""
_SECTIONS: Final = ("mcpServers", "servers", "mcp_servers", "context_servers", "amp.mcpServers")
_CARRIERS: Final = {"stdio": "stdio", "local": "stdio", "http": "http", "streamablehttp": "http", "remote": "http", "sse": "sse"}
_ADDRESSES: Final = ("url", "httpUrl", "serverUrl")
_TEXT_OR_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_PLACE: Final = re.compile(r" \(byte (\d+)\)")
_TEXT_OR_COMMA: Final = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\Z))|,(?=\s*[}\]])')


class Foreign(NamedTuple):
    """What a client's file has: tables as '[upstreams.NAME]' would have them, where each stands, and what a person should know."""

    upstreams: dict[str, Table]
    places: dict[str, Place]
    warnings: tuple[str, ...]


def read_foreign(path: Path) -> Foreign:
    """Read a client's file.

    Raises:
        ConfigError: It cannot be read or understood.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"The file '{path}' cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The file '{path}' is not written in UTF-8.") from None
    return read_document(parse_json(text, str(path)), str(path))


def parse_json(text: str, file: str) -> object:
    """Return what JSON says, with the comments and trailing commas that clients allow.

    Raises:
        ConfigError: It is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        plain = _TEXT_OR_COMMA.sub(_blank, _TEXT_OR_COMMENT.sub(_blank, text))
    try:
        return msgspec.json.decode(plain)
    except msgspec.DecodeError as error:
        found = _PLACE.search(str(error))
        before = plain.encode()[: int(found[1])] if found else plain.encode()
        line, why = before.count(b"\n") + 1, _PLACE.sub("", str(error)).removesuffix(".")
        raise ConfigError(f"The file '{file}' is no JSON in line {line}: {why}.") from None


def read_document(document: object, file: str) -> Foreign:
    """Return the servers of a client's document.

    Raises:
        ConfigError: There are none, two get the same name, or one of our own settings is not known.
    """
    found = Foreign({}, {}, ())
    warnings: list[str] = []
    section, servers = _servers(document, file)
    for theirs, entry in servers.items():
        place = Place(f"{section}.{theirs}" if section else theirs, file)
        table = read_server(entry, place)
        if isinstance(table, str):
            warnings.append(f"{place} is left out: {table}")
            continue
        name = theirs if is_name(theirs) else made_name(theirs)
        twin = name if name in found.places else twin_of(name, list(found.places))
        if twin is not None:
            raise ConfigError(f"{place} and '{found.places[twin].name}' would both be the upstream '{name}'. Give one another name.")
        if name != theirs:
            warnings.append(f"{place} is the upstream '{name}' here.")
        found.upstreams[name], found.places[name] = table, place
    return found._replace(warnings=tuple(warnings))


def _servers(document: object, file: str) -> tuple[str, Table]:
    """Return the section that has the servers, nothing if they stand at the top, and the servers."""
    whole = _object(document)
    mcp = _object(whole.get("mcp"))
    if isinstance(mcp.get("servers"), dict):
        return "mcp.servers", mcp["servers"]
    for section in _SECTIONS:
        if isinstance(whole.get(section), dict):
            return section, whole[section]
    if whole and all(_object(entry).keys() & {"command", *_ADDRESSES} for entry in whole.values()):
        return "", whole
    raise ConfigError(f"There are no servers in '{file}': they stand under 'mcpServers' or 'servers'.")


def read_server(entry: object, place: Place) -> Table | str:
    """Return a server as our own table has it, or why it cannot be used.

    Raises:
        ConfigError: One of our own settings is not known.
    """
    theirs = {key: value for key, value in _object(entry).items() if value is not None}
    kind = str(theirs.get("type") or theirs.get("transport") or "")
    carrier = _CARRIERS.get(re.sub("[-_]", "", kind.lower()))
    if kind and carrier is None:
        return f"its type is '{kind}', which is not spoken here."
    address = next((theirs[key] for key in _ADDRESSES if key in theirs), None)
    if "command" in theirs and (carrier == "stdio" or address is None):
        table = _process(theirs)
    elif address is not None:
        table = {"url": address, **_picked(theirs, "headers"), **({} if carrier in {None, "stdio"} else {"transport": carrier})}
    else:
        return "it has neither a 'command' nor a 'url'."
    if theirs.get("disabled") is True or theirs.get("enabled") is False:
        table["enabled"] = False
    return {**table, **_own(theirs.get(OWN, {}), place.inside(f".{OWN}"))}


def _process(theirs: Table) -> Table:
    command = theirs["command"]
    nested = _object(command)  # some clients keep the program and what belongs to it in one object
    table = {**_picked(theirs, "args", "env", "cwd"), **_picked(nested, "args", "env"), "command": nested.get("path", command)}
    if isinstance(command, list) and command:
        more: Any = table.get("args", [])
        table |= {"command": command[0], "args": [*cast("list[Any]", command)[1:], *more] if isinstance(more, list) else more}
    if isinstance(table.get("env"), dict):
        table["env"] = {name: _text(value) for name, value in _object(table["env"]).items()}
    return table


def _own(ours: object, place: Place) -> Table:
    if not isinstance(ours, dict):
        raise ConfigError(f"{place} must be a table.")
    table = cast("Table", ours)
    known = list(UpstreamSettings.__struct_fields__)
    for name in table:
        if name not in known:
            raise unknown(place.inside(f".{name}"), known, elsewhere={})
    return table


def _picked(table: Table, *names: str) -> Table:
    return {name: table[name] for name in names if name in table}


def _text(value: object) -> object:
    """Return a number or a switch as the text that a variable can be."""
    return str(value).lower() if isinstance(value, int | float) else value


def _object(value: object) -> Table:
    return cast("Table", value) if isinstance(value, dict) else {}


def _blank(found: re.Match[str]) -> str:
    return found[1] or "".join(character if character == "\n" else " " for character in found[0])


UPSTREAMS: Final = "upstreams"
DEFAULTS: Final = "upstream_defaults"
"""The table of what all upstreams of a file have in common."""
_HIDDEN: Final = "…"
_REACHES: Final = ("command", "url")
_SINGLE: Final = ("command", "cwd", "url")
_OF_LOGIN: Final = ("client_id", "client_secret", "private_key", "client_metadata_url", "issuer")
_OF_IDENTITY: Final = ("issuer", "client_id", "client_secret", "id_token")
_SECRETS: Final = ("client_secret", "private_key", "id_token")
_CREDENTIALS: Final = re.compile(r"(?<=//)[^/?#@]*(?=@)|(?<==)[^&#]+")


class Written(NamedTuple):
    """One upstream as it is written, where that is, and the folder that its paths are seen from."""

    settings: UpstreamSettings
    fields: Table
    """What is said of it, without what is there by default."""
    place: Place
    folder: Path
    runs_there: bool
    """Whether a program without a folder of its own runs in that one."""

    def settled(self, variables: Mapping[str, str], warn: Callable[[str], None]) -> UpstreamSettings:
        """Return it with every variable and secret that it refers to.

        Raises:
            ConfigError: One is not there.
        """
        look = References(variables=variables, folder=self.folder, warn=warn)
        found: Table = {}
        for name in _SINGLE:
            value = getattr(self.settings, name)
            if value is not None:
                found[name] = look.text(value, self.place.inside(f".{name}"))
        found["args"] = tuple(look.text(one, self.place.inside(f".args[{number}]")) for number, one in enumerate(self.settings.args))
        for name in ("env", "headers"):
            texts: dict[str, str] = getattr(self.settings, name)
            found[name] = {key: look.text(text, self.place.inside(f".{name}.{key}")) for key, text in texts.items()}
        if self.settings.login is not None:
            found["login"] = _settled_login(self.settings.login, look, self.place.inside(".login"))
        if self.settings.command is not None and (self.runs_there or "cwd" in found):
            found["cwd"] = str(self.folder.resolve() / Path(found.get("cwd", "")).expanduser())
        return msgspec.structs.replace(self.settings, **found)


def _settled_login(login: Login, look: References, place: Place) -> Login:
    found: Table = dict(_looked_up(login, _OF_LOGIN, look, place))
    found["scopes"] = tuple(look.text(scope, place.inside(f".scopes[{number}]")) for number, scope in enumerate(login.scopes))
    if login.identity is not None:
        identity = _looked_up(login.identity, _OF_IDENTITY, look, place.inside(".identity"))
        found["identity"] = msgspec.structs.replace(login.identity, **identity)
    return msgspec.structs.replace(login, **found)


def _looked_up(struct: msgspec.Struct, names: tuple[str, ...], look: References, place: Place) -> dict[str, str]:
    return {name: look.text(text, place.inside(f".{name}")) for name in names if (text := getattr(struct, name)) is not None}


def from_file(document: Table, path: Path) -> dict[str, Written]:
    """Return the upstreams of 'toolyard.toml'.

    Raises:
        ConfigError: One is wrong; the sentence names its key and the file.
    """
    common = _defaults(document.get(DEFAULTS, {}), Place(DEFAULTS, str(path)))
    found: dict[str, Written] = {}
    whole = Place(UPSTREAMS, str(path))
    for name, table in table_of(document.get(UPSTREAMS, {}), whole).items():
        place = whole.inside(f".{name}")
        if not is_name(name):
            why = "is taken" if name in RESERVED else "has characters that names of upstreams may not have"
            raise ConfigError(f"{place} cannot be called so: '{name}' {why}. Call it '{made_name(name)}', for one.")
        twin = twin_of(name, list(found))
        if twin is not None:
            raise ConfigError(f"{place} and '{UPSTREAMS}.{twin}' would name their tools alike. Give one another name.")
        found[name] = _written(table, place, common=common, folder=path.parent, runs_there=True)
    return found


def from_target(target: str) -> tuple[dict[str, Written], tuple[str, ...]]:
    """Return the upstreams that a client's file has, or the one at an address, and what a person should know of them.

    Raises:
        ConfigError: They cannot be read.
    """
    path = Path(target)
    if "://" in target:
        return {
            made_name(_host_of(target)): _written({"url": target, "prefix": ""}, Place(_without_credentials(target)), folder=Path())
        }, ()

    foreign = read_foreign(path)
    tables = foreign.upstreams.items()
    return {name: _written(table, foreign.places[name], folder=path.parent) for name, table in tables}, foreign.warnings


def masked(name: str, value: Any) -> Any:
    """Return a value as it may be shown: of what may be secret the names alone."""
    if name in {"env", "headers"}:
        return dict.fromkeys(value, _HIDDEN)
    if name == "login":
        return _without_secrets(value)
    if name == "reshape":
        return {tool: {**_given(how), **({"fixed": dict.fromkeys(how.fixed, _HIDDEN)} if how.fixed else {})} for tool, how in value.items()}
    return _without_credentials(value) if name == "url" else value


def _without_secrets(struct: msgspec.Struct) -> Table:
    return {
        name: _HIDDEN if name in _SECRETS else _without_secrets(value) if isinstance(value, Identity) else value
        for name, value in _given(struct).items()
    }


def _given(struct: msgspec.Struct) -> Table:
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if value not in (None, (), {}, False)}


def _without_credentials(address: str) -> str:
    return _CREDENTIALS.sub(_HIDDEN, address)


def _written(table: object, place: Place, *, folder: Path, common: Table | None = None, runs_there: bool = False) -> Written:
    fields = fitted_fields(table, UpstreamSettings, place)
    return Written(made(UpstreamSettings, {**(common or {}), **fields}, place), fields, place, folder, runs_there)


def _defaults(table: object, place: Place) -> Table:
    fields = fitted_fields(table, UpstreamSettings, place)
    for name in _REACHES:
        if name in fields:
            raise ConfigError(f"{place.inside(f'.{name}')} makes no sense: each upstream has its own.")
    return fields


def _host_of(address: str) -> str:
    try:
        host = urlsplit(address).hostname
    except ValueError:
        host = None
    if not host:
        raise ConfigError(f"'{_without_credentials(address)}' is no address.")
    return host
