"""The terminal: what fits in a column."""

from typing import Any

import pytest
from table_tests import every_row

from callyard.cli.demo import outline
from callyard.cli.terminal import Painted, Terminal, cut, width_of


@every_row(
    ("text", "width", "shown"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("ab cd", 4, "ab…"),
        ("漢字漢字", 5, "漢字…"),
        ("漢字漢字", 4, "漢…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
        ("e\u0301a", 2, "e\u0301a"),
    ],
)
def test_text_is_cut_by_columns(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert width_of(shown) <= width


def test_a_line_keeps_its_breaks_and_shows_its_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().write("a\tb\r\nc\rd", Painted("\x07\u202e", "bold"))

    assert capsys.readouterr().out == "a\tb\nc\\rd\\x07\\u202e\n"


def test_a_notice_begins_below_a_text_that_has_no_line_break(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.say_text("half")
    terminal.say("failed")
    terminal.say_text("whole\n")
    terminal.say("done")

    assert capsys.readouterr().err == "half\nfailed\nwhole\ndone\n"


def test_progress_is_a_line_of_its_own_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.show_progress("1/2")
    terminal.clear()

    assert capsys.readouterr().err == "1/2\n"


@pytest.mark.parametrize(("given", "columns"), [("120", 120), ("0", 80), ("many", 80)])
def test_the_width_can_be_given(given: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", given)

    assert Terminal().width == columns


def lines(value: Any, width: int) -> list[str]:
    return [
        "".join(part.text if isinstance(part, Painted) else part for part in line) for line in outline(value, width)
    ]


@every_row(
    ("value", "shown"),
    [
        (5, ["5"]),
        ("", ['""']),
        ({}, ["{}"]),
        ([], ["[]"]),
        ([1, 2], ["[1, 2]"]),
        ("a text that is too long for a line of this", ["a text that is too long", "for a line of this"]),
        ({"a": 1, "b": "two", "c": None}, ["a: 1   b: two   c: null"]),
        ({"alpha": 10_000, "beta": 20_000, "gamma": ""}, ["alpha: 10000", 'beta: 20000   gamma: ""']),
        ({"long": "a text that is too long for one line"}, ["long: a text that is too", "      long for one line"]),
        (
            {"a": 1, "long": "a text that is too long for one line", "b": 2},
            ["a: 1", "long: a text that is too", "      long for one line", "b: 2"],
        ),
        ([{"a": 1}, {"b": 2}], ["- a: 1", "- b: 2"]),
        (
            {"items": [{"name": "one", "text": "quite a long one for this line"}]},
            ["items:", "  - name: one", "    text: quite a long", "          one for this", "          line"],
        ),
        (
            {"numbers": [10_000, 20_000, 30_000, 40_000, 50_000]},
            ["numbers: [10000, 20000,", "         30000, 40000,", "         50000]"],
        ),
    ],
)
def test_a_value_is_laid_out_to_be_read(value: Any, shown: list[str]) -> None:
    assert lines(value, 24) == shown
