"""Commands about settings: print them, create API keys, and add upstreams to 'callyard.toml' or remove them.

Secrets are masked. Nothing is started, except that `add` asks a person at a terminal what tools without hints do.
"""

import json
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from callyard._internal.files import find_state_dir, rewrite
from callyard._internal.project import find_project, project_dir
from callyard.cli.parser import Options
from callyard.cli.settle import ask_after_change
from callyard.cli.targets import config_from, os_errors
from callyard.cli.terminal import Painted, Terminal, pad, width_of
from callyard.client_configs.connect import add_tables, display_target, missing_variables
from callyard.client_configs.edit import EditError, remove_table
from callyard.client_configs.read import decode, parse, read_bytes
from callyard.client_configs.secrets import SecretStorage, extract_secrets, store_secrets
from callyard.config import Config, ConfigError, Origin, known_settings, read_config
from callyard.config.apis import APIS, apis_from_file
from callyard.config.convert import Table
from callyard.config.read import FILE, VARIABLE, colliding_name
from callyard.config.upstreams import UPSTREAMS, from_file
from callyard.launch.errors import DEFECT, LaunchError, as_launch_error
from callyard.model.envelope import encode
from callyard.model.names import did_you_mean
from callyard.transports.auth import ApiKey, digest_of, new_key

__all__ = [
    "ConfigFile",
    "read_config_file",
    "run_add",
    "run_config",
    "run_key",
    "run_remove",
    "write_config_file",
    "writing",
]


def run_config(options: Options, terminal: Terminal) -> int:
    """Print the settings that `callyard serve` would use with the same flags."""
    config = config_from(options, terminal)
    rows = {key: (config.shown(key), config.origin(key)) for key in (*known_settings(), *config.tables)}
    if options.json:
        shown = {
            key: {"value": value, "from": origin.kind, "name": origin.name} for key, (value, origin) in rows.items()
        }
        terminal.write_json(encode(shown))
    elif terminal.interactive:
        _write_table(terminal, config, rows)
    else:
        for key, (value, origin) in rows.items():
            terminal.write(f"{key}\t{_text(value)}\t{origin}")
    return 0


def _write_table(terminal: Terminal, config: Config, rows: dict[str, tuple[Any, Origin]]) -> None:
    """Write a table in which values that are no defaults are bold."""
    width = max(len(key) for key in rows)
    values = min(max(width_of(_text(value)) for value, _ in rows.values()), 40)
    for key, (value, origin) in rows.items():
        facts = f"  {pad(_text(value), values)}  {origin}"
        is_set = key in config.origins
        parts = (Painted(f"{key:<{width}}", "bold"), facts) if is_set else (Painted(f"{key:<{width}}{facts}", "faint"),)
        terminal.write(*parts)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None else encode(value).decode()


def run_key(options: Options, terminal: Terminal) -> int:
    """Print a new key to stdout, and its line for 'callyard.toml' to stderr."""
    key = new_key()
    with as_launch_error(ValueError):
        stored = ApiKey(options.name, digest_of(key), options.profile)
    entry = {"name": stored.name, "digest": stored.digest, "profile": stored.profile}
    pairs = [f"{key} = {json.dumps(text, ensure_ascii=False)}" for key, text in entry.items() if text is not None]
    line = f"api_keys = [{{{', '.join(pairs)}}}]"
    if options.json:
        terminal.write_json(encode({"key": key, **entry, "line": line}))
        return 0
    terminal.write(key)
    terminal.say("The key is shown only once. A client sends it as 'Authorization: Bearer KEY'.")
    terminal.say("Add this to 'callyard.toml'; if it has keys already, add the part in braces to them:")
    for part in ("", "[auth]", Painted(line, "bold")):
        terminal.say(part)
    return 0


class ConfigFile(NamedTuple):
    """A 'callyard.toml', its upstreams and APIs, and the folder for their secrets."""

    path: Path
    text: str
    upstreams: Mapping[str, Table]
    apis: Mapping[str, Table]
    secrets: Path

    @property
    def sources(self) -> Mapping[str, Table]:
        """Return its upstreams and APIs by name."""
        return {**self.upstreams, **self.apis}

    def section_of(self, name: str) -> str:
        """Return the section that has a name."""
        return APIS if name in self.apis else UPSTREAMS

    def with_tables(self, section: str, tables: Mapping[str, Table]) -> str:
        """Return the text with these upstreams or APIs at its end.

        Raises:
            LaunchError: They cannot be added there.
        """
        try:
            return add_tables(self.text, section, tables)
        except EditError as error:
            raise LaunchError(f"'{self.path}' cannot be changed: {error}.") from error


def read_config_file(path_text: str | None) -> ConfigFile:
    """Read a file, by default 'callyard.toml'; it need not exist.

    Raises:
        LaunchError: The file is wrong.
    """
    path = Path(path_text or os.environ.get(VARIABLE) or FILE)
    if path.suffix != ".toml":
        raise LaunchError(f"'{path}' is not a '.toml' file.")
    with as_launch_error(ConfigError), os_errors("There is no folder for secrets", hint="Set one with 'state_dir'."):
        content = read_bytes(path)
        state = find_state_dir(None if content is None else read_config(path=str(path)).settings.state_dir)
        text = decode(content or b"", path)
        document = cast("dict[str, Any]", parse(text, path))
    folder = project_dir(state, find_project(path)) / "secrets"
    return ConfigFile(path, text, document.get(UPSTREAMS, {}), document.get(APIS, {}), folder)


def write_config_file(file: ConfigFile, text: str, *, secrets: dict[str, str], storage: SecretStorage) -> None:
    """Write the file, and the secrets to private files; a file with secrets in it becomes private itself.

    Raises:
        LaunchError: A file cannot be written.
    """
    with writing(file.path):
        if storage == "file":
            store_secrets(secrets)
        rewrite(file.path, text.encode(), private=storage == "keep" and bool(secrets))


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn an error of the system into `LaunchError`: the file that cannot be written, and why."""
    try:
        yield
    except OSError as error:
        raise LaunchError(f"'{error.filename or path}' cannot be written: {error.strerror}.", status=DEFECT) from error


def run_add(options: Options, terminal: Terminal) -> int:
    """Add an upstream or an API, and say what it needs and what to do next."""
    file = read_config_file(options.config)
    name, table = options.name, _table(options, file)
    section = APIS if options.openapi else UPSTREAMS
    other = name if name in file.sources else colliding_name(name, list(file.sources))
    if other is not None:
        hint = f"Remove it with 'callyard remove {other}'."
        kind = "an API" if other in file.apis else "an upstream"
        raise LaunchError(f"There is {kind} '{other}' in '{file.path}' already. {hint}")
    stored = extract_secrets(name, table, storage=options.secrets, folder=file.secrets, variables={})
    with as_launch_error(ConfigError):
        (apis_from_file if options.openapi else from_file)({section: {name: stored.table}}, file.path)
    text = file.with_tables(section, {name: stored.table})
    write_config_file(file, text, secrets=stored.secrets, storage=options.secrets)
    terminal.write(f"{name}\t{display_target(table)}")
    for path in stored.secrets if options.secrets == "file" else ():
        terminal.inform(f"A secret is stored in '{path}', which only you can read.")
    if stored.secrets and options.secrets == "keep":
        terminal.inform("The file contains secrets now. Only you can read it; do not commit it.")
    for variable in missing_variables(stored.table, os.environ):
        terminal.inform(f"Set the variable '{variable}' before you serve.")
    terminal.inform(f"'{name}' is in '{file.path}'. 'callyard serve' serves it; a running server adds it by itself.")
    if terminal.can_ask:
        ask_after_change(file.path, [name], terminal)
    return 0


def _table(options: Options, file: ConfigFile) -> Table:
    if options.openapi:
        return _api_table(options, file)
    if bool(options.program) is bool(options.url):
        raise LaunchError(
            "An upstream is either a command after '--' or a URL after '--url'. See 'callyard add --help'."
        )
    env, headers = _pairs(options.env or (), "=", "--env"), _pairs(options.header or (), ":", "--header")
    if options.url:
        if env:
            raise LaunchError("'--env' goes with a command, not with '--url'.")
        return {"url": options.url, **({"headers": headers} if headers else {})}
    if headers:
        raise LaunchError("'--header' goes with '--url'.")
    command, *arguments = options.program
    return {"command": command, **({"args": arguments} if arguments else {}), **({"env": env} if env else {})}


def _api_table(options: Options, file: ConfigFile) -> Table:
    if options.program or options.env:
        raise LaunchError("'--openapi' goes with '--url' and '--header', and not with a command or '--env'.")
    headers = _pairs(options.header or (), ":", "--header")
    document: str = options.openapi
    if "://" not in document:
        path = Path(document).expanduser()
        if not path.is_file():
            raise LaunchError(f"There is no file '{document}'.")
        folder, path = file.path.absolute().parent.resolve(), path.resolve()
        document = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
    table: Table = {"document": document, **({"base_url": options.url} if options.url else {})}
    return {**table, **({"headers": headers} if headers else {})}


def _pairs(items: Sequence[str], separator: str, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, found, value = item.partition(separator)
        if not key.strip() or not found:
            raise LaunchError(f"'{option}' takes 'NAME{separator}VALUE'.")  # without the value, which may be a secret
        pairs[key.strip()] = value if separator == "=" else value.strip()
    return pairs


def run_remove(options: Options, terminal: Terminal) -> int:
    """Remove an upstream or an API, and the files of its secrets."""
    file = read_config_file(options.config)
    name = options.name
    if name not in file.sources:
        raise LaunchError(f"There is no upstream '{name}' in '{file.path}'.{did_you_mean(name, list(file.sources))}")
    try:
        text = remove_table(file.text, [file.section_of(name), name])
    except EditError as error:
        raise LaunchError(f"Remove '{name}' from '{file.path}' by hand: {error}.") from error
    write_config_file(file, text, secrets={}, storage="file")
    for reference in re.findall(r"secretref:file:([^{}\"]+)", str(file.sources[name])):
        secret = Path(reference.rstrip("'")).expanduser()
        if secret.parent == file.secrets and secret.name.startswith(f"{name}.") and reference not in text:
            with suppress(OSError):
                secret.unlink()
    terminal.write(name)
    terminal.inform(f"'{name}' is no longer in '{file.path}'. A running server removes it by itself.")
    return 0
