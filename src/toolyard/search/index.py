"""The index: tools go in and out one at a time, and questions are answered within what is allowed.

It reads the question and asks a strategy, which ranks; so every strategy is asked alike.
"""

from typing import Protocol

from toolyard.search.listing import Allows, Found
from toolyard.search.visible import Admits
from toolyard.search_settings import SearchSettings
from toolyard.spec import Operation, ToolSpec

__all__ = ["Index", "Strategy"]


class Strategy(Protocol):
    """A way to rank tools against words."""

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name."""
        ...

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        ...

    def prepare(self) -> None:
        """Read what came since the last question."""
        ...

    def rank(self, query: str, admits: Admits, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that are admitted; never fails, whatever the query."""
        ...


class Index:
    """The tools of a yard, ranked by one strategy."""

    def __init__(self, strategy: Strategy, settings: SearchSettings) -> None:
        self.strategy = strategy
        self._settings = settings

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name."""
        self.strategy.add(spec)

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        self.strategy.remove(name)

    def prepare(self) -> None:
        """Do now what the next search would otherwise do first."""
        self.strategy.prepare()

    def search(
        self,
        query: str,
        *,
        allows: Allows,
        namespace: str | None = None,
        operation: Operation | None = None,
        offset: int = 0,
        limit: int = 5,
    ) -> Found:
        """Return the tools that fit best, of those that are allowed; never fails, whatever the query."""
        self.strategy.prepare()
        admits = Admits(allows=allows, namespace=namespace, operation=operation)
        return self.strategy.rank(query[: self._settings.query_characters], admits, offset=offset, limit=limit)
