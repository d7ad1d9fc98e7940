"""`callyard import` and `callyard connect`: servers from MCP clients' files, and Callyard into them.

Nothing is started, except that a person at a terminal is asked what the tools of imported servers do.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from callyard.cli.config import ConfigFile, read_config_file, write_config_file, writing
from callyard.cli.parser import Options
from callyard.cli.settle import ask_after_change
from callyard.cli.targets import KEY_VARIABLE, credentials_of
from callyard.cli.terminal import Painted, Style, Terminal, cut, pad, painted_change, width_of
from callyard.client_configs.clients import (
    CLIENTS,
    Client,
    ClientFile,
    Environment,
    command_entry,
    find_files,
    path_to_write,
    url_entry,
)
from callyard.client_configs.connect import (
    Change,
    ImportedServer,
    apply_change,
    display_target,
    missing_variables,
    plan_connect,
    plan_disconnect,
    plan_import,
)
from callyard.client_configs.edit import excerpt, yaml_snippet
from callyard.client_configs.read import YAML, Server, decode, read_bytes, read_servers
from callyard.config import ConfigError, read_config
from callyard.config.read import FILE, VARIABLE
from callyard.config.upstreams import UPSTREAMS
from callyard.launch.errors import DEFECT, LaunchError, as_launch_error, shown_path
from callyard.model.envelope import encode
from callyard.model.names import did_you_mean

__all__ = ["run_connect", "run_import"]


_STYLES: Final[dict[str, Style]] = {"added": "good", "renamed": "good", "left out": "bad"}


class _Found(NamedTuple):
    """Servers of client files, the files, and why some files could not be read."""

    servers: list[Server]
    files: list[Path]
    failures: list[str]


def run_import(options: Options, terminal: Terminal) -> int:
    """Print the servers that were found, and add them to 'callyard.toml' unless it is a dry run."""
    own = read_config_file(options.config)
    found = _read_servers(options)
    servers = _select(found.servers, options.arguments)
    adopted = plan_import(
        servers, own.upstreams, storage=options.secrets, secrets=own.secrets, folder=own.path.absolute().parent
    )
    new = [adoption for adoption in adopted if adoption.table]
    secrets = {path: text for adoption in new for path, text in adoption.secrets.items()}
    if new:
        text = own.with_tables(UPSTREAMS, {adoption.name: adoption.table for adoption in new})
        if not options.dry_run:
            write_config_file(own, text, secrets=secrets, storage=options.secrets)
    if options.json:
        written = str(own.path) if new and not options.dry_run else None
        servers = [_summary(adoption) for adoption in adopted]
        terminal.write_json(encode({"servers": servers, "failures": found.failures, "written": written}))
    else:
        _write(adopted, terminal)
    for failure in found.failures:
        terminal.say(failure)
    _report_import(adopted, found, own, options=options, terminal=terminal)
    if new and terminal.can_ask and not options.dry_run and not options.json:
        ask_after_change(own.path, [adoption.name for adoption in new], terminal)
    return DEFECT if found.failures else 0


def _surroundings() -> Environment:
    try:
        return Environment(sys.platform, os.environ, Path.home(), Path.cwd())
    except (RuntimeError, OSError) as error:
        raise LaunchError("There is no usable home directory.") from error


def _find_client(name: str) -> Client:
    if name not in CLIENTS:
        meant = did_you_mean(name, list(CLIENTS))
        raise LaunchError(f"There is no client '{name}'.{meant} Known: {', '.join(CLIENTS)}.")
    return CLIENTS[name]


def _read_servers(options: Options) -> _Found:
    environment = _surroundings()
    clients = [_find_client(name) for name in options.clients or ()]
    if options.file is not None:
        path = Path(options.file).expanduser()
        client = clients[0] if clients else Client("file", "File", (), section=())
        files = [ClientFile(client, "user", path)]
    else:
        files = [file for client in clients or CLIENTS.values() for file in find_files(client, environment)]
    found = _Found([], [file.path for file in files], [])
    for file in files:
        try:
            found.servers.extend(read_servers(file, environment))
        except ConfigError as error:
            found.failures.append(str(error))
    return found


def _select(servers: list[Server], names: Sequence[str]) -> list[Server]:
    known = sorted({name for server in servers for name in (server.original_name, server.name)})
    for name in names:
        if name not in known:
            raise LaunchError(f"No client has a server '{name}'.{did_you_mean(name, known)}")
    return [server for server in servers if not names or server.original_name in names or server.name in names]


def _summary(adoption: ImportedServer) -> dict[str, Any]:
    return {
        "client": adoption.server.client,
        "file": str(adoption.server.file),
        "server": adoption.server.original_name,
        "name": adoption.name,
        "status": adoption.status,
        "why": adoption.reason,
        "reached_by": display_target(adoption.server.table),
        "variables": missing_variables(adoption.table, os.environ),
    }


def _write(adopted: Sequence[ImportedServer], terminal: Terminal) -> None:
    if not terminal.interactive:
        for adoption in adopted:
            server, target = adoption.server, display_target(adoption.server.table)
            terminal.write(f"{server.client}\t{adoption.name}\t{adoption.status}\t{target}\t{adoption.reason}")
        return
    width = max((width_of(adoption.name) for adoption in adopted), default=0)
    for (client, file), group in groupby(adopted, key=lambda adoption: (adoption.server.client, adoption.server.file)):
        title = CLIENTS[client].title if client in CLIENTS else "File"
        terminal.write(Painted(title, "bold"), Painted(f"  {shown_path(str(file))}", "faint"))
        for adoption in group:
            facts = adoption.reason or display_target(adoption.server.table)
            room = max(terminal.width - width - 20, 20)
            status = Painted(f"{adoption.status:<13}", _STYLES.get(adoption.status, "faint"))
            terminal.write("  ", pad(adoption.name, width), "  ", status, "  ", Painted(cut(facts, room), "faint"))


def _report_import(
    adopted: Sequence[ImportedServer], found: _Found, own: ConfigFile, *, options: Options, terminal: Terminal
) -> None:
    new = [adoption for adoption in adopted if adoption.table]
    has_secrets = any(adoption.secrets for adoption in new)
    if not found.files:
        terminal.inform("No client's file was found. Name one with '--file'.")
    elif not new:
        terminal.inform(f"There is nothing to add to '{own.path}'.")
    elif options.dry_run:
        terminal.inform(f"To be added to '{own.path}': {len(new)}. Nothing was written.")
    else:
        terminal.inform(f"Added to '{own.path}': {len(new)}.{'' if terminal.can_ask else ' None was started.'}")
    if has_secrets and options.secrets == "file" and not options.dry_run:
        terminal.inform(f"Their secrets are stored in '{own.secrets}', in files that only you can read.")
    elif has_secrets and options.secrets == "keep":
        terminal.inform(f"'{own.path}' contains secrets then. Only you can read it; do not commit it.")
    for variable in sorted({name for adoption in new for name in missing_variables(adoption.table, os.environ)}):
        terminal.inform(f"Set the variable '{variable}' before you serve.")
    if new and not options.dry_run:
        terminal.inform("Next: 'callyard serve' serves them, and 'callyard connect CLIENT' adds Callyard to a client.")


def run_connect(options: Options, terminal: Terminal) -> int:
    """Print the change to the client's file, and make it unless it is a dry run."""
    client = _find_client(options.client)
    path = path_to_write(client, _surroundings(), "project" if options.project else "user")
    if path is None:
        raise LaunchError(f"{client.title} has no file per folder. Leave '--project' out.")
    entry: Mapping[str, Any] = {} if options.undo else _entry(client, options, terminal)
    if path.suffix in YAML:
        return _show_entry(client, path, entry, options=options, terminal=terminal)
    name = options.server_name
    with as_launch_error(ConfigError):
        if options.undo:
            change = plan_disconnect(client, path, name=name)
        else:
            change = plan_connect(client, path, name=name, entry=entry)
    _write_change(change, terminal, secrets=[] if options.undo else [*credentials_of(options).values()])
    backup = None
    if change.before != change.after and not options.dry_run:
        with as_launch_error(ConfigError, status=DEFECT), writing(path):
            backup = apply_change(change, backup=not options.undo)
    _report_connection(client, change, backup, options=options, terminal=terminal)
    return 0


def _entry(client: Client, options: Options, terminal: Terminal) -> Mapping[str, Any]:
    if options.url is None:
        return _command_entry(client, options, terminal)
    if options.target:
        raise LaunchError("Name either a TARGET to start or a '--url' to call.")
    entry = url_entry(client, options.url, name=options.server_name, headers=credentials_of(options))
    if entry is None:
        command = f"callyard connect {client.name} {options.url}"
        raise LaunchError(f"{client.title} cannot have URLs in its file. '{command}' lets it start a proxy.")
    return entry


def _command_entry(client: Client, options: Options, terminal: Terminal) -> Mapping[str, Any]:
    """Return the entry that lets a client start the server; the key of a URL goes into a variable."""
    command = [sys.executable, "-m", "callyard", "serve", _target(options.target, terminal)]
    transport = "stdio"
    with suppress(ConfigError):  # 'callyard serve' says what is wrong
        file = options.target if options.target.endswith(".toml") else None
        transport = read_config(path=file).settings.serve.transport
    if transport != "stdio":
        command += ["--transport", "stdio"]  # a client that starts a command speaks nothing else
    key = options.key or os.environ.get(KEY_VARIABLE, "").strip()
    if "://" not in options.target:
        if options.key or options.header:
            raise LaunchError("'--key' and '--header' are for a TARGET that is a URL.")
        key = ""
    credentials_of(options)  # raises if a header is wrong
    for header in options.header or ():
        command += ["--header", header]
    return command_entry(client, command, name=options.server_name, variables={KEY_VARIABLE: key} if key else {})


def _target(target: str, terminal: Terminal) -> str:
    """Return the target with an absolute path, so that it works from any folder."""
    default = os.environ.get(VARIABLE) or FILE
    if not target and not Path(default).is_file():
        hint = "Name a TARGET, or create the file with 'callyard import' or 'callyard add'."
        raise LaunchError(f"There is no '{default}' here. {hint}")
    if "://" in target:
        return target
    file = re.fullmatch(r"(.+\.(?:py|toml|jsonc?))(:[\w.]+)?", target or default)
    if file is None:
        terminal.inform(f"'{target}' is a module: the client must be able to import it from the folder it starts in.")
        return target
    path = Path(file[1]).expanduser()
    if not path.is_file():
        raise LaunchError(f"There is no file '{path}'.")
    return f"{path.absolute()}{file[2] or ''}"


def _show_entry(client: Client, path: Path, entry: Mapping[str, Any], *, options: Options, terminal: Terminal) -> int:
    """Print the entry that a person adds to a YAML file, which is not changed here."""
    if options.undo:
        raise LaunchError(f"'{path}' is YAML, which Callyard does not change. Remove '{options.server_name}' by hand.")
    if client.section == ("extensions",):
        text = f"{json.dumps(options.server_name, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}"
    else:
        text = f"- {json.dumps({'name': options.server_name, **entry}, ensure_ascii=False)}"
    with as_launch_error(ConfigError):
        content = decode(read_bytes(path) or b"", path)
    pasted = yaml_snippet(content, ".".join(client.section), text)
    for line in pasted.lines:
        terminal.write(line)
    what = f"Put this {pasted.position}, and restart {client.title}."
    terminal.say(f"'{path}' is YAML, which Callyard does not change. {what}")
    return DEFECT


def _write_change(change: Change, terminal: Terminal, *, secrets: Sequence[str]) -> None:
    """Print a change without the credentials of the command line."""
    if change.before == change.after:
        return
    before, after = ((content or b"").decode() for content in (change.before, change.after))
    number, lines = excerpt(before, after)
    terminal.write(Painted(f"{change.path}, line {number}", "bold"))
    for line in lines:
        for secret in secrets:
            line = line.replace(secret.removeprefix("Bearer "), "…")  # noqa: PLW2901 - the same line, without a secret
        terminal.write(painted_change(line))


def _report_connection(
    client: Client, change: Change, backup: Path | None, *, options: Options, terminal: Terminal
) -> None:
    if change.before == change.after:
        terminal.inform(f"'{change.path}' needs no change.")
        return
    if options.dry_run:
        terminal.inform("Nothing was written.")
        return
    if backup is not None:
        terminal.inform(f"The previous file is '{backup}'.")
    if options.undo:
        terminal.inform(f"'{change.path}' is restored. Restart {client.title}.")
    else:
        undo = f"callyard connect {client.name} --undo"
        terminal.inform(f"'{change.path}' is written. Restart {client.title}; '{undo}' undoes it.")
