import random
import re
import string
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from table_tests import every_row
from tests.search.conftest import SPECS

from callyard import Operation
from callyard.model.spec import Example, ToolSpec
from callyard.search import Found, Index, SearchSettings, lexical, make_index
from callyard.search.hits import Filter
from callyard.search.lexical import Lexical, split_clauses
from callyard.search.postings import WEIGHTS, Weights
from callyard.search.text import find_values, fold, read_words, split_word

STRATEGIES = ["lexical", "bm25"]


def spec(name: str, description: str = "A tool.", **given: Any) -> ToolSpec:
    properties = given.pop("properties", {})
    operation = given.pop("operation", Operation.QUERY)
    return ToolSpec(
        name=name, description=description, input_schema={"properties": properties}, operation=operation, **given
    )


def filled(specs: list[ToolSpec], *, strategy: str = "lexical", **weights: Any) -> Index:
    index = make_index(SearchSettings(strategy=strategy), weights=Weights(**weights))
    for one in specs:
        index.add(one)
    return index


def allow_all(_: ToolSpec) -> bool:
    return True


def names(found: Found) -> list[str]:
    return [hit.spec.name for hit in found.hits]


def ask(index: Index, query: str, allows: Callable[[ToolSpec], bool] = allow_all, **given: Any) -> list[str]:
    return names(index.search(query, allows=allows, **given))


@every_row(
    ("query", "name"),
    [
        ("what is the weather in Paris", "get_weather"),
        ("weathr in paris", "get_weather"),
        ("getweather", "get_weather"),
        ("create an invoice", "create_invoice"),
        ("show me all the invoices", "list_invoices"),
        ("search code", "github__searchCode"),
        ("rust source", "github__searchCode"),
        ("open issue in repo", "github__create_issue"),
        ("issues of the repositories", "github__list_issues"),
        ("GITHUB__LIST_ISSUES", "github__list_issues"),
        ("an email to Ada", "send_mail"),
        ("erase a bill", "delete_invoice"),
    ],
)
def test_the_tool_that_is_meant_comes_first(specs: list[ToolSpec], query: str, name: str) -> None:
    assert ask(filled(specs), query)[0] == name


def test_a_hit_says_why_it_was_found(specs: list[ToolSpec]) -> None:
    found = filled(specs).search("weather of a town", allows=allow_all)

    assert found.hits[0].why == "'weather' in name; 'town' as 'city' in description"


def test_parameters_choices_tags_titles_aliases_and_examples_are_read() -> None:
    index = filled(
        [
            spec("one", properties={"outer": {"properties": {"postcode": {}}}}),
            spec(
                "two",
                properties={
                    "many": {"items": {"properties": {"altitude": {"description": "In metres above the ocean."}}}}
                },
            ),
            spec("three", tags=("accounting",)),
            spec("four", title="Blueprints"),
            spec("five", aliases=("crimson_old",)),
            spec("six", examples=(Example(title="Find a giraffe", arguments={"zoo": "Nairobi", "cages": 3}),)),
            spec(
                "seven", properties={"kind": {"enum": ["violin", 3]}, "wrong": "no schema", "text": {"description": 5}}
            ),
        ]
    )

    for query, name in [
        ("postcode", "one"),
        ("altitude", "two"),
        ("metres", "two"),
        ("accounting", "three"),
        ("blueprints", "four"),
        ("crimson", "five"),
        ("giraffe", "six"),
        ("Nairobi", "six"),
        ("violin", "seven"),
    ]:
        assert ask(index, query) == [name], query


def test_joined_names_are_taken_apart_and_joined_words_found() -> None:
    index = filled([spec("getcountriesbycontinent"), spec("cosmos_db_list"), spec("other")])

    assert ask(index, "countries of a continent")[0] == "getcountriesbycontinent"
    assert ask(index, "cosmosdb")[0] == "cosmos_db_list"


def test_a_word_is_not_found_inside_another_because_of_a_letter_beyond_ascii() -> None:
    index = filled([spec("hotel", "Réserver une chambre."), spec("other")])

    assert ask(index, "server") == []
    assert ask(index, "réserver") == ask(index, "RÉSERVER") == ["hotel"]


def test_a_word_that_slipped_twice_is_found_if_it_is_long() -> None:
    index = filled([spec("administration"), spec("other")])

    assert ask(index, "adminsitraton") == ["administration"]
    assert ask(index, "xx") == []


def test_without_tolerance_a_slip_finds_nothing() -> None:
    assert ask(filled([spec("administration")], spelling=0), "admnistration") == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_empty_query_lists_everything_by_name(specs: list[ToolSpec], strategy: str) -> None:
    found = filled(specs, strategy=strategy).search(" ", allows=allow_all, limit=100)

    assert names(found) == sorted(one.name for one in specs)
    assert found.total == len(specs)
    assert not found.more


def test_nothing_fits_and_the_closest_namespaces_are_named(specs: list[ToolSpec]) -> None:
    index = filled(specs)

    nothing = index.search("qqqq xxyyzz", allows=allow_all)
    assert nothing == Found(hits=[], total=0, closest=["billing", "github", "post"])
    assert index.search("qqqq xxyyzz", allows=lambda one: one.source == "post").closest == ["post"]
    weak = filled(specs, fit=0.5).search("sourdough for the internet", allows=allow_all)
    assert (weak.hits, weak.closest) == ([], ["post"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_denied_tool_never_shows_and_no_page_is_short(strategy: str) -> None:
    many = [
        spec(f"report_{number:04}", "Makes a report.", tags=("odd",) if number % 2 else ()) for number in range(1000)
    ]
    index = filled(many, strategy=strategy)
    odd = [one.name for one in many if one.tags]

    seen: list[str] = []
    for offset in range(0, 600, 7):
        found = index.search("report", allows=lambda one: bool(one.tags), offset=offset, limit=7)
        assert found.more == (offset + 7 < len(odd))
        seen += names(found)
    assert seen == odd
    assert ask(index, "report", lambda _: False) == []
    assert index.search("report", allows=lambda _: False).closest == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_search_can_be_narrowed(specs: list[ToolSpec], strategy: str) -> None:
    index = filled(specs, strategy=strategy)

    assert set(ask(index, "list create", namespace="github")) == {"github__list_issues", "github__create_issue"}
    assert ask(index, "bill", operation=Operation.DESTROY) == ["delete_invoice"]
    assert ask(index, "bill", operation=Operation.DESTROY, namespace="github") == []


def test_the_commonest_words_still_find_what_the_budget_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lexical, "POSTINGS", 1)
    many = [
        spec(f"sheet_{number:03}", "Shows a sheet.", source="mine" if number == 7 else "rest") for number in range(200)
    ]
    index = filled([*many, spec("purple", "A colour.")], fit=0)

    assert ask(index, "purple sheet")[0] == "purple"
    assert ask(index, "purple sheet", namespace="mine") == ["sheet_007"]
    assert len(ask(index, "purple sheet", limit=300)) == 201


def test_of_a_common_word_the_tools_that_are_named_by_it_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lexical, "POSTINGS", 2)
    monkeypatch.setattr(Lexical, "CANDIDATES", 2)
    many = [spec(f"tool_{number:03}", "Shows a sheet of the parrot.") for number in range(200)]
    index = filled([*many, spec("sheet", "Shows it."), spec("parrot", "A bird.")], fit=0)

    assert set(ask(index, "parrot sheet", limit=2)) == {"sheet", "parrot"}


def test_words_that_come_when_many_tools_are_known_order_these_first_and_then_find_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Lexical, "CANDIDATES", 1)
    rare = [spec(f"purple_{number:02}", "A parrot." if number == 7 else "A dog.") for number in range(30)]
    common = [spec(f"cage_{number:02}", "For a parrot.") for number in range(60)]
    index = filled([*rare, *common], fit=0, neighbours=0)

    found = ask(index, "purple parrot", limit=200)
    assert found[0] == "purple_07"
    assert sorted(found) == sorted(one.name for one in (*rare, *common))
    assert all(name.startswith("purple") for name in found[:30])


def test_pages_follow_each_other_without_gaps_and_scores_fall() -> None:
    shuffled = random.Random(4)  # noqa: S311 - the same words in every run
    words = ["alpha", "bravo", "charlie", "delta", "echo"]
    many = [spec(f"tool_{number:03}", " ".join(shuffled.sample(words, 3))) for number in range(300)]
    index = filled(many)

    whole = index.search("alpha bravo, then echo delta", allows=allow_all, limit=400)
    pages = [
        index.search("alpha bravo, then echo delta", allows=allow_all, offset=offset, limit=9).hits
        for offset in range(0, 400, 9)
    ]
    assert [hit for hits in pages for hit in hits] == whole.hits
    assert len(set(names(whole))) == len(whole.hits) == whole.total
    assert [hit.score for hit in whole.hits] == sorted((hit.score for hit in whole.hits), reverse=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_order_does_not_depend_on_how_tools_came(specs: list[ToolSpec], strategy: str) -> None:
    one, other = filled(specs, strategy=strategy), filled(specs[::-1], strategy=strategy)
    for extra in (
        spec("github__gone", "Gone issues."),
        msgspec.structs.replace(specs[0], description="Something else."),
    ):
        other.add(extra)
    other.search("issues", allows=allow_all)
    other.remove("github__gone")
    other.remove("never_there")
    other.add(specs[0])

    for query in ("issues of a customer", "weather", "list", "bill"):
        assert one.search(query, allows=allow_all) == other.search(query, allows=allow_all)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tool_that_is_removed_is_not_found(strategy: str) -> None:
    index = filled([spec("weather"), spec("climate")], strategy=strategy)
    index.remove("weather")
    assert ask(index, "weather") in ([], ["climate"])
    assert ask(index, "") == ["climate"]
    index.remove("climate")
    assert index.search("weather", allows=allow_all) == Found(hits=[], total=0)
    index.add(spec("weather"))
    assert ask(index, "weather") == ["weather"]


_INDEX = filled([spec("get_weather", "Say the weather."), spec("list_files", "List files in a folder.", source="disk")])


@given(st.text(max_size=300) | st.text(alphabet="(){}[]*+?\\|^$.'\"\x00\n ", max_size=300))
def test_no_query_makes_it_fail(query: str) -> None:
    found = _INDEX.search(query, allows=allow_all, offset=-3, limit=-1)

    assert found.hits == []
    assert _INDEX.search(query, allows=allow_all) == _INDEX.search(query, allows=allow_all)


def test_a_huge_query_is_read_only_in_part() -> None:
    letters = random.Random(5)  # noqa: S311 - the same words in every run
    nonsense = " ".join("".join(letters.choices(string.ascii_lowercase, k=9)) for _ in range(20_000))

    assert ask(_INDEX, "weather " + nonsense) in (["get_weather"], [])
    assert ask(_INDEX, "weather " * 100_000) == ["get_weather"]


def test_many_tools_share_no_more_memory_of_words_than_is_kept() -> None:
    index = filled(
        [spec(f"tool_{number}", " ".join(f"word{number}x{more}" for more in range(150))) for number in range(150)]
    )

    assert ask(index, "word149x149")[0] == "tool_149"
    assert ask(index, "word0x0")[0] == "tool_0"


def test_a_schema_with_very_many_parameters_is_read_only_in_part() -> None:
    index = filled(
        [spec("many", properties={f"field_{'abcdefghij'[number // 10]}{number}": {} for number in range(100)})]
    )

    assert ask(index, "a1") == ["many"]
    assert ask(index, "j99") == []


def test_quoted_words_count_less_than_what_is_asked() -> None:
    index = filled([spec("translate_text"), spec("weather_report")])

    assert ask(index, "translate 'weather report'")[0] == "translate_text"


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


@every_row("shape", SHAPES)
def test_however_long_a_text_is_reading_it_comes_to_an_end(shape: str) -> None:
    text = shape * (LONG // len(shape)) + "x"

    assert all(begin < end for begin, end in find_values(text))
    assert len(split_clauses(text)) <= 12
    assert len(fold(text)) >= len(text) // 2
    assert sum(len(split_word(word)) for word in read_words(text)) <= 2 * len(text)


def test_marks_in_any_order_are_made_plain_however_many_there_are() -> None:
    marks = "\u0301" * (LONG // 2) + "\u0327" * (LONG // 2)

    assert len(fold(marks)) == len(marks)


@given(st.text(alphabet="aeé\u0301\u0327 ﬁÅ", max_size=40))
def test_letters_that_only_look_different_are_the_same(text: str) -> None:
    assert fold(text) == unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize("strategy", ["lexical", "bm25"])
@pytest.mark.parametrize("shape", [*SHAPES, "weather in a city, "])
def test_no_more_words_of_a_query_are_looked_at_than_it_may_have(
    monkeypatch: pytest.MonkeyPatch, shape: str, strategy: str
) -> None:
    looked: list[str] = []

    def watched(word: str) -> str:
        looked.append(word)
        return word

    monkeypatch.setattr(lexical, "stem", watched)
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
    lexical = Lexical(WEIGHTS)
    view = lexical.view(Filter(allows=lambda _: True))

    assert [one.text for one in lexical.read(" ".join(words), view)] == words[:64]
