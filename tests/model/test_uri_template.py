import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.model.uri_template import UriTemplate, check_uri, variables_of


@every_row(
    ("template", "uri", "expected"),
    [
        ("notes://{day}/text", "notes://monday/text", {"day": "monday"}),
        ("notes://{day}/text", "notes://a%20b%3Fc/text", {"day": "a b?c"}),
        ("notes://{day}", "notes://monday", {"day": "monday"}),
        ("{x}:y", "a:y", {"x": "a"}),
        ("f:///{dir}/{name}.{ending}", "f:///d/a.tar.gz", {"dir": "d", "name": "a", "ending": "tar.gz"}),
        ("f:///{name}.txt", "f:///a.txt.txt", {"name": "a.txt"}),
        ("f:///{+path}", "f:///a/b/c.txt", {"path": "a/b/c.txt"}),
        ("f:///{path*}", "f:///a/b?c#d", {"path": "a/b?c#d"}),
        ("f:///{+path}/text", "f:///a/text/text", {"path": "a/text"}),
        ("f://{host}/{+dir}/{name}", "f://h/a/b/c", {"host": "h", "dir": "a/b", "name": "c"}),
        ("f://{a}-{b}-{+rest}", "f://1-2-3-4", {"a": "1", "b": "2", "rest": "3-4"}),
        ("f://x?q={q}&n={n}", "f://x?q=a%26b&n=2", {"q": "a&b", "n": "2"}),
    ],
)
def test_a_uri_gives_the_variables_their_values(template: str, uri: str, expected: dict[str, str]) -> None:
    assert UriTemplate(template).match(uri) == expected


@every_row(
    ("template", "uri"),
    [
        ("notes://{day}/text", "notes://monday/picture"),
        ("notes://{day}/text", "other://monday/text"),
        ("notes://{day}/text", "notes://a/b/text"),
        ("notes://{day}/text", "notes:///text"),
        ("notes://{day}/text", "notes://text"),
        ("notes://{day}", "notes://a?b"),
        ("f:///{+path}", "f:///"),
        ("f://{a}-{b}", "f://12"),
        ("f://{+a}/x/{b}", "f://1/y/2"),
        ("f://{a}", "f://" + "a" * 9000),
    ],
)
def test_a_uri_that_does_not_fit_gives_nothing(template: str, uri: str) -> None:
    assert UriTemplate(template).match(uri) is None


@every_row(
    ("uri", "why"),
    [
        ("notes", "scheme"),
        ("notes:", "scheme"),
        ("no tes://x", "scheme"),
        ("notes://a b", "blanks"),
        ("notes://{x}{y}", "adjacent"),
        ("notes://{x}/{x}", "twice"),
        ("notes://{+x}/{y*}", "contain"),
        ("notes://{?x}", "not supported"),
        ("notes://{x,y}", "not supported"),
        ("notes://{x:3}", "not supported"),
        ("notes://{}", "not supported"),
        ("notes://{x", "partner"),
        ("notes://x}", "partner"),
        ("notes://" + "x" * 9000, "characters"),
    ],
)
def test_a_uri_that_cannot_be_served_is_refused_with_a_reason(uri: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_uri(uri)


@every_row("uri", ["notes://today", "file:///a/b.txt", "urn:isbn:1", "a+b.c-d:x", "notes://{day}/{+rest}"])
def test_a_uri_that_can_be_served_passes(uri: str) -> None:
    check_uri(uri)


def test_the_variables_are_listed_in_order() -> None:
    assert variables_of("f://{b}/{+a}/{c*}/{?no}") == ["b", "a", "c"]


_word = st.text(st.characters(codec="utf-8", exclude_characters="%/"), min_size=1)


@given(first=_word, second=_word)
def test_values_written_into_a_template_are_read_out_of_it(first: str, second: str) -> None:
    template = UriTemplate("x://{first}/mid/{second}.end")
    uri = f"x://{_quoted(first)}/mid/{_quoted(second)}.end"

    assert template.match(uri) == {"first": first, "second": second}


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


@given(st.text())
def test_every_uri_is_matched_quickly_and_without_failing(uri: str) -> None:
    found = UriTemplate("x://{a}-{b}-{+c}-{d}").match(f"x://{uri}")

    assert found is None or list(found) == ["a", "b", "c", "d"]


def test_matching_does_not_take_longer_and_longer() -> None:
    template = UriTemplate("x://{a}-{b}-{c}-{d}-{e}-{f}-{+g}-{h}-{i}-{j}z")

    assert template.match("x://" + "-" * 8000) is None


def test_an_encoded_separator_is_no_part_of_a_plain_variable() -> None:
    assert UriTemplate("notes://{name}").match("notes://..%2F..%2Fetc") is None
    assert UriTemplate("notes://{name}").match("notes://what%3F") == {"name": "what?"}
    assert UriTemplate("notes://{+name}").match("notes://a%2Fb") == {"name": "a/b"}
