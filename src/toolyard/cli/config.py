"""`toolyard config`: every setting, its value and where it came from; what is secret is only said to be there."""

import json
from typing import Any, Final, cast

import msgspec

from toolyard.cli.parser import Options
from toolyard.cli.targets import config_from
from toolyard.cli.terminal import Painted, Terminal, width_of
from toolyard.config import Config, Key, Origin, known_settings
from toolyard.launch.errors import LaunchError
from toolyard.model.envelope import encode
from toolyard.transports.auth import ApiKey, digest_of, new_key

__all__ = ["run_config", "run_key"]


_WIDEST: Final = 40


def run_config(options: Options, terminal: Terminal) -> int:
    """Print the settings that `toolyard serve` would have with the same flags."""
    config = config_from(options, terminal)
    rows = {key: (_shown(config.value(key)), config.origin(key)) for key in (*known_settings(), *config.tables)}
    if options.json:
        facts = {key: {"value": value, "from": origin.kind, "name": origin.name} for key, (value, origin) in rows.items()}
        terminal.write_json(encode(facts))
    elif terminal.interactive:
        _write_table(terminal, config, rows)
    else:
        for key, (value, origin) in rows.items():
            terminal.write(f"{key}\t{_text(value)}\t{origin}")
    return 0


def _write_table(terminal: Terminal, config: Config, rows: dict[str, tuple[Any, Origin]]) -> None:
    """Write a table in which what somebody set stands out."""
    width = max(len(key) for key in rows)
    values = min(max(width_of(_text(value)) for value, _ in rows.values()), _WIDEST)
    for key, (value, origin) in rows.items():
        facts = f"  {_text(value):<{values}}  {origin}"
        is_set = key in config.origins
        terminal.write(Painted(f"{key:<{width}}", "bold" if is_set else "faint"), facts if is_set else Painted(facts, "faint"))


def _shown(value: Any) -> Any:
    if isinstance(value, Key):
        return msgspec.structs.asdict(msgspec.structs.replace(value, digest="…"))
    return [_shown(item) for item in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "-" if value is None else encode(value).decode()


def run_key(options: Options, terminal: Terminal) -> int:
    """Print the key to stdout, and on stderr the line that lets it in."""
    key = new_key()
    try:
        kept = ApiKey(options.name, digest_of(key), options.profile)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    line = _line(kept)
    if options.json:
        facts = {"key": key, "name": kept.name, "digest": kept.digest, "profile": kept.profile, "line": line}
        terminal.write_json(encode(facts))
        return 0
    terminal.write(key)
    terminal.say("The key is shown this once. A client sends it as 'Authorization: Bearer KEY'.")
    terminal.say("This lets it in; where there are keys already, what is in braces joins them in 'toolyard.toml':")
    terminal.say("")
    terminal.say("[auth]")
    terminal.say(Painted(line, "bold"))
    return 0


def _line(kept: ApiKey) -> str:
    facts = {"name": kept.name, "digest": kept.digest, **({} if kept.profile is None else {"profile": kept.profile})}
    pairs = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items())
    return f"api_keys = [{{{pairs}}}]"
