import gc

import pytest
from tests.search.conftest import make_spec

from toolyard.search import make_index, postings
from toolyard.search.fields import Fields, fields_of
from toolyard.search.postings import Postings
from toolyard.search.thesaurus import load_thesaurus
from toolyard.search_settings import SearchSettings
from toolyard.spec import ToolSpec


def spelled(text: str, *, identifiers: bool = False) -> list[str]:
    words = Postings(SearchSettings(), load_thesaurus())
    return [words.spelled[number] for number in words.read(text, identifiers=identifiers)]


def test_a_text_is_read_in_its_order_without_words_that_say_nothing() -> None:
    assert spelled("Get the newest readMe of a project.") == ["newest", "read", "readme", "project"]


def test_a_text_that_says_nothing_has_no_words() -> None:
    assert spelled("to be or not") == []


def test_joined_words_are_taken_apart_in_identifiers_alone() -> None:
    assert spelled("sendmessagetouser", identifiers=True) == ["send", "message", "user", "sendmessagetouser"]
    assert spelled("sendmessagetouser") == ["sendmessagetouser"]


def test_identifiers_that_hold_the_same_words_are_read_alike() -> None:
    words = Postings(SearchSettings(), load_thesaurus())

    assert words.read("openIssue") == words.read("OpenIssue")


@pytest.mark.parametrize(("many", "searching"), [(15, True), (16, False)])
def test_no_garbage_is_searched_for_while_many_tools_are_read(monkeypatch: pytest.MonkeyPatch, many: int, *, searching: bool) -> None:
    seen: set[bool] = set()

    def watched(spec: ToolSpec) -> Fields:
        seen.add(gc.isenabled())
        return fields_of(spec)

    monkeypatch.setattr(postings, "fields_of", watched)
    gc.unfreeze()  # a server that ran in this process froze what was there
    index = make_index()
    for number in range(many):
        index.add(make_spec(f"tool_{number}"))
    index.prepare()

    assert seen == {searching}
    assert gc.isenabled()
