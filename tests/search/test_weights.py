from importlib.util import find_spec
from typing import Any, cast

import pytest
from table_tests import every_row

from callyard import Operation
from callyard.model.spec import Example, ToolSpec
from callyard.search import Found, SearchSettings, make_index
from callyard.search.postings import Weights
from callyard.search.semantic import NEEDED

TOOL = ToolSpec(
    name="harp_violin",
    title="A trumpet",
    source="flute",
    tags=("cello",),
    description="Plays the organ.",
    input_schema={"properties": {"drum": {"description": "Which bassoon.", "enum": ["tuba"]}}},
    examples=(Example(title="Play the banjo", arguments={}),),
    operation=Operation.QUERY,
)
WORDS = {
    "name": "violin",
    "namespace": "flute",
    "tags": "cello",
    "description": "organ",
}
OTHERS = ("trumpet", "drum", "bassoon", "tuba", "banjo")


def search(query: str, *specs: ToolSpec, strategy: str = "lexical", **given: Any) -> Found:
    weights: dict[str, Any] = {"neighbours": 0, "fit": 0} | given
    index = make_index(SearchSettings(strategy=strategy), weights=Weights(**weights))
    for one in specs:
        index.add(one)
    return index.search(query, allows=lambda _: True)


def spec(name: str, description: str) -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema={}, operation=Operation.QUERY)


@every_row("field", WORDS)
def test_a_field_that_counts_nothing_is_not_searched(field: str) -> None:
    for word in (*WORDS.values(), *OTHERS):
        found = search(word, TOOL, **cast("dict[str, Any]", {field: 0}))
        assert [hit.spec.name for hit in found.hits] == ([] if word == WORDS[field] else ["harp_violin"]), word
        assert all(hit.score > 0 for hit in found.hits)


@every_row("word", [*WORDS.values(), *OTHERS])
def test_every_field_is_searched_by_the_textbook_strategy(word: str) -> None:
    assert [hit.spec.name for hit in search(word, TOOL, strategy="bm25").hits] == ["harp_violin"]


def test_a_field_that_counts_nothing_is_no_reason() -> None:
    tool = spec("organ_player", "Plays the organ.")

    assert search("organ", tool).hits[0].why == "'organ' in name"
    assert search("organ", tool, name=0).hits[0].why == "'organ' in description"


@pytest.mark.skipif(
    any(find_spec(package) is None for package in NEEDED), reason="The extra 'semantic' is not installed."
)
def test_a_field_that_counts_nothing_is_no_word_of_the_hybrid_strategy() -> None:
    hit = search("organ", spec("player", "Plays the organ."), strategy="hybrid", description=0).hits[0]

    assert hit.why == "like in meaning"


def test_without_neighbours_a_word_of_like_meaning_finds_nothing() -> None:
    tools = (spec("weather", "Say it."), spec("place", "Say the city."))

    assert [hit.spec.name for hit in search("weather of a town", *tools, neighbours=12).hits] == ["weather", "place"]
    assert [hit.spec.name for hit in search("weather of a town", *tools, neighbours=0).hits] == ["weather"]
