"""Lazy imports: modules and public names that are loaded when first used."""

from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # type checkers recognise the name; importing `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from importlib.metadata import EntryPoint
    from typing import Any

__all__ = ["installed_entry_points", "load", "load_names"]


def load(module: str) -> ModuleType:
    """Import a module."""
    return import_module(module)


def installed_entry_points(group: str) -> "Iterable[EntryPoint]":
    """Return what installed packages offer under a name; importing what finds them takes as long as a small package."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and rarely used

    return entry_points(group=group)


def load_names(package: str, modules: "Mapping[str, Sequence[str]]") -> "Callable[[str], Any]":
    """Return a `__getattr__` for a package that loads each public name from its module when first used."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def load_name(name: str) -> "Any":
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(load(f"{package}.{module}"), name)

    return load_name
