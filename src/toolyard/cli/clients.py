"""`toolyard import`: brings the servers that MCP clients have into 'toolyard.toml'; nothing that it finds is started."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolyard.cli.add import OwnFile, read_own_file, write_own_file
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Painted, Style, Terminal, cut, width_of
from toolyard.client_configs.connect import (
    Adopted,
    Change,
    add_upstreams,
    adopt,
    carry_out,
    connected,
    disconnected,
    missing_variables,
    shown_way,
)
from toolyard.client_configs.edit import excerpt, paste
from toolyard.client_configs.edit_toml import EditError
from toolyard.client_configs.known import CLIENTS, Client, Found, Surroundings, entry_of_address, entry_of_command, find_files, path_for
from toolyard.client_configs.read import YAML, Server, decode, read_bytes, read_servers
from toolyard.config import ConfigError
from toolyard.config.read import FILE, VARIABLE
from toolyard.launch.errors import DEFECT, LaunchError, shown_path
from toolyard.model.envelope import encode
from toolyard.model.names import did_you_mean

__all__ = ["find_client", "here", "run_connect", "run_import"]


_ANY: Final = Client("file", "File", (), section=())
_STYLES: Final[dict[str, Style]] = {"added": "good", "renamed": "good", "left out": "bad"}


class _Read(NamedTuple):
    """What was read: the servers, and why some files could not be."""

    servers: list[Server]
    files: list[Path]
    failures: list[str]


def run_import(options: Options, terminal: Terminal) -> int:
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
            raise LaunchError(f"'{own.path}' cannot be added to: {error}.") from error
        if not options.dry_run:
            write_own_file(own, text, secrets=secrets, keeping=options.secrets)
    if options.json:
        terminal.write_json(encode(_facts(adopted, read, own, dry_run=options.dry_run)))
    else:
        _write(adopted, terminal)
    for failure in read.failures:
        terminal.say(failure)
    if not terminal.quiet:
        _say_imported(adopted, read, own, options=options, terminal=terminal)
    return DEFECT if read.failures else 0


def here() -> Surroundings:
    """Return the surroundings of this process.

    Raises:
        LaunchError: The user has no home.
    """
    try:
        return Surroundings(sys.platform, os.environ, Path.home(), Path.cwd())
    except (RuntimeError, OSError) as error:
        raise LaunchError("There is no home directory, or none that can be used.") from error


def find_client(name: str) -> Client:
    """Return a client by its name.

    Raises:
        LaunchError: None is called so.
    """
    if name not in CLIENTS:
        raise LaunchError(f"There is no client '{name}'.{did_you_mean(name, list(CLIENTS))} Known: {', '.join(CLIENTS)}.")
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
            raise LaunchError(f"No client has a server '{name}'.{did_you_mean(name, known)}")
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


def _say_imported(adopted: Sequence[Adopted], read: _Read, own: OwnFile, *, options: Options, terminal: Terminal) -> None:
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


_FILE_TARGET: Final = re.compile(r"(.+\.(?:py|toml|jsonc?))(:[\w.]+)?")
_SIGNS: Final[dict[str, Style]] = {"+": "good", "-": "bad"}


def run_connect(options: Options, terminal: Terminal) -> int:
    """Print how the client's file changes, and change it unless it is a dry run."""
    client = find_client(options.client)
    path = path_for(client, here(), "project" if options.project else "user")
    if path is None:
        raise LaunchError(f"{client.title} has no file for a single folder. Leave '--project' out.")
    entry: Mapping[str, Any] = {} if options.undo else _entry(client, options, terminal)
    if path.suffix in YAML:
        return _show_entry(client, path, entry, options=options, terminal=terminal)
    name = options.called
    try:
        change = disconnected(client, path, name=name) if options.undo else connected(client, path, name=name, entry=entry)
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    _write_difference(change, terminal)
    backup = None
    if change.before != change.after and not options.dry_run:
        try:
            backup = carry_out(change, keep=not options.undo)
        except ConfigError as error:
            raise LaunchError(str(error), status=DEFECT) from error
        except OSError as error:
            raise LaunchError(f"'{error.filename or path}' cannot be written: {error.strerror}.", status=DEFECT) from error
    if not terminal.quiet:
        _say_connected(client, change, backup, options=options, terminal=terminal)
    return 0


def _entry(client: Client, options: Options, terminal: Terminal) -> Mapping[str, Any]:
    if options.url is None:
        command = [sys.executable, "-m", "toolyard", "serve", _target(options.target, terminal)]
        return entry_of_command(client, command, name=options.called)
    if options.target:
        raise LaunchError("The client gets either a TARGET to start or a '--url' to call.")
    entry = entry_of_address(client, options.url, name=options.called)
    if entry is None:
        raise LaunchError(
            f"{client.title} takes no addresses from its file. 'toolyard connect {client.name} {options.url}' lets it start a way there."
        )
    return entry


def _target(given: str, terminal: Terminal) -> str:
    """Return the target as it can be used from any folder."""
    usual = os.environ.get(VARIABLE) or FILE
    if not given and not Path(usual).is_file():
        raise LaunchError(f"There is no '{usual}' here. Name a TARGET, or make the file with 'toolyard import' or 'toolyard add'.")
    if "://" in given:
        return given
    file = _FILE_TARGET.fullmatch(given or usual)
    if file is None:
        if not terminal.quiet:
            terminal.say(f"'{given}' is a module: the client must be able to import it from the folder it starts in.")
        return given
    path = Path(file[1]).expanduser()
    if not path.is_file():
        raise LaunchError(f"There is no file '{path}'.")
    return f"{path.absolute()}{file[2] or ''}"


def _show_entry(client: Client, path: Path, entry: Mapping[str, Any], *, options: Options, terminal: Terminal) -> int:
    """Print what somebody writes into a file that is not changed here."""
    if options.undo:
        raise LaunchError(f"'{path}' is YAML, which is not changed here. Take '{options.called}' out by hand.")
    if client.section == ("extensions",):
        written = f"{json.dumps(options.called, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}"
    else:
        written = f"- {json.dumps({'name': options.called, **entry}, ensure_ascii=False)}"
    try:
        there = decode(read_bytes(path) or b"", path)
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    pasted = paste(there, ".".join(client.section), written)
    for line in pasted.lines:
        terminal.write(line)
    terminal.say(f"'{path}' is YAML, which is not changed here. Put this {pasted.place}, and restart {client.title}.")
    return DEFECT


def _write_difference(change: Change, terminal: Terminal) -> None:
    if change.before == change.after:
        return
    before, after = ((content or b"").decode() for content in (change.before, change.after))
    number, lines = excerpt(before, after)
    terminal.write(Painted(f"{change.path}, line {number}", "bold"))
    for line in lines:
        style = _SIGNS.get(line[:1])
        terminal.write(line if style is None else Painted(line, style))


def _say_connected(client: Client, change: Change, backup: Path | None, *, options: Options, terminal: Terminal) -> None:
    if change.before == change.after:
        terminal.say(f"'{change.path}' has it already.")
        return
    if options.dry_run:
        terminal.say("Nothing was written.")
        return
    if backup is not None:
        terminal.say(f"What it was is kept in '{backup}'.")
    if options.undo:
        terminal.say(f"'{change.path}' is as it was. Restart {client.title}.")
    else:
        terminal.say(f"'{change.path}' is written. Restart {client.title}; 'toolyard connect {client.name} --undo' takes it back.")
