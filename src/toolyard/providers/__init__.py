"""Where tools come from: a provider connects, publishes tools and disconnects."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from toolyard.tools import Tool

__all__ = ["Provider", "Publish"]


class Publish(Protocol):
    """Makes these the tools of the provider, in place of those it published before."""

    def __call__(self, tools: Iterable[Tool], /, *, foreign: bool = False) -> None:
        """Publish; of tools that are not our own, one that is wrong is quarantined instead of failing all."""
        ...


class Provider(Protocol):
    """A name and one context manager, which publishes while it is open."""

    @property
    def name(self) -> str:
        """Return the source that its tools are shown under."""
        ...

    def open(self, publish: Publish) -> AbstractAsyncContextManager[None]:
        """Connect, publish, and disconnect on leaving."""
        ...
