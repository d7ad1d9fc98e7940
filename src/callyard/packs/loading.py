"""Finds installed packs by the entry point group `callyard.packs`, and imports the one that is asked for."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from callyard._internal.lazy import installed_entry_points
from callyard._version import VERSION
from callyard.model.names import did_you_mean
from callyard.packs.pack import SYSTEM, Pack, PackError, check_pack

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint  # slow, and most yards name no installed pack

__all__ = [
    "GROUP",
    "InstalledPack",
    "check_version",
    "error_of",
    "find_pack",
    "installed_packs",
    "load_pack",
    "short_reason",
    "unknown_pack",
]

GROUP: Final = "callyard.packs"
"""The entry point group of packs."""
_REASON_CHARACTERS: Final = 300
_log = logging.getLogger(__name__)


class InstalledPack(msgspec.Struct, frozen=True):
    """A pack that a package offers; it is not imported."""

    name: str
    package: str
    version: str
    entry_point: "EntryPoint"

    def error(self, why: str) -> PackError:
        """Return the error of a pack that cannot be used."""
        return PackError(f"The pack '{self.name}' of the package '{self.package}' cannot be used. {why}")


def installed_packs() -> Mapping[str, Sequence[InstalledPack]]:
    """Return the installed packs by name, without importing any; more than one of a name is a mistake."""
    found: dict[str, list[InstalledPack]] = {}
    for point in installed_entry_points(GROUP):
        package = "" if point.dist is None else point.dist.name
        version = "" if point.dist is None else point.dist.version
        packs = found.setdefault(point.name, [])
        if package not in [pack.package for pack in packs]:  # an editable package may be found twice
            packs.append(InstalledPack(point.name, package, version, point))
    return dict(sorted(found.items()))


def find_pack(name: str) -> InstalledPack:
    """Return the installed pack of that name.

    Raises:
        PackError: There is none, or there are several.
    """
    installed = installed_packs()
    packs = installed.get(name, ())
    if not packs:
        raise unknown_pack(name, list(installed))
    if len(packs) > 1:
        packages = " and ".join(f"'{pack.package}'" for pack in packs)
        raise PackError(f"The packages {packages} both offer a pack '{name}'. Uninstall one of them.")
    return packs[0]


def unknown_pack(name: str, installed: Sequence[str]) -> PackError:
    """Return the error for a pack that is not installed."""
    known = [*dict.fromkeys((SYSTEM, *installed))]
    meant = did_you_mean(name, known) or f" Known: {', '.join(known)}."
    return PackError(f"There is no pack '{name}'.{meant} Install its package in the environment of Callyard.")


def load_pack(found: InstalledPack) -> Pack:
    """Import a pack and check it.

    Raises:
        PackError: It cannot be imported, is wrong, or is for other versions of Callyard.
    """
    try:
        loaded: object = found.entry_point.load()
    except (Exception, SystemExit) as error:
        _log.debug("pack_import_failed pack=%s", found.name, exc_info=error)
        raise found.error(f"It cannot be imported: {short_reason(error)} Install '{found.package}' again.") from error
    try:
        pack = check_pack(loaded, found.name)
    except ValueError as error:
        raise found.error(f"{error} Ask whoever made it for another version.") from error
    pack = msgspec.structs.replace(pack, package=found.package, version=found.version)
    check_version(pack)
    return pack


def check_version(pack: Pack) -> None:
    """Check that a pack works with this version of Callyard.

    Raises:
        PackError: It does not, or its range is none.
    """
    if not pack.requires:
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - only packs with a range need it

    try:
        fits = SpecifierSet(pack.requires).contains(VERSION, prereleases=True)
    except InvalidSpecifier:
        why = f"It requires '{pack.requires}', which is no range of versions. Ask whoever made it."
        raise error_of(pack, why) from None
    if not fits:
        why = f"It requires Callyard {pack.requires}, and this is {VERSION}. Install a version of it for this one."
        raise error_of(pack, why)


def error_of(pack: Pack, why: str) -> PackError:
    """Return the error of a pack that cannot be used."""
    package = f" of the package '{pack.package}'" if pack.package else ""
    return PackError(f"The pack '{pack.name}'{package} cannot be used. {why}")


def short_reason(error: BaseException) -> str:
    """Return the type and the message of an exception as the end of a sentence, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    message = " ".join(str(error).split())[:_REASON_CHARACTERS].rstrip(".")
    return f"{type(error).__name__}{f': {message}' if message else ''}."
