"""`toolyard connect`: writes Toolyard into a client's file, with a preview, a backup and a way back."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.import_ import find_client, here
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Painted, Style, Terminal
from toolyard.clients.connecting import Change, carry_out, connected, disconnected
from toolyard.clients.documents import YAML, decode, read_bytes
from toolyard.clients.entries import entry_of_address, entry_of_command
from toolyard.clients.excerpt import excerpt
from toolyard.clients.known import Client, path_for
from toolyard.clients.yaml_text import paste
from toolyard.config import ConfigError
from toolyard.config.reading import FILE, VARIABLE

__all__ = ["run"]

_FILE_TARGET: Final = re.compile(r"(.+\.(?:py|toml|jsonc?))(:[\w.]+)?")
_SIGNS: Final[dict[str, Style]] = {"+": "good", "-": "bad"}


def run(options: Options, terminal: Terminal) -> int:
    """Print how the client's file changes, and change it unless it is a dry run."""
    client = find_client(options.client)
    path = path_for(client, here(), "project" if options.project else "user")
    if path is None:
        raise CommandError(f"{client.title} has no file for a single folder. Leave '--project' out.")
    entry: Mapping[str, Any] = {} if options.undo else _entry(client, options, terminal)
    if path.suffix in YAML:
        return _show_entry(client, path, entry, options=options, terminal=terminal)
    name = options.called
    try:
        change = disconnected(client, path, name=name) if options.undo else connected(client, path, name=name, entry=entry)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    _write_difference(change, terminal)
    backup = None
    if change.before != change.after and not options.dry_run:
        try:
            backup = carry_out(change, keep=not options.undo)
        except ConfigError as error:
            raise CommandError(str(error), status=DEFECT) from error
        except OSError as error:
            raise CommandError(f"'{error.filename or path}' cannot be written: {error.strerror}.", status=DEFECT) from error
    if not terminal.quiet:
        _say_rest(client, change, backup, options=options, terminal=terminal)
    return 0


def _entry(client: Client, options: Options, terminal: Terminal) -> Mapping[str, Any]:
    if options.url is None:
        command = [sys.executable, "-m", "toolyard", "serve", _target(options.target, terminal)]
        return entry_of_command(client, command, name=options.called)
    if options.target:
        raise CommandError("The client gets either a TARGET to start or a '--url' to call.")
    entry = entry_of_address(client, options.url, name=options.called)
    if entry is None:
        raise CommandError(
            f"{client.title} takes no addresses from its file. 'toolyard connect {client.name} {options.url}' lets it start a way there."
        )
    return entry


def _target(given: str, terminal: Terminal) -> str:
    """Return the target as it can be used from any folder."""
    usual = os.environ.get(VARIABLE) or FILE
    if not given and not Path(usual).is_file():
        raise CommandError(f"There is no '{usual}' here. Name a TARGET, or make the file with 'toolyard import' or 'toolyard add'.")
    if "://" in given:
        return given
    file = _FILE_TARGET.fullmatch(given or usual)
    if file is None:
        if not terminal.quiet:
            terminal.say(f"'{given}' is a module: the client must be able to import it from the folder it starts in.")
        return given
    path = Path(file[1]).expanduser()
    if not path.is_file():
        raise CommandError(f"There is no file '{path}'.")
    return f"{path.absolute()}{file[2] or ''}"


def _show_entry(client: Client, path: Path, entry: Mapping[str, Any], *, options: Options, terminal: Terminal) -> int:
    """Print what somebody writes into a file that is not changed here."""
    if options.undo:
        raise CommandError(f"'{path}' is YAML, which is not changed here. Take '{options.called}' out by hand.")
    if client.section == ("extensions",):
        written = f"{json.dumps(options.called, ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}"
    else:
        written = f"- {json.dumps({'name': options.called, **entry}, ensure_ascii=False)}"
    try:
        there = decode(read_bytes(path) or b"", path)
    except ConfigError as error:
        raise CommandError(str(error)) from error
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


def _say_rest(client: Client, change: Change, backup: Path | None, *, options: Options, terminal: Terminal) -> None:
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
