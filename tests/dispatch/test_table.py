from hypothesis import given
from hypothesis import strategies as st

from toolyard.dispatch.table import NameIndex

KNOWN = ["orders__list", "orders__get", "orders__delete", "list_files", "read_file", "weather", "a", "x1"]


def known(*names: str) -> NameIndex:
    made = NameIndex()
    for name in names or KNOWN:
        made.add(name)
    return made


def test_a_name_that_is_mistyped_is_near_the_one_that_was_meant() -> None:
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
        assert known().similar(wrong)[0] == meant, wrong


def test_a_name_like_no_other_is_near_none() -> None:
    assert known().similar("zebra") == []
    assert known().similar("") == []
    assert known().similar("___") == []
    assert NameIndex().similar("weather") == []


def test_the_nearest_comes_first_and_ties_go_by_name() -> None:
    assert known("tool_b", "tool_a", "tool_ab").similar("tool_") == ["tool_a", "tool_b", "tool_ab"]


def test_the_answer_is_short_however_many_are_near() -> None:
    made = known(*(f"tool_{number}" for number in range(2000)))

    assert len(made.similar("tool")) == 20


def test_the_answer_does_not_depend_on_the_order_in_which_names_came() -> None:
    assert known(*KNOWN).similar("order__lst") == known(*reversed(KNOWN)).similar("order__lst")


def test_a_name_that_is_forgotten_is_near_nothing() -> None:
    made = known("weather", "weathers")
    made.remove("weather")

    assert made.similar("weather") == ["weathers"]


def test_when_all_names_are_forgotten_nothing_is_left() -> None:
    made = known()
    for name in KNOWN:
        made.remove(name)

    assert vars(made) == vars(NameIndex())


def test_a_name_longer_than_any_tool_may_have_is_not_even_looked_at() -> None:
    assert known().similar("weather" * 100) == []


@given(st.text())
def test_looking_never_fails_and_finds_only_what_is_known(name: str) -> None:
    assert set(known().similar(name)) <= set(KNOWN)
