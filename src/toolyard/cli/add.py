"""`toolyard add`: one more upstream at the end of 'toolyard.toml'; it is not started."""

import os
from collections.abc import Sequence

from toolyard.cli.exits import CommandError
from toolyard.cli.own_file import read_own_file, write_own_file
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Terminal
from toolyard.clients.adopting import add_upstreams, missing_variables, shown_way
from toolyard.clients.secrets import keep_secrets
from toolyard.clients.toml_text import EditError
from toolyard.config import ConfigError
from toolyard.config.fitting import Table
from toolyard.config.naming import twin_of
from toolyard.config.upstreams import UPSTREAMS, from_file

__all__ = ["run"]


def run(options: Options, terminal: Terminal) -> int:
    """Add it, and tell what it needs and what to do next."""
    own = read_own_file(options.config)
    name, table = options.name, _table(options)
    twin = name if name in own.upstreams else twin_of(name, list(own.upstreams))
    if twin is not None:
        raise CommandError(f"There is an upstream '{twin}' in '{own.path}' already. 'toolyard remove {twin}' takes it out.")
    kept = keep_secrets(name, table, keeping=options.secrets, folder=own.secrets, taken={})
    try:
        from_file({UPSTREAMS: {name: kept.table}}, own.path)
        text = add_upstreams(own.text, {name: kept.table})
    except ConfigError as error:
        raise CommandError(str(error)) from error
    except EditError as error:
        raise CommandError(f"'{own.path}' cannot be added to: {error}.") from error
    write_own_file(own, text, secrets=kept.secrets, keeping=options.secrets)
    terminal.write(f"{name}\t{shown_way(table)}")
    if not terminal.quiet:
        for line in notes_on(kept.table, kept.secrets, options):
            terminal.say(line)
        terminal.say(f"'{name}' is in '{own.path}'. 'toolyard serve' serves it, and a server that runs takes it in by itself.")
    return 0


def notes_on(table: Table, secrets: dict[str, str], options: Options) -> list[str]:
    """Return what somebody should know who has a table with these secrets."""
    notes: list[str] = []
    if secrets and options.secrets == "file":
        notes = [f"A secret is kept in '{file}', which you alone can read." for file in secrets]
    elif secrets and options.secrets == "keep":
        notes = ["The file has secrets in it now. You alone can read it; do not commit it."]
    return notes + [f"Set the variable '{name}' before you serve." for name in missing_variables(table, os.environ)]


def _table(options: Options) -> Table:
    if bool(options.program) is bool(options.url):
        raise CommandError("An upstream is either a command behind '--' or an address behind '--url'. See 'toolyard add --help'.")
    env, headers = _pairs(options.env, "=", "--env"), _pairs(options.header, ":", "--header")
    if options.url:
        if env:
            raise CommandError("'--env' goes with a command: a server at an address has variables of its own.")
        return {"url": options.url, **({"headers": headers} if headers else {})}
    if headers:
        raise CommandError("'--header' goes with '--url'.")
    command, *arguments = options.program
    return {"command": command, **({"args": arguments} if arguments else {}), **({"env": env} if env else {})}


def _pairs(items: Sequence[str], sign: str, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, found, value = item.partition(sign)
        if not key.strip() or not found:
            raise CommandError(f"'{option}' takes 'NAME{sign}VALUE'.")  # what was given may be a secret
        pairs[key.strip()] = value if sign == "=" else value.strip()
    return pairs
