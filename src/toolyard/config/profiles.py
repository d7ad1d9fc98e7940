"""Rules of a file: profiles and the toolsets they name, read into what a yard takes."""

from pathlib import Path
from typing import Any, Final

import msgspec

from toolyard.config.convert import ConfigError, Place, Table, fitted_fields, made, table_of, unknown
from toolyard.model.profile import Profile, Surface, Toolset

__all__ = ["PROFILES", "TOOLSETS", "ProfileTable", "read_profiles"]

PROFILES: Final = "profiles"
TOOLSETS: Final = "toolsets"


class ProfileTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file may say of a profile."""

    toolsets: tuple[str, ...] = ()
    """The names of its toolsets; what is in any of them exists, and everything if there are none."""
    surface: Surface = Surface.AUTO
    """How its tools are listed: 'direct', 'meta' or 'auto'."""
    pins: tuple[str, ...] = ()
    """Patterns of names that are listed on every surface."""
    description: str = ""
    """What it is for."""


def read_profiles(document: Table, path: Path) -> dict[str, Profile]:
    """Return the profiles of a file, each with its toolsets.

    Raises:
        ConfigError: One is wrong, or names a toolset that is not there.
    """
    toolsets = {name: _toolset(name, table, place) for name, table, place in _tables(document, TOOLSETS, path)}
    return {name: _profile(name, table, place, toolsets) for name, table, place in _tables(document, PROFILES, path)}


def _tables(document: Table, section: str, path: Path) -> list[tuple[str, Any, Place]]:
    whole = Place(section, str(path))
    return [(name, table, whole.inside(f".{name}")) for name, table in table_of(document.get(section, {}), whole).items()]


def _toolset(name: str, table: object, place: Place) -> Toolset:
    known = [field for field in Toolset.__struct_fields__ if field != "name"]
    if "name" in table_of(table, place):
        raise unknown(place.inside(".name"), known, elsewhere={})
    return made(Toolset, {"name": name, **fitted_fields(table, Toolset, place)}, place)


def _profile(name: str, table: object, place: Place, toolsets: dict[str, Toolset]) -> Profile:
    rules: ProfileTable = made(ProfileTable, fitted_fields(table, ProfileTable, place), place)
    for number, wanted in enumerate(rules.toolsets):
        here = place.inside(f".toolsets[{number}]")
        if wanted not in toolsets:
            known = ", ".join(f"'{one}'" for one in toolsets) or "none"
            raise ConfigError(f"{here} names the toolset '{wanted}', which is not there. Known: {known}.")
        if wanted in rules.toolsets[:number]:
            raise ConfigError(f"{here} names the toolset '{wanted}' once more.")
    chosen = tuple(toolsets[wanted] for wanted in rules.toolsets)
    return Profile(name=name, toolsets=chosen, surface=rules.surface, pins=rules.pins, description=rules.description)
