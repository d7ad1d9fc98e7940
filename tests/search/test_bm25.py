from toolyard import Operation
from toolyard.model.spec import ToolSpec
from toolyard.search import SearchSettings, make_index
from toolyard.search.hits import Found


def spec(name: str, description: str) -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema={}, operation=Operation.QUERY)


def found(specs: list[ToolSpec], query: str, settings: SearchSettings) -> Found:
    index = make_index(settings)
    for one in specs:
        index.add(one)
    index.prepare()
    return index.search(query, allows=lambda _: True)


def test_a_name_counts_as_often_as_its_boost_says() -> None:
    tools = [spec("apple", "A pear and a plum and a fig."), spec("fruit", "An apple, apple.")]

    boosted = found(tools, "apple", SearchSettings(strategy="bm25", bm25_name_boost=9))
    level = found(tools, "apple", SearchSettings(strategy="bm25", bm25_name_boost=0))
    assert [hit.spec.name for hit in boosted.hits] == ["apple", "fruit"]
    assert [hit.spec.name for hit in level.hits] == ["fruit"]
    assert boosted.hits[0].why == "'apple' in its text"


def test_the_caps_hold() -> None:
    tools = [spec("one", "apple pie"), spec("two", "apple pie")]

    assert [hit.spec.name for hit in found(tools, "pie", SearchSettings(strategy="bm25", bm25_tools=1)).hits] == ["one"]
    assert found(tools, "pie", SearchSettings(strategy="bm25", bm25_characters=6)).hits == []


def test_a_tool_that_was_left_out_is_taken_when_there_is_room() -> None:
    index = make_index(SearchSettings(strategy="bm25", bm25_tools=2))
    for name in ("one", "two", "three", "four"):
        index.add(spec(name, "apple pie"))

    def names() -> list[str]:
        return sorted(hit.spec.name for hit in index.search("pie", allows=lambda _: True).hits)

    assert names() == ["one", "two"]
    index.add(spec("one", "apple pie again"))
    index.remove("three")
    assert names() == ["one", "two"]
    index.remove("two")
    assert names() == ["four", "one"]
    index.remove("one")
    assert names() == ["four"]
