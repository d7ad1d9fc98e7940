"""The subject: what metatools need to know of the yard they are tools of."""

from typing import Protocol

from toolyard.dispatcher import Dispatcher
from toolyard.limits import Limits
from toolyard.registry import Registry
from toolyard.seal import Seal
from toolyard.search_settings import SearchSettings

__all__ = ["Subject"]


class Subject(Protocol):
    """A yard, as its metatools see it."""

    @property
    def registry(self) -> Registry:
        """Return the names of its tools."""
        ...

    @property
    def limits(self) -> Limits:
        """Return the numbers it keeps to."""
        ...

    @property
    def search(self) -> SearchSettings:
        """Return how its tools are found."""
        ...

    @property
    def seal(self) -> Seal:
        """Return what its cursors are sealed with."""
        ...

    @property
    def dispatcher(self) -> Dispatcher:
        """Return the funnel that every call passes."""
        ...
