from importlib.util import find_spec
from typing import Any

import pytest

from toolyard import Operation
from toolyard.model.spec import Example, ToolSpec
from toolyard.search import Found, SearchSettings, make_index
from toolyard.search.semantic import NEEDED

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
    "name_weight": "violin",
    "title_weight": "trumpet",
    "namespace_weight": "flute",
    "tag_weight": "cello",
    "description_weight": "organ",
    "parameter_weight": "drum",
    "parameter_text_weight": "bassoon",
    "choice_weight": "tuba",
    "example_weight": "banjo",
}
BOOSTS = {"bm25_name_boost": "violin", "bm25_namespace_boost": "flute", "bm25_tag_boost": "cello"}


def search(query: str, *specs: ToolSpec, **given: Any) -> Found:
    settings: dict[str, Any] = {"neighbours": 0, "fit": 0} | given
    index = make_index(SearchSettings(**settings))
    for one in specs:
        index.add(one)
    return index.search(query, allows=lambda _: True)


def spec(name: str, description: str) -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema={}, operation=Operation.QUERY)


@pytest.mark.parametrize("setting", WORDS)
def test_a_field_that_counts_nothing_is_not_searched(setting: str) -> None:
    for other, word in WORDS.items():
        found = search(word, TOOL, **{setting: 0})
        assert [hit.spec.name for hit in found.hits] == ([] if other == setting else ["harp_violin"]), word
        assert all(hit.score > 0 for hit in found.hits)


@pytest.mark.parametrize("setting", BOOSTS)
def test_a_field_that_the_textbook_strategy_counts_no_times_is_not_searched(setting: str) -> None:
    for other, word in BOOSTS.items():
        found = search(word, TOOL, strategy="bm25", **{setting: 0})
        assert [hit.spec.name for hit in found.hits] == ([] if other == setting else ["harp_violin"]), word


def test_a_field_that_counts_nothing_is_no_reason() -> None:
    tool = spec("organ_player", "Plays the organ.")

    assert search("organ", tool).hits[0].why == "'organ' in name"
    assert search("organ", tool, name_weight=0).hits[0].why == "'organ' in description"


@pytest.mark.skipif(any(find_spec(package) is None for package in NEEDED), reason="The extra 'semantic' is not installed.")
def test_a_field_that_counts_nothing_is_no_word_of_the_hybrid_strategy() -> None:
    hit = search("organ", spec("player", "Plays the organ."), strategy="hybrid", description_weight=0).hits[0]

    assert hit.why == "like in meaning"


@pytest.mark.parametrize(
    ("query", "settings"),
    [
        ("weather of a town", {"neighbours": 12, "neighbour_weight": 0}),
        ("weather of 'a city'", {"value_weight": 0}),
    ],
)
def test_a_word_of_the_question_that_counts_nothing_finds_nothing(query: str, settings: dict[str, float]) -> None:
    found = search(query, spec("weather", "Say it."), spec("place", "Say the city."), **settings)

    assert [hit.spec.name for hit in found.hits] == ["weather"]
