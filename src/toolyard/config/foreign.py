"""Foreign files: servers as clients of MCP have them in their own files, read as tables of upstreams.

It starts nothing, expands no variable and leaves out what it cannot use; the file stays as it is.
"""

import re
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolyard.config.fitting import ConfigError, Place, unknown
from toolyard.config.naming import is_name, made_name, twin_of
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = ["OWN", "Foreign", "parse_json", "read_document", "read_foreign", "read_server"]

OWN: Final = "toolyard"
"""The object of a server that holds our own settings, so that its file stays valid for everybody else."""

_SECTIONS: Final = ("mcpServers", "servers", "mcp_servers", "context_servers", "amp.mcpServers")
_CARRIERS: Final = {"stdio": "stdio", "local": "stdio", "http": "http", "streamablehttp": "http", "remote": "http", "sse": "sse"}
_ADDRESSES: Final = ("url", "httpUrl", "serverUrl")
_TEXT_OR_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_PLACE: Final = re.compile(r" \(byte (\d+)\)")
_TEXT_OR_COMMA: Final = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\Z))|,(?=\s*[}\]])')

Table = dict[str, Any]


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
