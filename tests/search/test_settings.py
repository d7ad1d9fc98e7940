from typing import Any

import msgspec
import pytest

from callyard.search import SearchSettings, read_environment


def test_the_environment_sets_what_it_names() -> None:
    given = {"CALLYARD_SEARCH_STRATEGY": " BM25 ", "CALLYARD_SEARCH_NAME_WEIGHT": "4.5", "CALLYARD_SEARCH_NEIGHBOURS": "9", "PATH": "/bin"}

    settings = read_environment(given, SearchSettings(tag_weight=7))

    assert (settings.strategy, settings.name_weight, settings.neighbours, settings.tag_weight) == ("bm25", 4.5, 9, 7)
    assert read_environment({}) == SearchSettings()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"CALLYARD_SEARCH_NAME_WAIT": "1"}, "CALLYARD_SEARCH_NAME_WAIT"),
        ({"CALLYARD_SEARCH_NAME_WEIGHT": "much"}, "must be a number"),
        ({"CALLYARD_SEARCH_NAME_WEIGHT": "-1"}, "not negative"),
        ({"CALLYARD_SEARCH_NAME_WEIGHT": "nan"}, "not negative"),
        ({"CALLYARD_SEARCH_FIT": "2"}, "between 0 and 1"),
        ({"CALLYARD_SEARCH_NEIGHBOURS": "1.5"}, "must be a whole number"),
        ({"CALLYARD_SEARCH_NEIGHBOURS": "1000001"}, "at most 1000000"),
        ({"CALLYARD_SEARCH_NAME_WEIGHT": "1e308"}, "at most 1000000"),
        ({"CALLYARD_SEARCH_BM25_NAME_BOOST": "3"}, "is no setting of search"),
    ],
)
def test_a_wrong_setting_fails_at_once(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_environment(given)


def made(name: str, value: Any) -> SearchSettings:
    given: dict[str, Any] = {name: value}
    return SearchSettings(**given)


COUNTS = [field.name for field in msgspec.structs.fields(SearchSettings) if field.type is int]
NUMBERS = [field.name for field in msgspec.structs.fields(SearchSettings) if field.type is float]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [2.5, 2.0, True, "2", None, -1, float("inf")])
def test_a_count_is_a_whole_number(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        made(name, value)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, "2", None, -0.5, float("nan"), float("inf"), [1]])
def test_a_weight_is_a_number(name: str, value: Any) -> None:
    assert getattr(made(name, 1), name) == 1
    with pytest.raises(ValueError, match=name):
        made(name, value)


@pytest.mark.parametrize("value", [None, 5, b"lexical", True])
def test_a_strategy_is_a_text(value: Any) -> None:
    with pytest.raises(ValueError, match="strategy"):
        SearchSettings(strategy=value)
