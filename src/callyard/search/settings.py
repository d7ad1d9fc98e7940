"""Settings of search: the strategy, and the numbers of BM25."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from callyard.model.names import closest_name

__all__ = ["PREFIX", "SearchSettings", "read_environment"]

PREFIX: Final = "CALLYARD_SEARCH_"

_MOST: Final = 1_000_000
"""Upper limit of every number, so that no score overflows."""
_MOST_TIMES: Final = 100
"""Upper limit of how often a word counts."""


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which strategy ranks tools, and how."""

    strategy: str = "lexical"
    """`lexical`, `bm25`, `hybrid` or what an installed package offers; capitals do not matter."""

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

    learn: bool = True
    """Whether hits that fit about equally well are ordered by which tools were called after searches."""

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.strategy), str):
            raise ValueError("The setting 'strategy' of search must be a text.")  # noqa: TRY004 - as for every setting
        if not isinstance(cast("object", self.learn), bool):
            raise ValueError("The setting 'learn' of search must be true or false.")  # noqa: TRY004 - as for every setting
        for name in self.__struct_fields__[1:-1]:
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"The setting '{name}' of search must be a whole number.")  # noqa: TRY004 - as above
            if value < 0:
                raise ValueError(f"The setting '{name}' of search must not be negative.")
            most = _MOST_TIMES if name.endswith("_weight") else _MOST
            if value > most:
                raise ValueError(f"The setting '{name}' of search must be at most {most}.")


def read_environment(environment: Mapping[str, str], settings: SearchSettings | None = None) -> SearchSettings:
    """Return the settings, with those of the environment in their place and the strategy in lower case.

    Raises:
        ValueError: A variable with our prefix is no setting, or its value is invalid.
    """
    settings = settings or SearchSettings()
    types = {field.name: field.type for field in msgspec.structs.fields(SearchSettings)}
    values: dict[str, Any] = {"strategy": settings.strategy}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in types:
            meant = closest_name(name, types)
            hint = f" Did you mean '{PREFIX}{meant.upper()}'?" if meant else ""
            raise ValueError(f"The variable '{PREFIX}{name.upper()}' is no setting of search.{hint}")
        try:
            values[name] = msgspec.convert(text.strip(), types[name], strict=False)
        except msgspec.ValidationError as error:
            kind = "true or false" if types[name] is bool else "a whole number"
            raise ValueError(f"The variable '{PREFIX}{name.upper()}' must be {kind}.") from error
    return msgspec.structs.replace(settings, **{**values, "strategy": values["strategy"].strip().lower()})
