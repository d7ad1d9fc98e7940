"""Modules that are imported when first used."""

import gc
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # as type checkers know it; `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

__all__ = ["PausedCollection", "load", "load_names"]


class PausedCollection:
    """Pauses garbage collection while many objects are made that stay.

    A collection would find nothing and take 10 to 20 % of the time. A collector that is off is left alone.
    """

    __slots__ = ("_paused",)

    def __enter__(self) -> None:
        self._paused = gc.isenabled()
        if self._paused:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._paused:
            gc.enable()


def load(module: str) -> ModuleType:
    """Import a module and everything it imports, with garbage collection paused."""
    with PausedCollection():
        return import_module(module)


def load_names(package: str, homes: "Mapping[str, Sequence[str]]") -> "Callable[[str], Any]":
    """Return a `__getattr__` for a package that loads its public names, each from its module, when first used."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def load_name(name: str) -> "Any":
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(load(f"{package}.{home}"), name)

    return load_name
