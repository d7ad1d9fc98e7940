"""`toolyard config`: every setting, its value and where it came from; what is secret is only said to be there."""

from typing import Any, Final, cast

import msgspec

from toolyard.cli.parser import Options
from toolyard.cli.settings import settings_of_options
from toolyard.cli.terminal import Painted, Terminal, width_of
from toolyard.config import Config, Key, Origin, known_settings
from toolyard.envelope import encode

__all__ = ["run"]

_WIDEST: Final = 40


def run(options: Options, terminal: Terminal) -> int:
    """Print the settings that `toolyard serve` would have with the same flags."""
    config = settings_of_options(options, terminal)
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
