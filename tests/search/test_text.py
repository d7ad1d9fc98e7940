import re
import string
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from table_tests import every_row

from callyard import Operation, Yard, tool
from callyard.model.spec import ToolSpec
from callyard.search import SearchSettings
from callyard.search.stem import stem
from callyard.search.text import (
    ABBREVIATIONS,
    STOP_WORDS,
    Fields,
    fields_of,
    find_values,
    fold,
    load_thesaurus,
    read_words,
    split_word,
)

PAINT: dict[str, Any] = {"properties": {"lacquer": {}}}


def read(schema: dict[str, Any]) -> Fields:
    return fields_of(ToolSpec(name="one", description="", input_schema=schema, operation=Operation.QUERY))


def names(schema: dict[str, Any]) -> list[str]:
    return read(schema).parameters.split()


def choices(parameter: dict[str, Any], **definitions: Any) -> list[str]:
    return read({"properties": {"one": parameter}, "$defs": definitions}).choices.split()


@pytest.mark.parametrize("strategy", ["lexical", "bm25"])
async def test_fields_of_models_are_found(strategy: str) -> None:
    class Colour(Enum):
        CRIMSON = "crimson"
        TURQUOISE = "turquoise"

    class Paint(BaseModel):
        lacquer: str = Field(description="Name of the varnish.")
        tint: Colour

    class Mode(BaseModel):
        wobble: int

    @tool(operation="query")
    async def apply(job: Paint, others: list[Paint] | None = None) -> str:
        """Do the work."""
        return f"{job} {others}"

    @tool(operation="query")
    async def other(
        mode: Mode | None = None, fruit: tuple[Literal["pineapple"], ...] = (), sizes: dict[str, Paint] | None = None
    ) -> str:
        """Do the rest."""
        return f"{mode} {fruit} {sizes}"

    async with Yard(tools=[apply, other], search=SearchSettings(strategy=strategy)) as yard:

        async def found(query: str) -> list[str]:
            answer = await yard.call("search_tools", {"query": query})
            return sorted(hit["signature"].partition("(")[0] for hit in answer.data["hits"])

        assert await found("lacquer") == await found("varnish") == await found("turquoise") == ["apply", "other"]
        assert await found("wobble") == await found("pineapple") == ["other"]


@every_row(
    "schema",
    [
        {"$ref": "#/$defs/Paint"},
        {"allOf": [{"$ref": "#/$defs/Paint"}]},
        {"anyOf": [{"$ref": "#/$defs/Paint"}, {"type": "null"}]},
        {"properties": None, "oneOf": [{"allOf": [PAINT]}]},
    ],
)
def test_a_schema_that_is_all_branches_has_their_parameters(schema: dict[str, Any]) -> None:
    assert names(schema | {"$defs": {"Paint": PAINT}}) == ["lacquer"]


@every_row(
    "parameter",
    [
        {"$ref": "#/$defs/Paint"},
        {"$ref": "#/$defs/Again"},
        {"allOf": [{"$ref": "#/$defs/Paint"}]},
        {"items": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Paint"}]}},
        {"items": {"items": {"$ref": "#/$defs/Paint"}}},
        {"prefixItems": [{"type": "string"}, {"$ref": "#/$defs/Paint"}]},
        {"additionalProperties": {"$ref": "#/$defs/Paint"}},
    ],
)
def test_a_parameter_has_what_is_behind_references_branches_and_items(parameter: dict[str, Any]) -> None:
    definitions = {"Paint": PAINT, "Again": {"$ref": "#/$defs/Paint"}}

    assert names({"properties": {"job": parameter}, "$defs": definitions}) == ["job", "lacquer"]


@every_row(
    ("parameter", "values"),
    [
        ({"const": "gently"}, ["gently"]),
        ({"const": 3}, []),
        ({"items": {"enum": ["gently", "roughly"]}}, ["gently", "roughly"]),
        ({"oneOf": [{"const": "gently"}, {"const": "roughly"}]}, ["gently", "roughly"]),
        ({"anyOf": [{"enum": ["gently", 3]}, {"type": "null"}]}, ["gently"]),
        ({"$ref": "#/$defs/How"}, ["roughly"]),
        ({"enum": [f"value{number}" for number in range(40)]}, [f"value{number}" for number in range(32)]),
        ({"oneOf": [{"const": f"value{number}"} for number in range(40)]}, [f"value{number}" for number in range(32)]),
    ],
)
def test_the_values_that_a_parameter_may_take_are_read_wherever_they_stand(
    parameter: dict[str, Any], values: list[str]
) -> None:
    assert choices(parameter, How={"enum": ["roughly"]}) == values


def test_descriptions_beside_a_reference_and_behind_it_are_read() -> None:
    job = {"$ref": "#/$defs/Job", "description": "What is done."}
    schema = {"properties": {"job": job}, "$defs": {"Job": {"description": "A piece of work."}}}

    assert read(schema).parameter_texts == "What is done. A piece of work."


def test_a_definition_is_read_once_however_often_it_is_referred_to() -> None:
    node = {"properties": {"label": {}, "children": {"items": {"$ref": "#/$defs/Node"}}}}

    assert names(
        {"properties": {"tree": {"$ref": "#/$defs/Node"}, "hedge": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}
    ) == [
        "tree",
        "hedge",
        "label",
        "children",
    ]


def test_a_definition_is_read_where_it_is_least_deep() -> None:
    """One that stands so deep that its own parameters are not read is read where it stands higher up."""
    deep = {"properties": {"b": {"properties": {"c": {"properties": {"d": {"$ref": "#/$defs/Low"}}}}}}}
    schema = {"properties": {"a": deep, "e": {"$ref": "#/$defs/Low"}}, "$defs": {"Low": PAINT}}

    assert names(schema) == ["a", "e", "b", "lacquer", "c", "d"]


def test_objects_in_objects_are_read_so_deep_and_no_deeper() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return {"properties": {f"level{depth}": {"allOf": [nested(depth + 1)]}}} if depth < 9 else {}

    assert names(nested(0)) == ["level0", "level1", "level2", "level3"]


@every_row(
    "parameter",
    [
        {"$ref": "#/$defs/Nowhere"},
        {"$ref": "#/properties/one"},
        {"$ref": "#"},
        {"$ref": "https://example.com/schema"},
        {"$ref": 3},
        {"$ref": "#/$defs/Odd"},
        {"anyOf": "text", "items": [], "prefixItems": {}, "additionalProperties": False},
        {"allOf": [None, True, 3, {"allOf": {"properties": 3}}]},
    ],
)
def test_a_schema_that_is_not_a_correct_one_is_read_as_far_as_it_can_be(parameter: dict[str, Any]) -> None:
    assert names({"properties": {"one": parameter}, "$defs": {"Odd": True}}) == ["one"]


def test_references_that_double_at_every_step_come_to_an_end() -> None:
    definitions: dict[str, Any] = {
        f"D{number}": {"anyOf": [{"$ref": f"#/$defs/D{number + 1}"} for _ in range(2)]} for number in range(20)
    }
    definitions["D20"] = PAINT

    assert names({"properties": {"job": {"$ref": "#/$defs/D0"}}, "$defs": definitions}) == ["job", "lacquer"]


def test_a_parameter_with_very_many_branches_is_read_only_in_part() -> None:
    many: list[dict[str, Any]] = [PAINT, *({"type": "null"} for _ in range(100)), {"properties": {"varnish": {}}}]

    assert names({"properties": {"job": {"anyOf": many}, "other": {"anyOf": many[-1:]}}}) == [
        "job",
        "other",
        "lacquer",
        "varnish",
    ]


MEANT = re.compile(r"\w+://\S+|\S+@\S+\.\S+|\"[^\"\n]{1,200}\"|(?<!\w)'[^'\n]{1,200}'(?!\w)|`[^`\n]{1,200}`|\S*\d\S*")
"""What a value is, said briefly; to look for it in this way takes a time that grows with the cube of a text."""


def values(text: str) -> list[str]:
    return [text[begin:end] for begin, end in find_values(text)]


@every_row(
    ("text", "found"),
    [
        ("send 'two words' to ada@example.org", ["'two words'", "ada@example.org"]),
        ("open https://example.org/a now", ["https://example.org/a"]),
        ("the 3rd of (12) items", ["3rd", "(12)"]),
        ("don't and won't", []),
        ('say "yes"loudly2 or `no`', ['"yes"', "loudly2", "`no`"]),
        ("see(https://x) or 'it'", ["https://x)", "'it'"]),
        ("a@b and @b.c and a@.c", []),
        ("", []),
    ],
)
def test_addresses_quoted_words_and_numbers_are_values(text: str, found: list[str]) -> None:
    assert values(text) == found


@given(st.text(alphabet="ab1@.:/ \n\"'`_é", max_size=24) | st.text(max_size=40))
def test_values_are_what_they_mean_wherever_they_stand(text: str) -> None:
    assert list(find_values(text)) == [found.span() for found in MEANT.finditer(text)]


@every_row(
    ("forms", "shared"),
    [
        (("connect", "connected", "connecting", "connection", "connections"), "connect"),
        (("invoice", "invoices", "invoicing"), "invoic"),
        (("query", "queries"), "queri"),
        (("running", "runs", "run"), "run"),
        (("hoping", "hope"), "hope"),
        (("agreed", "agree"), "agre"),
        (("organization", "organizations"), "organiz"),
        (("biologist", "biology"), "biolog"),
        (("skies", "sky"), "sky"),
        (("ties", "tie"), "tie"),
        (("classes", "class"), "class"),
        (("relational", "relate"), "relat"),
        (("happily", "happy"), "happili"),
        (("playing", "plays", "play"), "play"),
        (("add", "added"), "add"),
        (("formative",), "format"),
        (("adoption", "adopt"), "adopt"),
        (("controlling", "control", "controll"), "control"),
        (("electrical", "electric"), "electr"),
        (("exceeds",), "exceed"),
        (("shed",), "shed"),
        (("created", "creating", "create"), "creat"),
        (("demonstrative", "demonstrate"), "demonstr"),
        (("champion", "champions"), "champion"),
        (("sensibly", "sensible"), "sensibl"),
        (("analogy", "analogies"), "analog"),
        (("ability", "abilities"), "abil"),
        (("hopefulness", "hopeful"), "hope"),
        (("decisive", "decision"), "decis"),
        (("generously", "generous"), "generous"),
        (("proceeding", "proceeds"), "proceed"),
        (("feed", "feeds"), "feed"),
        (("swiftly", "swift"), "swift"),
    ],
)
def test_the_forms_of_a_word_share_a_stem(forms: tuple[str, ...], shared: str) -> None:
    assert {stem(form) for form in forms} <= {shared, "happi"}


@every_row("word", ["", "a", "gas", "größe", "v2", "日本", "interval", "gap", "yes", "us"])
def test_a_short_or_foreign_word_stays_as_it_is(word: str) -> None:
    assert stem(word) == word


@every_row(
    ("written", "words"),
    [
        ("weather", ["weather"]),
        ("getWeather", ["get", "weather", "getweather"]),
        ("HTTPServer", ["http", "server", "httpserver"]),
        ("ipv4Address", ["ipv", "address", "ipv4address"]),
        ("JSON", ["json"]),
        ("v2", ["v2"]),
        ("x" * 60, ["x" * 40]),
    ],
)
def test_an_identifier_is_its_pieces_and_the_whole(written: str, words: list[str]) -> None:
    assert split_word(written) == words


@every_row(
    ("written", "words"),
    [
        ("größe", ["größe"]),
        ("Straße", ["straße"]),
        ("Réserver", ["réserver"]),
        ("RÉSERVER", ["réserver"]),
        ("réserverHôtel", ["réserver", "hôtel", "réserverhôtel"]),
        ("ÉtatURL", ["état", "url", "étaturl"]),
        ("URLÉtat", ["url", "état", "urlétat"]),
        ("écran4Larges", ["écran", "larges", "écran4larges"]),
        ("найтиБилет", ["найти", "билет", "найтибилет"]),
        ("ΕύρεσηΟδού", ["εύρεση", "οδού", "εύρεσηοδού"]),
        ("日本語", ["日本語"]),
        ("サーバー", ["サーバー"]),
        ("API日本", ["api", "日本", "api日本"]),
        ("日本GetPlan", ["日本", "get", "plan", "日本getplan"]),
        ("get天気", ["get", "天気", "get天気"]),
        ("\u0661\u0662سعر", ["\u0661\u0662", "سعر", "\u0661\u0662سعر"]),
        ("Hawai\u02bbi", ["hawai\u02bbi"]),
        ("O\u02bbahu", ["o\u02bbahu"]),
        ("é" * 60, ["é" * 40]),
    ],
)
def test_letters_beyond_ascii_have_capitals_and_small_ones_too(written: str, words: list[str]) -> None:
    assert split_word(written) == words


@given(st.text(alphabet=string.ascii_letters + string.digits, min_size=1, max_size=12))
def test_a_letter_beyond_ascii_changes_nothing_about_the_pieces_of_the_rest(written: str) -> None:
    beyond = written.replace("e", "é").replace("E", "É")
    back = [word.replace("é", "e") for word in split_word(beyond)]

    assert back == split_word(written)


def test_a_very_long_identifier_is_its_pieces_only() -> None:
    assert split_word("listAllOpenInvoicesOfCustomer") == ["list", "all", "open", "invoices", "of", "customer"]


def test_letters_that_only_look_different_are_the_same() -> None:
    assert fold("ｗｅａｔｈｅｒ") == "weather"  # noqa: RUF001 - wide letters are the point


def test_words_that_say_nothing_are_few_and_say_nothing() -> None:
    assert {"please", "the", "want"} <= STOP_WORDS
    assert not {"list", "create", "delete", "search", "file"} & STOP_WORDS


def test_short_forms_work_both_ways() -> None:
    assert "repository" in ABBREVIATIONS["repo"]
    assert "repo" in ABBREVIATIONS["repository"]


def test_the_thesaurus_knows_words_of_like_meaning() -> None:
    near = dict(load_thesaurus().neighbours(stem("movie"), 12))

    assert near["film"] > 0.5
    assert load_thesaurus().neighbours("xqzzy", 12) == []
    assert stem("movie") in load_thesaurus()


def test_a_joined_word_comes_apart_into_common_ones() -> None:
    assert load_thesaurus().split("getcountriesbycontinent") == ["get", "countries", "by", "continent"]
    assert load_thesaurus().split("keyvault") == ["key", "vault"]
    assert load_thesaurus().split("xqzzyqqxw") == []
    assert load_thesaurus().split("weather") == []


@every_row("mark", [*sorted({*map(chr, range(128))} - {*string.ascii_letters, *string.digits}), "\u2003", "\u201c"])
def test_everything_but_letters_and_digits_parts_words(mark: str) -> None:
    assert read_words(f"{mark}get{mark}{mark}v2Issue{mark}") == ["get", "v2Issue"]


def test_letters_of_every_script_make_words() -> None:
    assert read_words("r\u00e9sum\u00e9_\u65e5\u672c, get") == ["r\u00e9sum\u00e9", "\u65e5\u672c", "get"]
