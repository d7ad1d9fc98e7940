"""`callyard config` and `callyard key`: settings with their origins, and new API keys. Secrets are masked."""

import json
from typing import Any, Final

from callyard.cli.parser import Options
from callyard.cli.targets import config_from
from callyard.cli.terminal import Painted, Terminal, pad, width_of
from callyard.config import Config, Origin, known_settings
from callyard.launch.errors import as_launch_error
from callyard.model.envelope import encode
from callyard.transports.auth import ApiKey, digest_of, new_key

__all__ = ["run_config", "run_key"]


_MAX_WIDTH: Final = 40


def run_config(options: Options, terminal: Terminal) -> int:
    """Print the settings that `callyard serve` would use with the same flags."""
    config = config_from(options, terminal)
    keys = (*known_settings(), *config.tables)
    rows = {key: (config.shown(key), config.origin(key)) for key in keys}
    if options.json:
        settings = {key: {"value": value, "from": origin.kind, "name": origin.name} for key, (value, origin) in rows.items()}
        terminal.write_json(encode(settings))
    elif terminal.interactive:
        _write_table(terminal, config, rows)
    else:
        for key, (value, origin) in rows.items():
            terminal.write(f"{key}\t{_text(value)}\t{origin}")
    return 0


def _write_table(terminal: Terminal, config: Config, rows: dict[str, tuple[Any, Origin]]) -> None:
    """Write a table in which values that are no defaults are bold."""
    width = max(len(key) for key in rows)
    values = min(max(width_of(_text(value)) for value, _ in rows.values()), _MAX_WIDTH)
    for key, (value, origin) in rows.items():
        facts = f"  {pad(_text(value), values)}  {origin}"
        is_set = key in config.origins
        terminal.write(Painted(f"{key:<{width}}", "bold" if is_set else "faint"), facts if is_set else Painted(facts, "faint"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "-" if value is None else encode(value).decode()


def run_key(options: Options, terminal: Terminal) -> int:
    """Print a new key to stdout, and its line for 'callyard.toml' to stderr."""
    key = new_key()
    with as_launch_error(ValueError):
        stored = ApiKey(options.name, digest_of(key), options.profile)
    line = _line(stored)
    if options.json:
        facts = {"key": key, "name": stored.name, "digest": stored.digest, "profile": stored.profile, "line": line}
        terminal.write_json(encode(facts))
        return 0
    terminal.write(key)
    terminal.say("The key is shown only once. A client sends it as 'Authorization: Bearer KEY'.")
    terminal.say("Add this to 'callyard.toml'; if it has keys already, add the part in braces to them:")
    terminal.say("")
    terminal.say("[auth]")
    terminal.say(Painted(line, "bold"))
    return 0


def _line(stored: ApiKey) -> str:
    facts = {"name": stored.name, "digest": stored.digest, **({} if stored.profile is None else {"profile": stored.profile})}
    pairs = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items())
    return f"api_keys = [{{{pairs}}}]"
