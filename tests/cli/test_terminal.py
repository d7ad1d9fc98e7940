"""The terminal: what fits in a column."""

import pytest

from toolyard.cli.terminal import Painted, Terminal, cut, width_of


@pytest.mark.parametrize(
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


def test_progress_is_a_line_of_its_own_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.show_progress("1/2")
    terminal.clear()

    assert capsys.readouterr().err == "1/2\n"


@pytest.mark.parametrize(("given", "columns"), [("120", 120), ("0", 80), ("many", 80)])
def test_the_width_can_be_given(given: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", given)

    assert Terminal().width == columns
