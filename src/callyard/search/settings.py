"""Settings of search: the strategy, and the few weights that depend on how tools are described."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, cast

import msgspec

from callyard.model.names import closest_name

__all__ = ["PREFIX", "SearchSettings", "read_environment"]

PREFIX: Final = "CALLYARD_SEARCH_"
"""Prefix of the environment variables of search."""

_SHARES: Final = ("fit", "semantic_share", "semantic_fit")
_MOST: Final = 1_000_000
"""Upper limit of every number, so that no score overflows."""
_MOST_TIMES: Final = 100
"""Upper limit of how often a word counts."""


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which strategy ranks tools, and how."""

    strategy: str = "lexical"
    """`lexical`, `bm25`, `hybrid` or what an installed package offers; capitals do not matter."""

    name_weight: float = 3.0
    """Weight of a word in a tool's name; 0 does not search names."""
    namespace_weight: float = 2.0
    """Weight of a word in its namespace; 0 does not search namespaces."""
    tag_weight: float = 2.0
    """Weight of a word in one of its tags; 0 does not search tags."""
    description_weight: float = 0.8
    """Weight of a word in its description; 0 does not search descriptions."""

    bm25_name_weight: int = 3
    """BM25: how often each word of a tool's name counts; 0 does not search names."""
    bm25_namespace_weight: int = 2
    """BM25: how often each word of its namespace counts."""
    bm25_tag_weight: int = 2
    """BM25: how often each word of its tags counts."""
    bm25_description_weight: int = 1
    """BM25: how often each word of its description, parameters and examples counts."""
    bm25_characters: int = 0
    """BM25: characters of a description with parameters and examples that are read; 0 reads all."""
    bm25_query_words: int = 64
    """BM25: words of a question that are searched."""

    neighbours: int = 12
    """Words of like meaning that are searched with each word of a question; 0 uses no thesaurus."""
    spelling_weight: float = 0.9
    """Weight of a word that differs by a typing error from an unknown one; 0 corrects no spelling."""
    fit: float = 0.17
    """Share of the question that the best tool must answer; below it nothing fits."""
    semantic_share: float = 0.5
    """Share of likeness of meaning in a score of the hybrid strategy; the rest is the words."""
    semantic_fit: float = 0.3
    """Likeness of meaning from which a tool fits although its words do not."""

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.strategy), str):
            raise ValueError("The setting 'strategy' of search must be a text.")  # noqa: TRY004 - as for every setting
        msgspec.structs.force_setattr(self, "strategy", self.strategy.strip().lower())
        for name, kind in _numbers().items():
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"The setting '{name}' of search must be a number that is not negative.")
            if kind is int and not isinstance(value, int):
                raise ValueError(f"The setting '{name}' of search must be a whole number.")
            if name in _SHARES and value > 1:
                raise ValueError(f"The setting '{name}' of search must be between 0 and 1.")
            most = _MOST_TIMES if name.startswith("bm25_") and name.endswith("_weight") else _MOST
            if value > most:
                raise ValueError(f"The setting '{name}' of search must be at most {most}.")


@cache
def _numbers() -> dict[str, type]:
    """Return the settings that are numbers, each with its type."""
    return {field.name: field.type for field in msgspec.structs.fields(SearchSettings) if field.type is not str}


def read_environment(environment: Mapping[str, str], settings: SearchSettings | None = None) -> SearchSettings:
    """Return the settings, with those of the environment in their place.

    Raises:
        ValueError: A variable with our prefix is no setting, or its value is invalid.
    """
    texts = {name.removeprefix(PREFIX).lower(): text for name, text in environment.items() if name.startswith(PREFIX) and text}
    types = {field.name: field.type for field in msgspec.structs.fields(SearchSettings)}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in types:
            meant = closest_name(name, types)
            hint = f" Did you mean '{PREFIX}{meant.upper()}'?" if meant else ""
            raise ValueError(f"The variable '{PREFIX}{name.upper()}' is no setting of search.{hint}")
        try:
            values[name] = msgspec.convert(text.strip(), types[name], strict=False)
        except msgspec.ValidationError as error:
            kind = "whole number" if types[name] is int else "number"
            raise ValueError(f"The variable '{PREFIX}{name.upper()}' must be a {kind}.") from error
    return msgspec.structs.replace(settings or SearchSettings(), **values)
