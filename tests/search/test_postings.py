import pytest
from tests.search.conftest import make_spec

from callyard.search import make_index
from callyard.search.postings import WEIGHTS, Postings
from callyard.search.text import load_thesaurus


def spelled(text: str, *, identifiers: bool = False) -> list[str]:
    words = Postings(WEIGHTS, load_thesaurus())
    return [words.spelled[number] for number in words.read(text, identifiers=identifiers)]


def test_a_text_is_read_in_its_order_without_words_that_say_nothing() -> None:
    assert spelled("Get the newest readMe of a project.") == ["newest", "read", "readme", "project"]


def test_a_text_that_says_nothing_has_no_words() -> None:
    assert spelled("to be or not") == []


def test_joined_words_are_taken_apart_in_identifiers_alone() -> None:
    assert spelled("sendmessagetouser", identifiers=True) == ["send", "message", "user", "sendmessagetouser"]
    assert spelled("sendmessagetouser") == ["sendmessagetouser"]


def test_identifiers_that_hold_the_same_words_are_read_alike() -> None:
    words = Postings(WEIGHTS, load_thesaurus())

    assert words.read("openIssue") == words.read("OpenIssue")


def test_words_that_no_tool_holds_any_more_are_forgotten() -> None:
    words = Postings(WEIGHTS, load_thesaurus())
    words.add(make_spec("send_mail", "Send a letter."))
    for number in range(3000):
        words.add(make_spec("changing", " ".join(f"aa{number}x{more}" for more in range(5))))

    assert len(words.words) + len(words.term_of) + len(words.terms) < 10_000
    assert [words.spelled[number] for number in words.entries[words.numbers["send_mail"]].words] == [
        "send",
        "mail",
        "send",
        "letter",
    ]


def test_an_index_whose_tools_changed_often_answers_like_a_new_one() -> None:
    index, fresh = make_index(), make_index()
    for number in range(600):
        index.add(make_spec("changing", " ".join(f"old{number}item{more}" for more in range(5))))
        index.prepare()
    for spec in (
        make_spec("changing", "Send old2item4 letters."),
        make_spec("other", "A letter."),
        make_spec("third", "Old item."),
    ):
        index.add(spec)
        fresh.add(spec)

    for query in ("old2item4", "letters", "old item", "old599item1"):
        assert index.search(query, allows=lambda _: True) == fresh.search(query, allows=lambda _: True)


def test_joined_words_are_read_alike_after_it_was_forgotten_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.search.text._CACHED", 10)
    words = Postings(WEIGHTS, load_thesaurus())
    for number in range(50):
        words.add(make_spec(f"tool_{number}", f"readThe{'abcdefghij'[number % 10] * 3}Book{'klmno'[number % 5] * 3}"))

    assert [words.spelled[number] for number in words.read("readTheAaaBookKkk")] == spelled("readTheAaaBookKkk")
