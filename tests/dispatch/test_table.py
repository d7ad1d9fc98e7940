from hypothesis import given
from hypothesis import strategies as st

from callyard.dispatch.table import NameIndex

NAMES = ["orders__list", "orders__get", "orders__delete", "list_files", "read_file", "weather", "a", "x1"]


def index_of(*names: str) -> NameIndex:
    index = NameIndex()
    for name in names or NAMES:
        index.add(name)
    return index


def test_a_misspelt_name_finds_the_one_that_was_meant() -> None:
    for wrong, meant in [
        ("weathr", "weather"),
        ("wether", "weather"),
        ("qeather", "weather"),
        ("Weather", "weather"),
        ("orders_list", "orders__list"),
        ("order__list", "orders__list"),
        ("list_orders", "orders__list"),
        ("orders.list", "orders__list"),
        ("file_read", "read_file"),
        ("readFile", "read_file"),
    ]:
        assert index_of().similar(wrong)[0] == meant, wrong


def test_a_name_that_resembles_none_finds_none() -> None:
    assert index_of().similar("zebra") == []
    assert index_of().similar("") == []
    assert index_of().similar("___") == []
    assert NameIndex().similar("weather") == []


def test_the_most_similar_comes_first_and_ties_are_sorted_by_name() -> None:
    assert index_of("tool_b", "tool_a", "tool_ab").similar("tool_") == ["tool_a", "tool_b", "tool_ab"]


def test_the_number_of_similar_names_is_limited() -> None:
    index = index_of(*(f"tool_{number}" for number in range(2000)))

    assert len(index.similar("tool")) == 20


def test_the_result_does_not_depend_on_the_order_of_insertion() -> None:
    assert index_of(*NAMES).similar("order__lst") == index_of(*reversed(NAMES)).similar("order__lst")


def test_a_removed_name_is_never_found() -> None:
    index = index_of("weather", "weathers")
    index.remove("weather")

    assert index.similar("weather") == ["weathers"]


def test_an_index_without_names_uses_no_memory() -> None:
    index = index_of()
    for name in NAMES:
        index.remove(name)

    assert vars(index) == vars(NameIndex())


def test_a_name_longer_than_any_tool_name_finds_nothing() -> None:
    assert index_of().similar("weather" * 100) == []


@given(st.text())
def test_a_search_never_fails_and_finds_only_indexed_names(name: str) -> None:
    assert set(index_of().similar(name)) <= set(NAMES)
