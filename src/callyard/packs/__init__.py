"""First-party packs: providers that come with Callyard and publish nothing unless configured.

Its files:

- `system`: tools that describe the yard to an agent
"""

from importlib import import_module
from typing import Any

from callyard.providers import Provider

__all__ = ["make_pack"]


def make_pack(name: str, yard: Any) -> Provider:
    """Return a pack by name, for one yard; its module is imported here, because most packs import pydantic."""
    return getattr(import_module(f"callyard.packs.{name}"), name.capitalize())(yard)
