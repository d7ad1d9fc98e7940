from toolyard.search.query import split_clauses


def test_a_question_of_several_clauses_is_split_and_one_of_one_is_not() -> None:
    assert split_clauses("list my bills, and then send a mail. Thanks") == ["list my bills, ", " send a mail. "]
    assert split_clauses("list my bills") == []
