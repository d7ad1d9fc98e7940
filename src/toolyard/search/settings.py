"""Settings of search: which strategy ranks, and every number it ranks by."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, cast

import msgspec

from toolyard.model.names import closest_name

__all__ = ["PREFIX", "SearchSettings", "read_environment"]

PREFIX: Final = "TOOLYARD_SEARCH_"
"""What the name of a setting has in front when it is an environment variable."""

_SHARES: Final = (
    "clause_share",
    "fit",
    "semantic_share",
    "semantic_clause_share",
    "semantic_fit",
    "name_evenness",
    "text_evenness",
    "parameter_evenness",
    "bm25_evenness",
)
_COUNTS: Final = ("candidates", "query_characters", "query_words")
_MOST: Final = 1_000_000
"""No number may be larger: what is computed with it would be no number any more."""
_TIMES: Final = 1000
"""No text is read more often than that."""


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which strategy ranks, and every number it ranks by."""

    strategy: str = "lexical"
    """`lexical`, `bm25`, `hybrid` or what an installed package offers; capitals do not matter."""

    name_weight: float = 3.0
    """What a word in a tool's name counts."""
    title_weight: float = 1.5
    """What a word in its title counts."""
    namespace_weight: float = 2.0
    """What a word in its namespace counts."""
    tag_weight: float = 2.0
    """What a word in one of its tags counts."""
    description_weight: float = 0.8
    """What a word in its description counts."""
    parameter_weight: float = 0.5
    """What a word in the name of a parameter counts."""
    parameter_text_weight: float = 0.3
    """What a word in the description of a parameter counts."""
    choice_weight: float = 0.2
    """What a word in a value that a parameter may take counts."""
    example_weight: float = 0.4
    """What a word in an example counts."""

    saturation: float = 1.2
    """How soon more of the same word adds little; 0 is at once."""
    name_evenness: float = 0.4
    """How much a word counts less in a long name or tag; 0 is not at all, 1 in proportion."""
    text_evenness: float = 0.5
    """The same for descriptions and examples."""
    parameter_evenness: float = 0.7
    """The same for parameters."""

    exact_bonus: float = 0.3
    """What is added for a word that stands in the tool just as it was asked, in parts of its weight."""
    pair_bonus: float = 0.3
    """What is added for two words that stand together in both, in parts of their weights."""
    name_bonus: float = 0.25
    """What is added, in parts of the score, if the question says everything that the name says."""
    clause_share: float = 0.3
    """How much the best clause of a question counts beside the whole of it."""
    value_weight: float = 0.3
    """What quoted words, addresses and numbers of a question count; they are values, seldom names."""
    neighbour_weight: float = 1.1
    """What a word of like meaning counts, in parts of its likeness."""
    neighbours: int = 12
    """Words of like meaning that are looked for beside a word of the question."""
    spelling_weight: float = 0.9
    """What a word counts that differs by a slip of the keyboard from one that is unknown; 0 is no tolerance."""
    fit: float = 0.17
    """Share of what a question is about that the best tool must answer; below it nothing fits."""

    candidates: int = 64
    """Tools that are looked at closely, at a time."""
    postings: int = 3000
    """Entries of the index that are read before the commonest words only order what was found."""
    query_characters: int = 4000
    """Length of a question; what is beyond is not read."""
    query_words: int = 64
    """Words of a question; what is beyond is not read."""

    bm25_name_boost: int = 3
    """How often the textbook strategy counts the name."""
    bm25_namespace_boost: int = 2
    """How often it counts the namespace."""
    bm25_tag_boost: int = 2
    """How often it counts the tags."""
    bm25_saturation: float = 1.5
    """Its k1."""
    bm25_evenness: float = 0.75
    """Its b."""
    bm25_tools: int = 0
    """Tools it takes in; 0 is all of them."""
    bm25_characters: int = 0
    """Characters of a tool that it reads; 0 is all of them."""

    semantic_share: float = 0.5
    """How much likeness of meaning counts beside the words, for the hybrid strategy."""
    semantic_clause_share: float = 0.5
    """How much the likest clause counts beside the whole question, for likeness of meaning."""
    semantic_fit: float = 0.3
    """How like in meaning the best tool must be, if the words do not fit; below it nothing fits."""

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
            most = _TIMES if name.endswith("_boost") else _MOST
            if value > most:
                raise ValueError(f"The setting '{name}' of search must be at most {most}.")
            if name in _COUNTS and value < 1:
                raise ValueError(f"The setting '{name}' of search must be at least 1.")


@cache
def _numbers() -> dict[str, type]:
    """Return the settings that are numbers, each with the kind of number it is."""
    return {field.name: field.type for field in msgspec.structs.fields(SearchSettings) if field.type is not str}


def read_environment(environment: Mapping[str, str], settings: SearchSettings | None = None) -> SearchSettings:
    """Return the settings with what the environment says in their place.

    Raises:
        ValueError: A variable of ours is no setting, or its value does not fit.
    """
    given = {name.removeprefix(PREFIX).lower(): text for name, text in environment.items() if name.startswith(PREFIX) and text}
    known = {field.name: field.type for field in msgspec.structs.fields(SearchSettings)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            meant = closest_name(name, known)
            hint = f" Did you mean '{PREFIX}{meant.upper()}'?" if meant else ""
            raise ValueError(f"The variable '{PREFIX}{name.upper()}' is no setting of search.{hint}")
        try:
            values[name] = msgspec.convert(text.strip(), known[name], strict=False)
        except msgspec.ValidationError as error:
            kind = "whole number" if known[name] is int else "number"
            raise ValueError(f"The variable '{PREFIX}{name.upper()}' must be a {kind}.") from error
    return msgspec.structs.replace(settings or SearchSettings(), **values)
