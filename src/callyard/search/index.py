"""The index of a yard's tools, and the registry of search strategies.

The index only passes queries on; a strategy ranks.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from callyard.model.spec import Operation, ToolSpec
from callyard.search.bm25 import Bm25
from callyard.search.hits import Allows, Filter, Found
from callyard.search.lexical import Lexical
from callyard.search.settings import SearchSettings
from callyard.search.text import QUERY_CHARACTERS

__all__ = ["ENTRY_POINTS", "Index", "Strategy", "StrategyError", "make_index", "strategy_names"]


class Strategy(Protocol):
    """A way to rank tools against words."""

    def add(self, spec: ToolSpec) -> None:
        """Add a tool, or replace the one of the same name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        ...

    def prepare(self) -> None:
        """Index the tools that were added since the last search."""
        ...

    def rank(self, query: str, where: Filter, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that pass the filter; no query makes it raise."""
        ...


class Index:
    """The tools of a yard, ranked by one strategy."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def add(self, spec: ToolSpec) -> None:
        """Add a tool, or replace the one of the same name."""
        self.strategy.add(spec)

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        self.strategy.remove(name)

    def prepare(self) -> None:
        """Index now what the next search would otherwise index first."""
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
        """Return the tools that fit best, of those that are allowed; no query makes it raise."""
        self.strategy.prepare()
        where = Filter(allows=allows, namespace=namespace, operation=operation)
        return self.strategy.rank(query[:QUERY_CHARACTERS], where, offset=offset, limit=limit)


ENTRY_POINTS: Final = "callyard.search"
"""The entry-point group of strategies from other packages: functions from settings to a strategy."""
_METHODS: Final = ("add", "remove", "prepare", "rank")


class StrategyError(ValueError):
    """The strategy does not exist or cannot be loaded; the message says why."""


def _make_hybrid(settings: SearchSettings) -> Strategy:
    from callyard.search.semantic import Hybrid  # noqa: PLC0415 - it needs the extra 'semantic'

    try:
        return Hybrid(settings)
    except ModuleNotFoundError as error:
        raise StrategyError(f"The search strategy 'hybrid' needs '{error.name}'; install the extra 'semantic'.") from error


_OWN: Final[dict[str, Callable[[SearchSettings], Strategy]]] = {"bm25": Bm25, "hybrid": _make_hybrid, "lexical": Lexical}


def strategy_names() -> list[str]:
    """Return the names of all strategies that are installed."""
    return sorted({*_OWN, *_entry_points()})


def make_index(settings: SearchSettings | None = None) -> Index:
    """Return an empty index that ranks by the strategy of the settings.

    Raises:
        StrategyError: There is no such strategy, it is invalid, or a package that it needs is missing.
    """
    settings = settings or SearchSettings()
    own = _OWN.get(settings.strategy)
    if own is not None:
        return Index(own(settings))
    entry_point = _entry_points().get(settings.strategy)
    if entry_point is None:
        known = ", ".join(f"'{name}'" for name in strategy_names())
        raise StrategyError(f"There is no search strategy '{settings.strategy}'; there are {known}.")
    return Index(_load(settings, entry_point))


def _load(settings: SearchSettings, entry_point: Any) -> Strategy:
    """Return the strategy of another package, after a check that it has the methods of one."""
    which = f"The search strategy '{settings.strategy}' of '{entry_point.value}'"
    try:
        strategy = entry_point.load()(settings)
    except Exception as error:
        reason = " ".join(str(error).split()).removesuffix(".") or type(error).__name__
        raise StrategyError(f"{which} cannot be loaded: {reason}.") from error
    lacking = [name for name in _METHODS if not callable(getattr(strategy, name, None))]
    if lacking:
        names = ", ".join(f"'{name}'" for name in lacking)
        raise StrategyError(f"{which} cannot be used: its '{type(strategy).__name__}' lacks {names}.")
    return strategy


def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to load, and only strategies of other packages need it

    return {point.name.strip().lower(): point for point in entry_points(group=ENTRY_POINTS)}
