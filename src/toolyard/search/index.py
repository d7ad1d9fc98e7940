"""The index: tools go in and out one at a time, and questions are answered within what is allowed.

It reads the question and asks a strategy, which ranks; so every strategy is asked alike.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from toolyard.model.spec import Operation, ToolSpec
from toolyard.search.bm25 import Bm25
from toolyard.search.hits import Admits, Allows, Found
from toolyard.search.lexical import Lexical
from toolyard.search.settings import SearchSettings

__all__ = ["ENTRY_POINTS", "Index", "Strategy", "StrategyError", "make_index", "strategy_names"]


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


ENTRY_POINTS: Final = "toolyard.search"
"""The group of entry points in which packages offer strategies: functions from settings to a strategy."""
_METHODS: Final = ("add", "remove", "prepare", "rank")


class StrategyError(ValueError):
    """The strategy that was asked for cannot be had; the sentence says why."""


def _make_hybrid(settings: SearchSettings) -> Strategy:
    # Imported here because the extra need not be installed, and only this strategy loads it.
    from toolyard.search.semantic import Hybrid  # noqa: PLC0415 - it needs the extra 'semantic'

    try:
        return Hybrid(settings)
    except ModuleNotFoundError as error:
        raise StrategyError(f"The search strategy 'hybrid' needs '{error.name}'; install the extra 'semantic'.") from error


_OWN: Final[dict[str, Callable[[SearchSettings], Strategy]]] = {"bm25": Bm25, "hybrid": _make_hybrid, "lexical": Lexical}


def strategy_names() -> list[str]:
    """Return the names of all strategies that are installed."""
    return sorted({*_OWN, *_offered()})


def make_index(settings: SearchSettings | None = None) -> Index:
    """Return an empty index that ranks by the strategy of the settings.

    Raises:
        StrategyError: There is no such strategy, it is none, or what it needs is not installed.
    """
    settings = settings or SearchSettings()
    own = _OWN.get(settings.strategy)
    if own is not None:
        return Index(own(settings), settings)
    offered = _offered().get(settings.strategy)
    if offered is None:
        known = ", ".join(f"'{name}'" for name in strategy_names())
        raise StrategyError(f"There is no search strategy '{settings.strategy}'; there are {known}.")
    return Index(_load(settings, offered), settings)


def _load(settings: SearchSettings, offered: Any) -> Strategy:
    """Return the strategy that a package offers, having seen that it is one."""
    which = f"The search strategy '{settings.strategy}' of '{offered.value}'"
    try:
        strategy = offered.load()(settings)
    except Exception as error:
        said = " ".join(str(error).split()).removesuffix(".") or type(error).__name__
        raise StrategyError(f"{which} cannot be loaded: {said}.") from error
    lacking = [name for name in _METHODS if not callable(getattr(strategy, name, None))]
    if lacking:
        named = ", ".join(f"'{name}'" for name in lacking)
        raise StrategyError(f"{which} cannot be used: what it makes, a '{type(strategy).__name__}', lacks {named}.")
    return strategy


def _offered() -> dict[str, Any]:
    # Imported here because it takes long to load, and only a strategy that is not ours needs it.
    from importlib.metadata import entry_points  # noqa: PLC0415 - dear, and for strangers' strategies alone

    return {point.name.strip().lower(): point for point in entry_points(group=ENTRY_POINTS)}
