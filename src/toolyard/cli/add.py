"""`toolyard add`: one more upstream at the end of 'toolyard.toml'; it is not started."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from toolyard._internal.files import find_state_dir, rewrite
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Terminal
from toolyard.client_configs.connect import add_upstreams, missing_variables, shown_way
from toolyard.client_configs.edit_toml import EditError, remove_table
from toolyard.client_configs.read import decode, parse, read_bytes
from toolyard.client_configs.secrets import Keeping, keep_secrets, store_secrets
from toolyard.config import ConfigError, read_config
from toolyard.config.convert import Table
from toolyard.config.read import FILE, VARIABLE, twin_of
from toolyard.config.upstreams import UPSTREAMS, from_file
from toolyard.launch.errors import DEFECT, LaunchError
from toolyard.model.names import did_you_mean

__all__ = ["OwnFile", "read_own_file", "run_add", "run_remove", "write_own_file"]


class OwnFile(NamedTuple):
    """The file, its text, the upstreams in it and the folder of their secrets."""

    path: Path
    text: str
    upstreams: Mapping[str, Table]
    secrets: Path


def read_own_file(named: str | None) -> OwnFile:
    """Read the file that is named, or the usual one; it need not be there.

    Raises:
        LaunchError: It is wrong.
    """
    path = Path(named or os.environ.get(VARIABLE) or FILE)
    if path.suffix != ".toml":
        raise LaunchError(f"'{path}' is no '.toml' file.")
    try:
        content = read_bytes(path)
        state = find_state_dir(None if content is None else read_config(path=str(path)).settings.state_dir)
        text = decode(content or b"", path)
        document = cast("dict[str, Any]", parse(text, path))
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    except OSError as error:
        raise LaunchError(f"There is no place to keep secrets: {error.strerror}. Name one with 'state_dir'.") from error
    return OwnFile(path, text, document.get(UPSTREAMS, {}), state / "secrets")


def write_own_file(own: OwnFile, text: str, *, secrets: dict[str, str], keeping: Keeping) -> None:
    """Write the file, and secrets to files of their own if they are kept so; a file that has secrets in it becomes private.

    Raises:
        LaunchError: Something cannot be written.
    """
    try:
        if keeping == "file":
            store_secrets(secrets)
        rewrite(own.path, text.encode(), private=keeping == "keep" and bool(secrets))
    except OSError as error:
        raise LaunchError(f"'{error.filename or own.path}' cannot be written: {error.strerror}.", status=DEFECT) from error


def run_add(options: Options, terminal: Terminal) -> int:
    """Add it, and tell what it needs and what to do next."""
    own = read_own_file(options.config)
    name, table = options.name, _table(options)
    twin = name if name in own.upstreams else twin_of(name, list(own.upstreams))
    if twin is not None:
        raise LaunchError(f"There is an upstream '{twin}' in '{own.path}' already. 'toolyard remove {twin}' takes it out.")
    kept = keep_secrets(name, table, keeping=options.secrets, folder=own.secrets, taken={})
    try:
        from_file({UPSTREAMS: {name: kept.table}}, own.path)
        text = add_upstreams(own.text, {name: kept.table})
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    except EditError as error:
        raise LaunchError(f"'{own.path}' cannot be added to: {error}.") from error
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
        raise LaunchError("An upstream is either a command behind '--' or an address behind '--url'. See 'toolyard add --help'.")
    env, headers = _pairs(options.env, "=", "--env"), _pairs(options.header, ":", "--header")
    if options.url:
        if env:
            raise LaunchError("'--env' goes with a command: a server at an address has variables of its own.")
        return {"url": options.url, **({"headers": headers} if headers else {})}
    if headers:
        raise LaunchError("'--header' goes with '--url'.")
    command, *arguments = options.program
    return {"command": command, **({"args": arguments} if arguments else {}), **({"env": env} if env else {})}


def _pairs(items: Sequence[str], sign: str, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, found, value = item.partition(sign)
        if not key.strip() or not found:
            raise LaunchError(f"'{option}' takes 'NAME{sign}VALUE'.")  # what was given may be a secret
        pairs[key.strip()] = value if sign == "=" else value.strip()
    return pairs


_FILE: Final = re.compile(r"secretref:file:([^{}\"]+)")


def run_remove(options: Options, terminal: Terminal) -> int:
    """Remove it, and tell what is left to do."""
    own = read_own_file(options.config)
    name = options.name
    if name not in own.upstreams:
        raise LaunchError(f"There is no upstream '{name}' in '{own.path}'.{did_you_mean(name, list(own.upstreams))}")
    try:
        text = remove_table(own.text, [UPSTREAMS, name])
    except EditError as error:
        raise LaunchError(f"Remove '{name}' from '{own.path}' by hand: {error}.") from error
    write_own_file(own, text, secrets={}, keeping="file")
    for file in _secrets_of(own, name, text):
        with suppress(OSError):
            file.unlink()
    terminal.write(name)
    if not terminal.quiet:
        terminal.say(f"'{name}' is no longer in '{own.path}'. A server that runs lets it go by itself.")
    return 0


def _secrets_of(own: OwnFile, name: str, text: str) -> Iterator[Path]:
    """Return the files that were made for secrets of this upstream and that nothing else refers to."""
    for found in _FILE.findall(str(own.upstreams[name])):
        path = Path(found.rstrip("'"))
        if path.parent == own.secrets and path.name.startswith(f"{name}.") and str(path) not in text:
            yield path
