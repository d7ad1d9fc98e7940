"""First-party packs: providers that come with Toolyard and publish nothing unless named."""

from importlib import import_module
from typing import Any, Final

from toolyard.providers import Provider

__all__ = ["PACKS", "make_pack"]

PACKS: Final[dict[str, tuple[str, str]]] = {"system": ("toolyard.packs.system", "System")}
"""By name where each is; it is loaded when a yard names it, because most bring pydantic with them."""


def make_pack(name: str, yard: Any) -> Provider:
    """Return the pack of that name, about that yard."""
    module, attribute = PACKS[name]
    return getattr(import_module(module), attribute)(yard)
