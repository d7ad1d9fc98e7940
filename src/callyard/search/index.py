"""The index of a yard's tools, and the registry of search strategies.

The index only passes queries on; a strategy ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from callyard._internal.lazy import installed_entry_points
from callyard.model.spec import Operation, ToolSpec
from callyard.search.bm25 import Bm25
from callyard.search.hits import FUSED, Allows, Filter, Found, FusedHit, Hit, fuse, page
from callyard.search.lexical import Lexical
from callyard.search.postings import WEIGHTS, Weights
from callyard.search.settings import SearchSettings
from callyard.search.text import QUERY_CHARACTERS

__all__ = ["ENTRY_POINTS", "Index", "Order", "Strategy", "StrategyError", "make_index", "strategy_names"]

Order = Callable[[str, Sequence[Hit]], list[Hit]]
"""Returns the hits of a query in another order."""


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
        self.add = strategy.add
        self.remove = strategy.remove
        self.prepare = strategy.prepare

    def search(
        self,
        query: str,
        *,
        allows: Allows,
        namespace: str | None = None,
        operation: Operation | None = None,
        offset: int = 0,
        limit: int = 5,
        order: Order | None = None,
    ) -> Found:
        """Return the tools that fit best, of those that are allowed; no query makes it raise.

        With `order` the first hits are put in another order before the page is taken.
        """
        self.strategy.prepare()
        where = Filter(allows=allows, namespace=namespace, operation=operation)
        text = query[:QUERY_CHARACTERS]
        if order is None:
            return self.strategy.rank(text, where, offset=offset, limit=limit)
        found = self.strategy.rank(text, where, offset=0, limit=max(FUSED, offset + limit))
        paged = page((*order(query, found.hits[:FUSED]), *found.hits[FUSED:]), offset=offset, limit=limit)
        if found.more:
            return Found(hits=paged.hits, more=True)
        return Found(hits=paged.hits, total=paged.total, more=paged.more, closest=found.closest)

    def search_several(
        self,
        queries: Sequence[str],
        *,
        allows: Allows,
        namespace: str | None = None,
        operation: Operation | None = None,
        order: Order | None = None,
    ) -> tuple[list[FusedHit], bool]:
        """Return the tools that fit several queries, in one order, and whether these are all that fit.

        With `order` the hits of each query are put in another order before they are fused.
        """
        self.strategy.prepare()
        where = Filter(allows=allows, namespace=namespace, operation=operation)
        texts = [". ".join(query.strip(" ,;.") for query in queries), *queries]
        found = [self.strategy.rank(text[:QUERY_CHARACTERS], where, offset=0, limit=FUSED) for text in texts]
        ranked = [one.hits if order is None else order(text, one.hits) for text, one in zip(texts, found, strict=True)]
        together, *each = ranked
        return fuse(together, each), not any(one.more for one in found)


ENTRY_POINTS: Final = "callyard.search"
"""The entry-point group of strategies from other packages: functions from settings to a strategy."""
_METHODS: Final = ("add", "remove", "prepare", "rank")


class StrategyError(ValueError):
    """The strategy does not exist or cannot be loaded; the message says why."""


def _make_hybrid(_: SearchSettings, weights: Weights) -> Strategy:
    from callyard.search.semantic import Hybrid  # noqa: PLC0415 - it needs the extra 'semantic'

    try:
        return Hybrid(weights)
    except ModuleNotFoundError as error:
        message = f"The search strategy 'hybrid' needs '{error.name}'; install the extra 'semantic'."
        raise StrategyError(message) from error


_OWN: Final[dict[str, Callable[[SearchSettings, Weights], Strategy]]] = {
    "bm25": lambda settings, _: Bm25(settings),
    "hybrid": _make_hybrid,
    "lexical": lambda _, weights: Lexical(weights),
}


def strategy_names() -> list[str]:
    """Return the names of all strategies that are installed."""
    return sorted({*_OWN, *_entry_points()})


def make_index(settings: SearchSettings | None = None, *, weights: Weights = WEIGHTS) -> Index:
    """Return an empty index that ranks by the strategy of the settings.

    Raises:
        StrategyError: There is no such strategy, it is invalid, or a package that it needs is missing.
    """
    settings = settings or SearchSettings()
    name = settings.strategy.strip().lower()
    own = _OWN.get(name)
    if own is not None:
        return Index(own(settings, weights))
    entry_point = _entry_points().get(name)
    if entry_point is None:
        raise StrategyError(
            f"There is no search strategy '{name}'; there are {', '.join(map(repr, strategy_names()))}."
        )
    return Index(_load(name, settings, entry_point))


def _load(name: str, settings: SearchSettings, entry_point: Any) -> Strategy:
    """Return the strategy of another package, after a check that it has the methods of one."""
    which = f"The search strategy '{name}' of '{entry_point.value}'"
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
    return {point.name.strip().lower(): point for point in installed_entry_points(ENTRY_POINTS)}
