import pytest

from toolyard import Operation
from toolyard.model.spec import ToolSpec
from toolyard.search import make_index
from toolyard.search.hits import Listing, closest


def spec(name: str, source: str) -> ToolSpec:
    return ToolSpec(name=name, description="A tool.", input_schema={}, operation=Operation.QUERY, source=source)


def test_the_largest_namespaces_come_first_unless_others_nearly_fit() -> None:
    tools = [spec(f"tool_{number}_{more}", f"space_{number}") for number in range(7) for more in range(number + 1)]

    assert closest((), tools) == ["space_6", "space_5", "space_4", "space_3", "space_2"]
    assert closest((), tools[:1]) == ["space_0"]
    assert closest((), [spec("own", "")]) == []
    assert closest([(tools[1], 2.0), (tools[5], 1.0), (tools[6], 3.0)], tools) == ["space_3", "space_1", "space_2"]


def test_names_that_differ_in_capitals_alone_are_told_apart() -> None:
    listing = Listing()
    for one in (spec("gh__Get", "hidden"), spec("gh__get", "open"), spec("gh__GET", "open")):
        listing.add(one)

    def found(query: str, *sources: str) -> str | None:
        named = listing.named(query, lambda one: one.source in sources)
        return named and named.name

    assert found("gh__get", "hidden", "open") == "gh__get"
    assert found(" gh__Get ", "hidden", "open") == "gh__Get"
    assert found("gh__Get", "open") == "gh__GET"
    listing.remove("gh__Get")
    listing.remove("gh__GET")
    assert found("gh__Get", "hidden", "open") == "gh__get"
    listing.remove("gh__get")
    assert found("gh__get", "hidden", "open") is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("get", ["get", "a_get", "get_it", "gh__get-New2"]),
        ("get it", ["get_it"]),
        ("GET_IT", ["get_it"]),
        ("new", ["gh__get-New2"]),
        ("now", ["gh__doItNow"]),
        ("a", ["a_get"]),
        ("the", []),
        ("what is it", []),
        ("???", []),
        ("_", []),
        ("-", ["-"]),
    ],
)
def test_words_that_say_nothing_are_looked_for_among_the_words_of_names(query: str, expected: list[str]) -> None:
    index = make_index()
    for name in ("get", "a_get", "get_it", "weather", "renew", "gather", "gh__get-New2", "gh__doItNow", "gh__Snow", "budget", "-"):
        index.add(spec(name, "sky"))

    found = index.search(query, allows=lambda _: True)
    assert [hit.spec.name for hit in found.hits] == expected
    assert (found.total, found.closest) == (len(expected), [] if expected else ["sky"])
    assert index.search(query, allows=lambda one: one.name not in expected).hits == []
