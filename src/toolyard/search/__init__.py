"""Search: ranks tools against words, by strategies behind one interface.

It knows tools as data only: not who asks, nor what running one does.
"""

from toolyard.search.hits import Allows, Found, Hit
from toolyard.search.index import Index, Strategy, StrategyError, make_index, strategy_names
from toolyard.search.settings import SearchSettings, read_environment

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
