import pytest

from toolyard.search import SearchSettings, read_environment


def test_the_environment_sets_what_it_names() -> None:
    given = {"TOOLYARD_SEARCH_STRATEGY": " BM25 ", "TOOLYARD_SEARCH_NAME_WEIGHT": "4.5", "TOOLYARD_SEARCH_CANDIDATES": "9", "PATH": "/bin"}

    settings = read_environment(given, SearchSettings(tag_weight=7))

    assert (settings.strategy, settings.name_weight, settings.candidates, settings.tag_weight) == ("bm25", 4.5, 9, 7)
    assert read_environment({}) == SearchSettings()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"TOOLYARD_SEARCH_NAME_WAIT": "1"}, "TOOLYARD_SEARCH_NAME_WAIT"),
        ({"TOOLYARD_SEARCH_NAME_WEIGHT": "much"}, "must be a number"),
        ({"TOOLYARD_SEARCH_NAME_WEIGHT": "-1"}, "not negative"),
        ({"TOOLYARD_SEARCH_NAME_WEIGHT": "nan"}, "not negative"),
        ({"TOOLYARD_SEARCH_FIT": "2"}, "between 0 and 1"),
        ({"TOOLYARD_SEARCH_CANDIDATES": "0"}, "at least 1"),
    ],
)
def test_a_wrong_setting_fails_at_once(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_environment(given)
