"""Search: ranks tools against words, by one of several strategies.

It reads specs only and knows neither callers nor calls. Its names are loaded lazily: until its first search a yard
needs only the settings.

Its files:

- `bm25`: ranks by the words of a tool as they are written, without stems and synonyms
- `evaluate`: evaluation: recall, rank and speed of a search strategy on labelled queries
- `hits`: what every search strategy shares: hits and pages, the filter of a search, and tools by name
- `index`: the index of a yard's tools, and the registry of search strategies
- `learned`: the order that is learned from use: which tools were called after a search with a word
- `lexical`: ranks by words, their stems, words of similar meaning, and the field a word is in
- `postings`: the inverted index of the lexical strategy: which tools contain a term, and its weight in each
- `semantic`: the hybrid strategy: words as in the lexical one, and likeness of meaning by word vectors
- `settings`: the strategy, and the numbers of BM25
- `stem`: Stems of English words, by the Porter2 algorithm
- `text`: the texts of a tool as words: its fields, splitting, folding, stop words, abbreviations and the thesaurus
"""

from typing import TYPE_CHECKING

from callyard._internal.lazy import load_names

if TYPE_CHECKING:
    from callyard.search.hits import QUERIES, Allows, Found, FusedHit, Hit
    from callyard.search.index import Index, Strategy, StrategyError, make_index, strategy_names
    from callyard.search.settings import SearchSettings, read_environment

__all__ = [
    "QUERIES",
    "Allows",
    "Found",
    "FusedHit",
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
            "hits": ("QUERIES", "Allows", "Found", "FusedHit", "Hit"),
            "index": ("Index", "Strategy", "StrategyError", "make_index", "strategy_names"),
            "settings": ("SearchSettings", "read_environment"),
        },
    )
