"""`toolyard import`: brings the servers that MCP clients have into 'toolyard.toml'; nothing that it finds is started."""

import os
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolyard.cli.cause import shown_path
from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.own_file import OwnFile, read_own_file, write_own_file
from toolyard.cli.parser import Options
from toolyard.cli.parsing import did_you_mean
from toolyard.cli.terminal import Painted, Style, Terminal, cut, width_of
from toolyard.clients.adopting import Adopted, add_upstreams, adopt, missing_variables, shown_way
from toolyard.clients.known import CLIENTS, Client, Found, Surroundings, find_files
from toolyard.clients.servers import Server, read_servers
from toolyard.clients.toml_text import EditError
from toolyard.config import ConfigError
from toolyard.envelope import encode

__all__ = ["find_client", "here", "run"]

_ANY: Final = Client("file", "File", (), section=())
_STYLES: Final[dict[str, Style]] = {"added": "good", "renamed": "good", "left out": "bad"}


class _Read(NamedTuple):
    """What was read: the servers, and why some files could not be."""

    servers: list[Server]
    files: list[Path]
    failures: list[str]


def run(options: Options, terminal: Terminal) -> int:
    """Print what was found and what becomes of it, and write that unless it is a dry run."""
    own = read_own_file(options.config)
    read = _read(options)
    servers = _chosen(read.servers, options.arguments)
    adopted = adopt(servers, own.upstreams, keeping=options.secrets, secrets=own.secrets, folder=own.path.absolute().parent)
    new = [one for one in adopted if one.table]
    secrets = {place: text for one in new for place, text in one.secrets.items()}
    if new:
        try:
            text = add_upstreams(own.text, {one.name: one.table for one in new})
        except EditError as error:
            raise CommandError(f"'{own.path}' cannot be added to: {error}.") from error
        if not options.dry_run:
            write_own_file(own, text, secrets=secrets, keeping=options.secrets)
    if options.json:
        terminal.write_json(encode(_facts(adopted, read, own, dry_run=options.dry_run)))
    else:
        _write(adopted, terminal)
    for failure in read.failures:
        terminal.say(failure)
    if not terminal.quiet:
        _say_rest(adopted, read, own, options=options, terminal=terminal)
    return DEFECT if read.failures else 0


def here() -> Surroundings:
    """Return the surroundings of this process.

    Raises:
        CommandError: The user has no home.
    """
    try:
        return Surroundings(sys.platform, os.environ, Path.home(), Path.cwd())
    except (RuntimeError, OSError) as error:
        raise CommandError("There is no home directory, or none that can be used.") from error


def find_client(name: str) -> Client:
    """Return a client by its name.

    Raises:
        CommandError: None is called so.
    """
    if name not in CLIENTS:
        raise CommandError(f"There is no client '{name}'.{did_you_mean(name, list(CLIENTS))} Known: {', '.join(CLIENTS)}.")
    return CLIENTS[name]


def _read(options: Options) -> _Read:
    surroundings = here()
    clients = [find_client(name) for name in options.clients]
    if options.file is not None:
        path = Path(options.file).expanduser()
        found = [Found(client, "user", path) for client in clients[:1] or [_ANY]]
    else:
        found = [file for client in clients or CLIENTS.values() for file in find_files(client, surroundings)]
    read = _Read([], [file.path for file in found], [])
    for file in found:
        try:
            read.servers.extend(read_servers(file, surroundings))
        except ConfigError as error:
            read.failures.append(str(error))
    return read


def _chosen(servers: list[Server], names: Sequence[str]) -> list[Server]:
    known = sorted({name for server in servers for name in (server.theirs, server.name)})
    for name in names:
        if name not in known:
            raise CommandError(f"No client has a server '{name}'.{did_you_mean(name, known)}")
    return [server for server in servers if not names or server.theirs in names or server.name in names]


def _facts(adopted: Sequence[Adopted], read: _Read, own: OwnFile, *, dry_run: bool) -> dict[str, Any]:
    servers = [
        {
            "client": one.server.client,
            "file": str(one.server.file),
            "server": one.server.theirs,
            "name": one.name,
            "status": one.status,
            "why": one.why,
            "reached_by": shown_way(one.server.table),
            "variables": missing_variables(one.table, os.environ),
        }
        for one in adopted
    ]
    written = None if dry_run or not any(one.table for one in adopted) else str(own.path)
    return {"servers": servers, "failures": read.failures, "written": written}


def _write(adopted: Sequence[Adopted], terminal: Terminal) -> None:
    if not terminal.interactive:
        for one in adopted:
            terminal.write("\t".join((one.server.client, one.name, one.status, shown_way(one.server.table), one.why)))
        return
    width = max((width_of(one.name) for one in adopted), default=0)
    for (client, file), group in groupby(adopted, key=lambda one: (one.server.client, one.server.file)):
        title = CLIENTS[client].title if client in CLIENTS else "File"
        terminal.write(Painted(title, "bold"), Painted(f"  {shown_path(str(file))}", "faint"))
        for one in group:
            facts = one.why or shown_way(one.server.table)
            room = max(terminal.width - width - 20, 20)
            status = Painted(f"{one.status:<13}", _STYLES.get(one.status, "faint"))
            terminal.write("  ", one.name + " " * (width - width_of(one.name)), "  ", status, "  ", Painted(cut(facts, room), "faint"))


def _say_rest(adopted: Sequence[Adopted], read: _Read, own: OwnFile, *, options: Options, terminal: Terminal) -> None:
    new = [one for one in adopted if one.table]
    has_secrets = any(one.secrets for one in new)
    if not read.files:
        terminal.say("No file of a client was found. '--file' names one.")
    elif not new:
        terminal.say(f"There is nothing to add to '{own.path}'.")
    elif options.dry_run:
        terminal.say(f"To be added to '{own.path}': {len(new)}. Nothing was written.")
    else:
        terminal.say(f"Added to '{own.path}': {len(new)}. None was started.")
    if has_secrets and options.secrets == "file" and not options.dry_run:
        terminal.say(f"Their secrets are kept in '{own.secrets}', in files that you alone can read.")
    elif has_secrets and options.secrets == "keep":
        terminal.say(f"'{own.path}' has secrets in it then. You alone can read it; do not commit it.")
    for variable in sorted({name for one in new for name in missing_variables(one.table, os.environ)}):
        terminal.say(f"Set the variable '{variable}' before you serve.")
    if new and not options.dry_run:
        terminal.say("Next: 'toolyard serve' serves them, and 'toolyard connect CLIENT' brings Toolyard into a client.")
