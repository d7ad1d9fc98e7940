"""Lazy imports: modules and public names that are loaded when first used."""

import gc
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # type checkers recognise the name; importing `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

__all__ = ["PausedCollection", "load", "load_names"]


class PausedCollection:
    """Pauses garbage collection while many long-lived objects are created.

    A collection would find nothing and take 10 to 20 % of the time. A disabled collector stays disabled.
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
    """Import a module with garbage collection paused."""
    with PausedCollection():
        return import_module(module)


def load_names(package: str, modules: "Mapping[str, Sequence[str]]") -> "Callable[[str], Any]":
    """Return a `__getattr__` for a package that loads each public name from its module when first used."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def load_name(name: str) -> "Any":
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(load(f"{package}.{module}"), name)

    return load_name
