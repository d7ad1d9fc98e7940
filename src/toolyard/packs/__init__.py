"""First-party packs: providers that come with Toolyard and publish nothing unless named."""

from importlib import import_module
from typing import Any

from toolyard.providers import Provider

__all__ = ["make_pack"]


def make_pack(name: str, yard: Any) -> Provider:
    """Return the pack of that name, about that yard; it is loaded now, because most packs load pydantic."""
    return getattr(import_module(f"toolyard.packs.{name}"), name.capitalize())(yard)
