"""Tables with names of their own: upstreams, profiles and toolsets, which no flag and no variable can set."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from toolyard.config.fitting import Table
from toolyard.config.rules import PROFILES, TOOLSETS, read_profiles
from toolyard.profile import Profile

if TYPE_CHECKING:
    from toolyard.config.upstreams import Written  # see below

__all__ = ["FOREIGN", "TABLES", "Tables", "foreign_files", "is_foreign", "read_tables"]

FOREIGN: Final = (".json", ".jsonc")
"""How the names of clients' files end."""

_OF_UPSTREAMS: Final = ("upstreams", "upstream_defaults")
TABLES: Final = (*_OF_UPSTREAMS, PROFILES, TOOLSETS)
"""The headings under which people choose names."""


class Tables(NamedTuple):
    """What tables say: what a yard is made of, and every value as it may be shown, with the file it is from."""

    upstreams: "dict[str, Written]"
    profiles: dict[str, Profile]
    shown: dict[str, Any]
    sources: dict[str, str]
    warnings: tuple[str, ...]


def is_foreign(target: str | None) -> bool:
    """Return whether a target names upstreams: a client's file or an address."""
    return target is not None and (target.endswith(FOREIGN) or target.startswith(("http://", "https://")))


def foreign_files(target: str | None) -> list[Path]:
    """Return the client's file that a target names, if it names one."""
    return [Path(target)] if target is not None and target.endswith(FOREIGN) and "://" not in target else []


def read_tables(document: Table, path: Path | None, target: str | None) -> Tables:
    """Read the tables of a file; a target that names upstreams takes the place of those that the file has.

    Raises:
        ConfigError: Something in them is wrong.
    """
    found = Tables({}, {}, {}, {}, ())
    if path is not None:
        found.profiles.update(read_profiles(document, path))
        shown = dict(_flat({name: document[name] for name in (PROFILES, TOOLSETS) if name in document}))
        found.shown.update(shown)
        found.sources.update(dict.fromkeys(shown, str(path)))
    if is_foreign(target) or any(name in document for name in _OF_UPSTREAMS):
        return _with_upstreams(found, document, path, target)
    return found


def _with_upstreams(found: Tables, document: Table, path: Path | None, target: str | None) -> Tables:
    from toolyard.config.upstreams import from_file, from_target, masked  # noqa: PLC0415 - it brings asyncio, and most yards have none

    upstreams = {} if path is None else from_file(document, path)
    warnings: tuple[str, ...] = ()
    if target is not None and is_foreign(target):
        upstreams, warnings = from_target(target)
    for name, written in upstreams.items():
        found.upstreams[name] = written
        for field, value in written.fields.items():
            key = f"upstreams.{name}.{field}"
            found.shown[key] = masked(field, value)
            if written.place.file is not None:
                found.sources[key] = written.place.file
    return found._replace(warnings=warnings)


def _flat(document: Table) -> Iterator[tuple[str, Any]]:
    for section, tables in document.items():
        for name, table in cast("dict[str, Table]", tables).items():
            yield from ((f"{section}.{name}.{field}", value) for field, value in table.items())
