import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard.search.stem import stem
from toolyard.search.text import SHORT_FORMS, STOP_WORDS, load_thesaurus, plain, read_words, split_word


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("word", ["", "a", "gas", "größe", "v2", "日本", "interval", "gap", "yes", "us"])
def test_what_is_short_or_foreign_stays_as_it_is(word: str) -> None:
    assert stem(word) == word


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
    assert plain("ｗｅａｔｈｅｒ") == "weather"  # noqa: RUF001 - wide letters are the point


def test_words_that_say_nothing_are_few_and_say_nothing() -> None:
    assert {"please", "the", "want"} <= STOP_WORDS
    assert not {"list", "create", "delete", "search", "file"} & STOP_WORDS


def test_short_forms_work_both_ways() -> None:
    assert "repository" in SHORT_FORMS["repo"]
    assert "repo" in SHORT_FORMS["repository"]


def test_the_thesaurus_knows_words_of_like_meaning() -> None:
    near = dict(load_thesaurus().near(stem("movie"), 12))

    assert near["film"] > 0.5
    assert load_thesaurus().near("xqzzy", 12) == []
    assert stem("movie") in load_thesaurus()


def test_a_joined_word_comes_apart_into_common_ones() -> None:
    assert load_thesaurus().parts("getcountriesbycontinent") == ["get", "countries", "by", "continent"]
    assert load_thesaurus().parts("keyvault") == ["key", "vault"]
    assert load_thesaurus().parts("xqzzyqqxw") == []
    assert load_thesaurus().parts("weather") == []


@pytest.mark.parametrize("mark", [*sorted({*map(chr, range(128))} - {*string.ascii_letters, *string.digits}), "\u2003", "\u201c"])
def test_everything_but_letters_and_digits_parts_words(mark: str) -> None:
    assert read_words(f"{mark}get{mark}{mark}v2Issue{mark}") == ["get", "v2Issue"]


def test_letters_of_every_script_make_words() -> None:
    assert read_words("r\u00e9sum\u00e9_\u65e5\u672c, get") == ["r\u00e9sum\u00e9", "\u65e5\u672c", "get"]
