"""Servers that clients have, each as the table of an upstream or with the reason why it cannot be one."""

from pathlib import Path, PurePath
from typing import Final, NamedTuple, cast

from toolyard.clients.documents import decode, parse, read_bytes
from toolyard.clients.known import Found, Surroundings
from toolyard.clients.standard import Entry, standard_servers
from toolyard.config.fitting import ConfigError, Place, Table, fitted_fields, made
from toolyard.config.foreign import read_server
from toolyard.config.naming import is_name, made_name
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = ["OURS", "Server", "read_servers", "runs_toolyard"]

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
    name = theirs if is_name(theirs) else made_name(theirs)
    server = Server(found.client.name, found.path, theirs, name, {})
    place = Place(".".join([*found.client.section, theirs]), str(found.path))
    if theirs == OURS or runs_toolyard(entry):
        return server._replace(why="It is Toolyard itself.")
    try:
        table = read_server(entry, place)
        if isinstance(table, str):
            return server._replace(why=f"{table[:1].upper()}{table[1:]}")
        made(UpstreamSettings, fitted_fields(table, UpstreamSettings, place), place)
    except ConfigError as error:
        return server._replace(why=str(error))
    if found.scope == "project" and "command" in table:
        table["cwd"] = str(folder / table.get("cwd", ""))
    return server._replace(table=table)
