"""Near names: which known name was meant."""

from callyard.model.names import closest_name, did_you_mean


def test_a_name_that_is_nearly_one_is_recognised() -> None:
    assert closest_name("limt", ["offset", "limit"]) == "limit"
    assert closest_name("xyz", ["offset", "limit"]) is None
    assert closest_name("limt", []) is None
    assert closest_name("limt", ["limit"], cutoff=0.95) is None


def test_neither_case_nor_the_order_of_words_matters() -> None:
    assert closest_name("LIMIT", ["offset", "limit"]) == "limit"
    assert closest_name("orders_list", ["list_orders", "list_users"]) == "list_orders"


def test_names_without_latin_letters_are_not_alike_for_that() -> None:
    assert closest_name("été", ["日本", "___"]) is None


def test_a_very_long_name_is_not_compared() -> None:
    assert closest_name("limit" * 100, ["limit" * 100]) is None


def test_a_suggestion_is_a_question_or_nothing() -> None:
    assert did_you_mean("limt", ["limit"]) == " Did you mean 'limit'?"
    assert did_you_mean("xyz", ["limit"]) == ""
