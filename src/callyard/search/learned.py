"""The order that is learned from use: which tools were called after a search with a word.

It changes only the order of hits that fit about equally well, never which tools are found.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from callyard.search.hits import Hit
from callyard.search.stem import stem
from callyard.search.text import QUERY_CHARACTERS, STOP_WORDS, find_values, fold, words_of

__all__ = ["LearnedOrder", "Uses", "add_use", "query_stems"]

Uses = dict[str, dict[str, int]]
"""How often each tool was called after a search, for each stem of a query."""
_STEMS: Final = 16
_TOOLS: Final = 16
"""Tools that are remembered for a stem."""
_MOST: Final = 64
"""Calls after which the counts of a stem are halved, so that newer ones count more."""
_NEAR: Final = 0.95
"""Hits are near ties from this share of the best score among them."""


def query_stems(query: str) -> tuple[str, ...]:
    """Return the first stems of a query that are remembered: no common words, and no values such as quoted text."""
    text = fold(query[:QUERY_CHARACTERS])
    for start, end in reversed(list(find_values(text))):
        text = f"{text[:start]} {text[end:]}"
    return tuple(dict.fromkeys(stem(word) for word in words_of(text) if word not in STOP_WORDS))[:_STEMS]


def add_use(uses: Uses, word: str, tool: str, times: int = 1) -> None:
    """Count calls of a tool after searches with a stem, which becomes the last one."""
    tools = uses.pop(word, {})
    tools[tool] = tools.pop(tool, 0) + times
    if len(tools) > _TOOLS:
        del tools[min(tools, key=lambda name: (name == tool, tools[name]))]
    while sum(tools.values()) > _MOST:
        tools = {name: count // 2 for name, count in tools.items() if count > 1}
    uses[word] = tools


class LearnedOrder:
    """Puts the hits of a search that fit about equally well in the order in which they are used."""

    def __init__(self, uses: Mapping[str, Mapping[str, int]]) -> None:
        self._uses = uses
        self._changed: dict[str, list[str]] = {}

    @property
    def version(self) -> str:
        """A hash of what was reordered so far; empty if nothing was."""
        return sha256(repr(self._changed).encode()).hexdigest()[:16] if self._changed else ""

    def __call__(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits in the learned order; an exact name and what has no score stay where they are."""
        words, name = query_stems(query), query.strip().lower()
        ordered: list[Hit] = []
        near: list[Hit] = []
        for hit in hits:
            is_fixed = hit.score <= 0 or hit.spec.name.lower() == name
            if near and (is_fixed or not _NEAR * near[0].score <= hit.score <= near[0].score):
                ordered += self._by_use(near, words)
                near = []
            (ordered if is_fixed else near).append(hit)
        ordered += self._by_use(near, words)
        names = [hit.spec.name for hit in ordered]
        if names != [hit.spec.name for hit in hits]:
            self._changed[query] = names
        return ordered

    def _by_use(self, near: list[Hit], words: Sequence[str]) -> list[Hit]:
        """Return hits by the shares of the words' uses that they have among them, if they have two thirds of the words.

        Tools that are not among them count for nothing: the caller may not know them.
        """
        shares = dict.fromkeys((hit.spec.name for hit in near), 0.0)
        times = dict.fromkeys(shares, 0)
        for word in words if len(near) > 1 else ():
            used = {name: count for name, count in self._uses.get(word, {}).items() if name in shares}
            for name, count in used.items():
                shares[name] += count / sum(used.values())
                times[name] += 1
        enough = {name for name, found in times.items() if 3 * found >= 2 * len(words)}
        return sorted(near, key=lambda hit: -shares[hit.spec.name] if hit.spec.name in enough else 0.0)
