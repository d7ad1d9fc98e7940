"""`callyard add` and `callyard remove`: upstreams in 'callyard.toml'; none is started."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from callyard._internal.files import find_state_dir, rewrite
from callyard._internal.project import find_project, project_dir
from callyard.cli.parser import Options
from callyard.cli.terminal import Terminal
from callyard.client_configs.connect import add_upstreams, display_target, missing_variables
from callyard.client_configs.edit_toml import EditError, remove_table
from callyard.client_configs.read import decode, parse, read_bytes
from callyard.client_configs.secrets import SecretStorage, extract_secrets, store_secrets
from callyard.config import ConfigError, read_config
from callyard.config.convert import Table
from callyard.config.read import FILE, VARIABLE, colliding_name
from callyard.config.upstreams import UPSTREAMS, from_file
from callyard.launch.errors import DEFECT, LaunchError
from callyard.model.names import did_you_mean

__all__ = ["ConfigFile", "read_config_file", "run_add", "run_remove", "write_config_file"]


class ConfigFile(NamedTuple):
    """A 'callyard.toml', its upstreams and the folder for their secrets."""

    path: Path
    text: str
    upstreams: Mapping[str, Table]
    secrets: Path


def read_config_file(path_text: str | None) -> ConfigFile:
    """Read a file, by default 'callyard.toml'; it need not exist.

    Raises:
        LaunchError: The file is wrong.
    """
    path = Path(path_text or os.environ.get(VARIABLE) or FILE)
    if path.suffix != ".toml":
        raise LaunchError(f"'{path}' is not a '.toml' file.")
    try:
        content = read_bytes(path)
        state = find_state_dir(None if content is None else read_config(path=str(path)).settings.state_dir)
        text = decode(content or b"", path)
        document = cast("dict[str, Any]", parse(text, path))
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    except OSError as error:
        raise LaunchError(f"There is no folder for secrets: {error.strerror}. Set one with 'state_dir'.") from error
    return ConfigFile(path, text, document.get(UPSTREAMS, {}), project_dir(state, find_project(path)) / "secrets")


def write_config_file(file: ConfigFile, text: str, *, secrets: dict[str, str], storage: SecretStorage) -> None:
    """Write the file, and the secrets to private files; a file with secrets in it becomes private itself.

    Raises:
        LaunchError: A file cannot be written.
    """
    try:
        if storage == "file":
            store_secrets(secrets)
        rewrite(file.path, text.encode(), private=storage == "keep" and bool(secrets))
    except OSError as error:
        raise LaunchError(f"'{error.filename or file.path}' cannot be written: {error.strerror}.", status=DEFECT) from error


def run_add(options: Options, terminal: Terminal) -> int:
    """Add an upstream, and say what it needs and what to do next."""
    file = read_config_file(options.config)
    name, table = options.name, _table(options)
    other = name if name in file.upstreams else colliding_name(name, list(file.upstreams))
    if other is not None:
        raise LaunchError(f"There is an upstream '{other}' in '{file.path}' already. Remove it with 'callyard remove {other}'.")
    stored = extract_secrets(name, table, storage=options.secrets, folder=file.secrets, variables={})
    try:
        from_file({UPSTREAMS: {name: stored.table}}, file.path)
        text = add_upstreams(file.text, {name: stored.table})
    except ConfigError as error:
        raise LaunchError(str(error)) from error
    except EditError as error:
        raise LaunchError(f"'{file.path}' cannot be changed: {error}.") from error
    write_config_file(file, text, secrets=stored.secrets, storage=options.secrets)
    terminal.write(f"{name}\t{display_target(table)}")
    for line in _notes(stored.table, stored.secrets, options):
        terminal.inform(line)
    terminal.inform(f"'{name}' is in '{file.path}'. 'callyard serve' serves it; a running server adds it by itself.")
    return 0


def _notes(table: Table, secrets: dict[str, str], options: Options) -> list[str]:
    """Return where the secrets of a table are, and which variables to set."""
    notes: list[str] = []
    if secrets and options.secrets == "file":
        notes = [f"A secret is stored in '{path}', which only you can read." for path in secrets]
    elif secrets and options.secrets == "keep":
        notes = ["The file contains secrets now. Only you can read it; do not commit it."]
    return notes + [f"Set the variable '{name}' before you serve." for name in missing_variables(table, os.environ)]


def _table(options: Options) -> Table:
    if bool(options.program) is bool(options.url):
        raise LaunchError("An upstream is either a command after '--' or a URL after '--url'. See 'callyard add --help'.")
    env, headers = _pairs(options.env or (), "=", "--env"), _pairs(options.header or (), ":", "--header")
    if options.url:
        if env:
            raise LaunchError("'--env' goes with a command, not with '--url'.")
        return {"url": options.url, **({"headers": headers} if headers else {})}
    if headers:
        raise LaunchError("'--header' goes with '--url'.")
    command, *arguments = options.program
    return {"command": command, **({"args": arguments} if arguments else {}), **({"env": env} if env else {})}


def _pairs(items: Sequence[str], separator: str, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, found, value = item.partition(separator)
        if not key.strip() or not found:
            raise LaunchError(f"'{option}' takes 'NAME{separator}VALUE'.")  # without the value, which may be a secret
        pairs[key.strip()] = value if separator == "=" else value.strip()
    return pairs


_SECRET_FILE: Final = re.compile(r"secretref:file:([^{}\"]+)")


def run_remove(options: Options, terminal: Terminal) -> int:
    """Remove an upstream and the files of its secrets."""
    file = read_config_file(options.config)
    name = options.name
    if name not in file.upstreams:
        raise LaunchError(f"There is no upstream '{name}' in '{file.path}'.{did_you_mean(name, list(file.upstreams))}")
    try:
        text = remove_table(file.text, [UPSTREAMS, name])
    except EditError as error:
        raise LaunchError(f"Remove '{name}' from '{file.path}' by hand: {error}.") from error
    write_config_file(file, text, secrets={}, storage="file")
    for secret in _secrets_of(file, name, text):
        with suppress(OSError):
            secret.unlink()
    terminal.write(name)
    terminal.inform(f"'{name}' is no longer in '{file.path}'. A running server removes it by itself.")
    return 0


def _secrets_of(file: ConfigFile, name: str, text: str) -> Iterator[Path]:
    """Yield the files of an upstream's secrets to which the new text does not refer."""
    for match in _SECRET_FILE.findall(str(file.upstreams[name])):
        path = Path(match.rstrip("'")).expanduser()
        if path.parent == file.secrets and path.name.startswith(f"{name}.") and match not in text:
            yield path
