"""Tables `[probe.NAME]` of 'callyard.toml': what `callyard probe` and `callyard watch` check at an upstream."""

from pathlib import Path
from typing import Any, Final

import msgspec

from callyard.config.convert import Location, Table, build_struct, convert_fields, require_table

__all__ = ["PROBE", "Canary", "ProbeTable", "read_probe_tables"]

PROBE: Final = "probe"


class Canary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that a probe makes."""

    tool: str
    """The tool, by its own name at the upstream."""
    arguments: dict[str, Any] = {}
    """Its arguments."""
    code: str = "ok"
    """The expected outcome: 'ok', a code of a probe such as 'tool_error', or the code of a Callyard server's answer."""
    allow: bool = False
    """Whether it may be called although the upstream does not say that it only reads."""
    seconds: float = 10.0
    """Seconds after which it counts as hung."""

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError("The setting 'seconds' of a canary must be more than 0.")


class ProbeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is checked at one upstream, and how often."""

    tools: tuple[str, ...] = ()
    """Tools that it must have, by its own names."""
    canaries: tuple[Canary, ...] = ()
    """Calls that a probe makes; without one no tool is called."""
    slow_seconds: float = 5.0
    """Seconds after which one step or canary counts as slow."""
    seconds: float = 30.0
    """Seconds that a whole probe may take."""
    every: float | None = None
    """Seconds between two probes of 'callyard watch' (default: that of '[watch]')."""
    start: bool = False
    """Whether 'callyard watch' may start it, if it is a program."""

    def __post_init__(self) -> None:
        if not (self.slow_seconds > 0 and self.seconds > 0 and (self.every is None or self.every >= 1)):
            raise ValueError(
                "The settings 'slow_seconds' and 'seconds' of a probe must be more than 0, and 'every' at least 1."
            )


def read_probe_tables(document: Table, path: Path) -> dict[str, ProbeTable]:
    """Return the tables of probes by the name of their upstream.

    Raises:
        ConfigError: One is wrong.
    """
    whole = Location(PROBE, str(path))
    found: dict[str, ProbeTable] = {}
    for name, table in require_table(document.get(PROBE, {}), whole).items():
        location = whole.child(f".{name}")
        found[name] = build_struct(ProbeTable, convert_fields(table, ProbeTable, location), location)
    return found
