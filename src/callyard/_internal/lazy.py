"""Lazy imports: modules and public names that are loaded when first used."""

from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # type checkers recognise the name; importing `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

__all__ = ["load", "load_names"]


def load(module: str) -> ModuleType:
    """Import a module."""
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
