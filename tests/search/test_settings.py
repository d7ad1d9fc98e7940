from typing import Any

import msgspec
import pytest
from table_tests import every_row

from callyard.search import SearchSettings, read_environment


def test_the_environment_sets_what_it_names() -> None:
    given = {
        "CALLYARD_SEARCH_STRATEGY": " BM25 ",
        "CALLYARD_SEARCH_BM25_NAME_WEIGHT": "4",
        "CALLYARD_SEARCH_BM25_QUERY_WORDS": "9",
        "PATH": "/bin",
    }

    settings = read_environment(given, SearchSettings(bm25_tag_weight=7))
    assert settings.learn
    assert not read_environment({"CALLYARD_SEARCH_LEARN": "false"}).learn

    assert (settings.strategy, settings.bm25_name_weight, settings.bm25_query_words) == ("bm25", 4, 9)
    assert settings.bm25_tag_weight == 7
    assert read_environment({}) == SearchSettings()


@every_row(
    ("given", "said"),
    [
        ({"CALLYARD_SEARCH_BM25_NAME_WAIT": "1"}, "CALLYARD_SEARCH_BM25_NAME_WAIT"),
        ({"CALLYARD_SEARCH_BM25_NAME_WEIGHT": "much"}, "must be a whole number"),
        ({"CALLYARD_SEARCH_BM25_NAME_WEIGHT": "-1"}, "not be negative"),
        ({"CALLYARD_SEARCH_BM25_NAME_WEIGHT": "nan"}, "must be a whole number"),
        ({"CALLYARD_SEARCH_BM25_NAME_WEIGHT": "1e308"}, "must be a whole number"),
        ({"CALLYARD_SEARCH_BM25_QUERY_WORDS": "1.5"}, "must be a whole number"),
        ({"CALLYARD_SEARCH_BM25_QUERY_WORDS": "1000001"}, "at most 1000000"),
        ({"CALLYARD_SEARCH_LEARN": "perhaps"}, "must be true or false"),
        ({"CALLYARD_SEARCH_FIT": "0.5"}, "is no setting of search"),
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


@every_row("name", COUNTS)
@every_row("value", [2.5, 2.0, True, "2", None, -1, -0.5, float("nan"), float("inf"), [1]])
def test_a_count_is_a_whole_number(name: str, value: Any) -> None:
    assert getattr(made(name, 1), name) == 1
    with pytest.raises(ValueError, match=name):
        made(name, value)


@every_row("value", [None, 5, b"lexical", True])
def test_a_strategy_is_a_text(value: Any) -> None:
    with pytest.raises(ValueError, match="strategy"):
        SearchSettings(strategy=value)


@every_row("value", [None, 1, "true"])
def test_whether_to_learn_is_true_or_false(value: Any) -> None:
    with pytest.raises(ValueError, match="learn"):
        made("learn", value)
