import pytest

from callyard import Operation
from callyard.model.spec import ToolSpec
from callyard.search import SearchSettings, make_index
from callyard.search.hits import Found
from callyard.search.settings import read_environment


def spec(name: str, description: str) -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema={}, operation=Operation.QUERY)


def found(specs: list[ToolSpec], query: str, settings: SearchSettings) -> Found:
    index = make_index(settings)
    for one in specs:
        index.add(one)
    index.prepare()
    return index.search(query, allows=lambda _: True)


def test_the_words_of_a_name_count_more_than_those_of_a_description() -> None:
    tools = [spec("apple", "A pear and a plum and a fig."), spec("fruit", "An apple, a pear and a plum.")]

    hits = found(tools, "apple", SearchSettings(strategy="bm25")).hits
    assert [hit.spec.name for hit in hits] == ["apple", "fruit"]
    assert hits[0].why == "'apple' in its text"


def test_a_tool_is_replaced_and_removed() -> None:
    index = make_index(SearchSettings(strategy="bm25"))
    for name in ("one", "two", "one"):
        index.add(spec(name, "apple pie"))
    index.add(spec("two", "plum cake"))

    def names(query: str) -> list[str]:
        return sorted(hit.spec.name for hit in index.search(query, allows=lambda _: True).hits)

    assert (names("pie"), names("cake")) == (["one"], ["two"])
    index.remove("one")
    index.remove("one")
    assert (names("pie"), names("cake")) == ([], ["two"])


def test_the_weights_and_caps_are_settings_and_variables() -> None:
    tools = [spec("apple", "A pear."), spec("fruit", "A pear, an apple, an apple and an apple.")]

    def names(query: str = "apple", **variables: str) -> list[str]:
        environment = {f"CALLYARD_SEARCH_{name.upper()}": value for name, value in variables.items()}
        settings = read_environment({"CALLYARD_SEARCH_STRATEGY": "bm25", **environment})
        return [hit.spec.name for hit in found(tools, query, settings).hits]

    assert names() == ["apple", "fruit"]
    assert names(bm25_name_weight="0") == ["fruit"]
    assert names(bm25_description_weight="0") == ["apple"]
    assert names(bm25_characters="8") == ["apple"]
    assert names("zebra apple", bm25_query_words="1") == []


def test_a_word_cannot_count_without_end() -> None:
    with pytest.raises(ValueError, match="bm25_name_weight"):
        SearchSettings(bm25_name_weight=101)
