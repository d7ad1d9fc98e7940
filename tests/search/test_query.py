import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.search.conftest import SPECS

from toolyard.search import SearchSettings, make_index
from toolyard.search import lexical as query
from toolyard.search.hits import Admits
from toolyard.search.lexical import Lexical, split_clauses
from toolyard.search.text import find_values, plain, read_words, split_word

LONG = 200_000
"""So many characters that work which grows with the square of a text would not come to an end."""
SHAPES = [
    "@",
    "x",
    "1",
    "a@",
    ".@",
    "[(",
    "\\",
    ".",
    "!x",
    "\n",
    "'",
    "'a'",
    "\"'`",
    "a://",
    "://",
    "aB",
    "A",
    "_",
    "\u0301\u0327",
    "\ufdfa",
    "\u0e01",
    "a,",
]
ENDS_A_CLAUSE = re.compile(r"[.;?!\n]+(?:\s|$)|,\s|\b(?:and|then|also|additionally|finally|plus)\b", re.IGNORECASE)


def test_a_question_of_several_clauses_is_split_and_one_of_one_is_not() -> None:
    assert split_clauses("list my bills, and then send a mail. Thanks") == ["list my bills, ", " send a mail. "]
    assert split_clauses("list my bills") == []


@example("a ,\n; ;")
@given(st.text(alphabet="ab .;?!\n,", max_size=24))
def test_clauses_end_where_sentences_do(text: str) -> None:
    ends = [found.end() for found in ENDS_A_CLAUSE.finditer(text)]
    parts = [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    clauses = [part for part in parts if len(part.split()) > 1][:12]

    assert split_clauses(text) == (clauses if len(clauses) > 1 else [])


@pytest.mark.parametrize("shape", SHAPES)
def test_however_long_a_text_is_reading_it_comes_to_an_end(shape: str) -> None:
    text = shape * (LONG // len(shape)) + "x"

    assert all(begin < end for begin, end in find_values(text))
    assert len(split_clauses(text)) <= 12
    assert len(plain(text)) >= len(text) // 2
    assert sum(len(split_word(word)) for word in read_words(text)) <= 2 * len(text)


def test_marks_in_any_order_are_made_plain_however_many_there_are() -> None:
    marks = "\u0301" * (LONG // 2) + "\u0327" * (LONG // 2)

    assert len(plain(marks)) == len(marks)


@given(st.text(alphabet="aeé\u0301\u0327 ﬁÅ", max_size=40))
def test_letters_that_only_look_different_are_the_same(text: str) -> None:
    assert plain(text) == unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize("strategy", ["lexical", "bm25"])
@pytest.mark.parametrize("shape", [*SHAPES, "weather in a city, "])
def test_no_more_words_of_a_query_are_looked_at_than_it_may_have(monkeypatch: pytest.MonkeyPatch, shape: str, strategy: str) -> None:
    looked: list[str] = []

    def watched(word: str) -> str:
        looked.append(word)
        return word

    monkeypatch.setattr(query, "stem", watched)
    index = make_index(SearchSettings(strategy=strategy))
    for spec in SPECS:
        index.add(spec)
    for size in (2000, 4000, 40_000):
        looked.clear()
        index.search((shape * size)[:size], allows=lambda _: True)
        assert len(looked) <= 4000
        assert all(len(word) <= 40 for word in looked)


def test_distinct_words_are_read_up_to_their_number() -> None:
    words = [chr(0x4E00 + number) for number in range(2000)]
    lexical = Lexical(SearchSettings())
    view = lexical.view(Admits(allows=lambda _: True))

    assert [one.text for one in lexical.read(" ".join(words), view)] == words[:64]
