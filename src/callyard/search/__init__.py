"""Search: ranks tools against words, by one of several strategies.

It reads specs only and knows neither callers nor calls. Its names are loaded lazily: until its first search a yard needs only the
settings.
"""

from typing import TYPE_CHECKING

from callyard._internal.lazy import load_names

if TYPE_CHECKING:
    from callyard.search.hits import Allows, Found, Hit
    from callyard.search.index import Index, Strategy, StrategyError, make_index, strategy_names
    from callyard.search.settings import SearchSettings, read_environment

__all__ = [
    "Allows",
    "Found",
    "Hit",
    "Index",
    "SearchSettings",
    "Strategy",
    "StrategyError",
    "make_index",
    "read_environment",
    "strategy_names",
]

if not TYPE_CHECKING:  # a checker that saw it would accept every name
    __getattr__ = load_names(
        "callyard.search",
        {
            "hits": ("Allows", "Found", "Hit"),
            "index": ("Index", "Strategy", "StrategyError", "make_index", "strategy_names"),
            "settings": ("SearchSettings", "read_environment"),
        },
    )
