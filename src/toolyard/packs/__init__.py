"""First-party packs: providers that come with Toolyard and publish nothing unless named."""

from collections.abc import Callable
from typing import Final

from toolyard.packs.system import Subject, System
from toolyard.providers import Provider

__all__ = ["PACKS", "Subject"]

PACKS: Final[dict[str, Callable[[Subject], Provider]]] = {"system": System}
