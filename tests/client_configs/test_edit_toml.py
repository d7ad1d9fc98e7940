"""TOML as text: tables come and go, and the rest stays as it was written."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.client_configs.edit import EditError, add_table, format_table, remove_table

WRITTEN = """\
# Ours.
target = "x"  # and why

[upstreams.git]
command = "npx"
args = [
  "a",
  ["upstreams.git"],
]
text = '''
[upstreams.git.env]
'''
more = \"\"\"
[upstreams.git]\\\"\"\"\"

[upstreams.git.env]
"A B" = "c"

# About the other.
[upstreams."git-other"]
command = "y"

[[auth.api_keys]]
name = "z"
"""

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.one_of(
    TEXTS,
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.lists(TEXTS, max_size=3),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
)


def test_a_table_is_added_at_the_end_and_nothing_else_changes() -> None:
    text = add_table(WRITTEN, ["upstreams", "new"], {"command": "a", "args": ["b"], "env": {"C": "d"}})

    assert (
        text.removeprefix(WRITTEN) == '\n[upstreams.new]\ncommand = "a"\nargs = ["b"]\n\n[upstreams.new.env]\nC = "d"\n'
    )


def test_a_table_is_removed_with_its_inner_tables_and_nothing_else() -> None:
    text = remove_table(WRITTEN, ["upstreams", "git"])

    assert text == WRITTEN[: WRITTEN.index("[upstreams.git]")] + WRITTEN[WRITTEN.index("# About") :]


def test_the_last_table_is_removed_with_the_blank_lines_before_it() -> None:
    assert remove_table("a = 1\n\n[b.c]\nd = 2\n", ["b", "c"]) == "a = 1\n"
    assert remove_table("a = 1\n\n[b.c]\nd = 2\n# end", ["b", "c"]) == "a = 1\n"


@every_row("text", ["", "a = 1\n", "a = 1\r\nb = 2\r\n", "[upstreams]\n", "[upstreams.x]\ncommand = 'y'\n", WRITTEN])
def test_an_added_table_can_be_removed_again(text: str) -> None:
    added = add_table(text, ["upstreams", "new"], {"command": "a", "env": {"B": "c"}})

    assert remove_table(added, ["upstreams", "new"]) == text
    assert ("\r\n" in added) is ("\r\n" in text)
    assert added.count("\r") in {0, added.count("\n")}


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_a_formatted_table_parses_to_the_same_table(table: dict[str, Any]) -> None:
    assert tomllib.loads(format_table(["a", "b c"], table)) == {"a": {"b c": table}}


def test_tables_inside_lists_and_numbers_are_written_in_one_line() -> None:
    table = {"reshape": {"a": {"fixed": {"b": [1, {"c": 2.5}]}}}}

    assert format_table(["x"], table) == "[x]\nreshape = {a = {fixed = {b = [1, {c = 2.5}]}}}"


@pytest.mark.parametrize(
    "text", ["upstreams = {}\n", 'upstreams = {a = {command = "x"}}\n', "[upstreams.new]\na = 1\n"]
)
def test_a_table_that_cannot_be_added_is_refused(text: str) -> None:
    with pytest.raises(EditError):
        add_table(text, ["upstreams", "new"], {"command": "x"})


@pytest.mark.parametrize(
    "text",
    ['upstreams = {a = {command = "x"}}\n', '[upstreams]\na.command = "x"\n', '[upstreams]\na = {command = "x"}\n'],
)
def test_a_table_without_a_heading_is_not_removed(text: str) -> None:
    with pytest.raises(EditError):
        remove_table(text, ["upstreams", "a"])
