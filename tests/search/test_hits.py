import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row
from tests.search.conftest import make_spec

from callyard import Operation
from callyard.model.spec import ToolSpec
from callyard.search import Allows, Index, SearchSettings, make_index
from callyard.search.hits import closest_namespaces, exact_match
from callyard.search.lexical import Lexical
from callyard.search.postings import Weights

STRATEGIES = ["lexical", "bm25", "hybrid"]
WORDS = ["weather", "wether", "city", "bill", "sheep", "invoice", "send", "letter", "mail", "list", "town", "forecast"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
WEATHER = make_spec("get_weather", "Say what the weather will be in a city.", source="sky")
BILLS = make_spec("list_bills", "List the bills of a customer.", source="billing")


def filled(specs: list[ToolSpec], *, strategy: str = "lexical", **weights: Any) -> Index:
    index = make_index(SearchSettings(strategy=strategy), weights=Weights(**weights))
    for one in specs:
        index.add(one)
    return index


def is_open(spec: ToolSpec) -> bool:
    return "secret" not in spec.tags


def names(index: Index, query: str, rule: Allows = is_open) -> list[str]:
    return [hit.spec.name for hit in index.search(query, allows=rule).hits]


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    shown=st.lists(TEXTS, min_size=1, max_size=6),
    hidden=st.lists(TEXTS, max_size=6),
    query=TEXTS | st.sampled_from(["???", "mine_1"]),
)
def test_hidden_tools_change_no_answer(strategy: str, shown: list[str], hidden: list[str], query: str) -> None:
    specs = [make_spec(f"mine_{number}", text, source=f"own{number % 3}") for number, text in enumerate(shown)]
    others = [
        make_spec(f"other_{number}", text, source=f"own{number % 5}", tags=("secret",))
        for number, text in enumerate(hidden)
    ]
    with pytest.MonkeyPatch.context() as patch:  # small budgets, so that a few tools exceed them
        patch.setattr(Lexical, "POSTINGS", 4)
        patch.setattr(Lexical, "CANDIDATES", 2)
        alone = filled(specs, strategy=strategy).search(query, allows=is_open, limit=4)
        both = filled([*others, *specs], strategy=strategy).search(query, allows=is_open, limit=4)

    assert both == alone


def test_hidden_tools_change_no_answer_among_very_many() -> None:
    drawn = random.Random(6)  # noqa: S311 - the same words in every run
    specs = [
        make_spec(
            f"tool_{number:04}", " ".join(drawn.choices(WORDS, k=5)), tags=("secret",) if drawn.random() < 0.6 else ()
        )
        for number in range(2000)
    ]
    whole, alone = filled(specs), filled([one for one in specs if is_open(one)])

    for query in ("wether in a town", "send a letter, and then list bills", "sheeep", "forecast", "get"):
        assert whole.search(query, allows=is_open, limit=200) == alone.search(query, allows=is_open, limit=200)


def test_a_word_that_only_a_hidden_tool_holds_is_looked_for_under_another_spelling() -> None:
    index = filled([WEATHER, BILLS, make_spec("secret_wether", "wether sheep", tags=("secret",))])

    assert names(index, "wether") == ["get_weather"]
    assert names(index, "wether", lambda _: True) == ["secret_wether"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_rule_that_was_used_is_asked_about_tools_that_come_and_go(strategy: str) -> None:
    index = filled([WEATHER], strategy=strategy)
    assert names(index, "weather") == ["get_weather"]

    index.add(make_spec("old_weather", "The weather of the past.", tags=("secret",)))
    assert names(index, "weather") == ["get_weather"]
    index.add(make_spec("old_weather", "The weather of the past."))
    assert sorted(names(index, "weather")) == ["get_weather", "old_weather"]
    index.add(make_spec("get_weather", WEATHER.description, tags=("secret",)))
    assert names(index, "weather") == ["old_weather"]
    index.remove("old_weather")
    assert names(index, "weather") == []


@every_row("strategy", STRATEGIES)
@every_row("query", ["???", "how do i", ".*", "qqqq xxyyzz"])
def test_where_nothing_fits_the_largest_namespaces_that_are_visible_are_named(strategy: str, query: str) -> None:
    secret = [make_spec(f"secret_{number}", "A thing.", source="vault", tags=("secret",)) for number in range(2500)]
    index = filled(
        [*secret, BILLS, WEATHER, make_spec("night_sky", "Stars.", source="sky")], strategy=strategy, semantic_fit=1
    )

    assert set(index.search(query, allows=is_open).closest) == {"sky", "billing"}
    assert index.search(query, allows=is_open, namespace="billing").closest == ["billing"]
    assert index.search(query, allows=lambda _: False).closest == []


class Asked:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def allows(self, _: ToolSpec) -> bool:
        self.times += 1
        return False


@dataclass
class Unhashable(Asked):
    times: int = field(default=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", [Asked, Unhashable])
def test_a_rule_is_asked_again_only_when_the_tools_change(strategy: str, kind: type[Asked]) -> None:
    index, rule = filled([WEATHER, BILLS], strategy=strategy), kind()
    for _ in range(3):
        assert names(index, "weather", rule.allows) == []
    assert rule.times == 2

    index.add(make_spec("third", "The weather of the past."))
    index.remove("list_bills")
    assert names(index, "weather", rule.allows) == []
    assert rule.times == 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rules_of_the_same_text_that_know_something_else_are_not_mixed_up(strategy: str) -> None:
    index = filled([WEATHER, BILLS], strategy=strategy)
    for wanted, other in ((BILLS, WEATHER), (WEATHER, BILLS)):
        assert names(index, wanted.name, lambda spec, wanted=wanted: spec is wanted) == [wanted.name]
        assert other.name not in names(index, other.name, lambda spec, wanted=wanted: spec is wanted)

        def is_wanted(spec: ToolSpec) -> bool:
            return spec is wanted  # noqa: B023 - what it knows is what is tested

        assert names(index, wanted.name, is_wanted) == [wanted.name]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_the_last_rules_are_remembered(strategy: str) -> None:
    index, first, second = filled([WEATHER], strategy=strategy), Asked(), Asked()
    for rule in (first, second):
        names(index, "weather", rule.allows)
    for _ in range(31):
        names(index, "weather", second.allows)
        names(index, "weather", Asked().allows)
    for rule in (first, second):
        names(index, "weather", rule.allows)

    assert (first.times, second.times) == (2, 1)


def spec(name: str, source: str) -> ToolSpec:
    return ToolSpec(name=name, description="A tool.", input_schema={}, operation=Operation.QUERY, source=source)


def test_the_largest_namespaces_come_first_unless_others_nearly_fit() -> None:
    tools = [spec(f"tool_{number}_{more}", f"space_{number}") for number in range(7) for more in range(number + 1)]

    assert closest_namespaces((), tools) == ["space_6", "space_5", "space_4", "space_3", "space_2"]
    assert closest_namespaces((), tools[:1]) == ["space_0"]
    assert closest_namespaces((), [spec("own", "")]) == []
    assert closest_namespaces([(tools[1], 2.0), (tools[5], 1.0), (tools[6], 3.0)], tools) == [
        "space_3",
        "space_1",
        "space_2",
    ]


def test_names_that_differ_in_capitals_alone_are_different() -> None:
    specs = {one.name: one for one in (spec("gh__Get", "hidden"), spec("gh__get", "open"), spec("gh__GET", "open"))}

    def found(query: str, *sources: str) -> str | None:
        named = exact_match(specs, query, lambda one: one.source in sources)
        return named and named.name

    assert found("gh__get", "hidden", "open") == "gh__get"
    assert found(" gh__Get ", "hidden", "open") == "gh__Get"
    assert found("gh__Get", "open") == "gh__GET"
    del specs["gh__Get"], specs["gh__GET"]
    assert found("gh__Get", "hidden", "open") == "gh__get"
    del specs["gh__get"]
    assert found("gh__get", "hidden", "open") is None


@every_row(
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
    for name in (
        "get",
        "a_get",
        "get_it",
        "weather",
        "renew",
        "gather",
        "gh__get-New2",
        "gh__doItNow",
        "gh__Snow",
        "budget",
        "-",
    ):
        index.add(spec(name, "sky"))

    found = index.search(query, allows=lambda _: True)
    assert [hit.spec.name for hit in found.hits] == expected
    assert (found.total, found.closest) == (len(expected), [] if expected else ["sky"])
    assert index.search(query, allows=lambda one: one.name not in expected).hits == []
