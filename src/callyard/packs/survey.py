"""What a command tells about packs without opening any: which are installed and named, and what is missing."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from callyard._version import VERSION
from callyard.config.convert import ConfigError
from callyard.config.packs import PackTable
from callyard.packs.loading import find_pack, installed_packs, load_pack
from callyard.packs.pack import SYSTEM, Pack, PackError
from callyard.packs.pack_set import ProgramState, TargetState, facts_of_needs

__all__ = ["PackReport", "survey"]


class PackReport(msgspec.Struct, frozen=True, kw_only=True):
    """One pack, installed or named."""

    name: str
    package: str
    version: str
    state: Literal["installed", "ready", "open", "failed"]
    """`installed` is not named; `ready` is named, and nothing is missing; `open` is of a running server."""
    reason: str = ""
    """Why it cannot be used."""
    programs: list[ProgramState] = []
    eval_targets: list[TargetState] = []


def survey(
    names: Iterable[str], tables: Mapping[str, PackTable], allows_eval: Callable[[str], bool]
) -> list[PackReport]:
    """Return every installed or named pack, by name; only named ones are imported."""
    named = list(dict.fromkeys(names))
    reports = [_named(name, tables.get(name), allows_eval) for name in named]
    for name, packs in installed_packs().items():
        if name not in named:
            reports += [
                PackReport(name=name, package=pack.package, version=pack.version, state="installed") for pack in packs
            ]
    if SYSTEM not in named:
        reports.append(PackReport(name=SYSTEM, package="callyard", version=VERSION, state="installed"))
    return sorted(reports, key=lambda report: report.name)


def _named(name: str, table: PackTable | None, allows_eval: Callable[[str], bool]) -> PackReport:
    if name == SYSTEM:
        return PackReport(name=name, package="callyard", version=VERSION, state="ready")
    try:
        pack = load_pack(find_pack(name))
    except PackError as error:
        package = next((found.package for found in installed_packs().get(name, ())), "")
        return PackReport(name=name, package=package, version="", state="failed", reason=str(error))
    programs, targets = facts_of_needs(pack, allows_eval)
    reason = _missing(pack, table, programs)
    return PackReport(
        name=name,
        package=pack.package,
        version=pack.version,
        state="failed" if reason else "ready",
        reason=reason,
        programs=programs,
        eval_targets=targets,
    )


def _missing(pack: Pack, table: PackTable | None, programs: list[ProgramState]) -> str:
    """Return why a pack would not open, as far as that can be told without opening it."""
    for program in programs:
        if program["required"] and not program["found"]:
            return f"It needs '{program['name']}', not installed here."
    try:
        table = table or PackTable.empty(pack.name)
        table.resolve(pack.config, table.filled())
    except ConfigError as error:
        return str(error)
    return ""
