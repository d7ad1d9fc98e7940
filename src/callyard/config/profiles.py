"""The tables `[profiles.NAME]`, `[toolsets.NAME]` and `[[rules]]` of 'callyard.toml'."""

from pathlib import Path
from typing import Any, Final

import msgspec

from callyard.config.convert import ConfigError, Location, Table, build_struct, check_keys, convert, convert_fields, require_table
from callyard.model.profile import Profile, Shape, Surface, Toolset
from callyard.model.rule import Rule

__all__ = ["PROFILES", "RULES", "TOOLSETS", "ProfileTable", "read_profiles", "read_rules"]

PROFILES: Final = "profiles"
TOOLSETS: Final = "toolsets"
RULES: Final = "rules"


class ProfileTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[profiles.NAME]`."""

    toolsets: tuple[str, ...] = ()
    """Names of toolsets: a tool exists if one of them has it; without toolsets every tool does."""
    surface: Surface = Surface.AUTO
    """How its tools are listed: 'direct', 'meta' or 'auto'."""
    pins: tuple[str, ...] = ()
    """Patterns of tool names that are listed on every surface."""
    rules: tuple[Rule, ...] = ()
    """Rules for its callers only, which come before the rules for all."""
    description: str = ""
    """What the profile is for."""
    shape: Shape | None = None
    """How successes are sent: 'envelope' or 'plain' (default: the yard's 'shape')."""


def read_profiles(document: Table, path: Path) -> dict[str, Profile]:
    """Return the profiles of a file with their toolsets.

    Raises:
        ConfigError: A table is wrong, or a profile names an unknown toolset.
    """
    toolsets = {name: _toolset(name, table, location) for name, table, location in _tables(document, TOOLSETS, path)}
    return {name: _profile(name, table, location, toolsets) for name, table, location in _tables(document, PROFILES, path)}


def read_rules(document: Table, path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file: those of profiles, then those for all.

    Raises:
        ConfigError: A rule is wrong.
    """
    found: list[Rule] = []
    for name, table, location in _tables(document, PROFILES, path):
        rules: tuple[Rule, ...] = convert_fields(table, ProfileTable, location).get(RULES, ())
        found += [msgspec.structs.replace(rule, profile=name) for rule in rules]
    return (*found, *convert(document.get(RULES, []), tuple[Rule, ...], Location(RULES, str(path))))


def _tables(document: Table, section: str, path: Path) -> list[tuple[str, Any, Location]]:
    whole = Location(section, str(path))
    return [(name, table, whole.child(f".{name}")) for name, table in require_table(document.get(section, {}), whole).items()]


def _toolset(name: str, table: object, location: Location) -> Toolset:
    check_keys(require_table(table, location), [field for field in Toolset.__struct_fields__ if field != "name"], location)
    return build_struct(Toolset, {"name": name, **convert_fields(table, Toolset, location)}, location)


def _profile(name: str, table: object, location: Location, toolsets: dict[str, Toolset]) -> Profile:
    rules: ProfileTable = build_struct(ProfileTable, convert_fields(table, ProfileTable, location), location)
    for number, toolset in enumerate(rules.toolsets):
        item = location.child(f".toolsets[{number}]")
        if toolset not in toolsets:
            known = ", ".join(f"'{known}'" for known in toolsets) or "none"
            raise ConfigError(f"{item} names the toolset '{toolset}', which does not exist. Known: {known}.")
        if toolset in rules.toolsets[:number]:
            raise ConfigError(f"{item} names the toolset '{toolset}' twice.")
    selected = tuple(toolsets[toolset] for toolset in rules.toolsets)
    return Profile(name=name, toolsets=selected, surface=rules.surface, pins=rules.pins, description=rules.description, shape=rules.shape)
