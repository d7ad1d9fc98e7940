"""The reference of the command line: complete, up to date, and the same everywhere."""

from pathlib import Path

import pytest

from toolyard import CODES
from toolyard.cli import reference
from toolyard.cli.parser import make_parsers

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_in_the_repository_is_up_to_date() -> None:
    assert PAGE.read_text() == reference()


def test_every_command_option_and_status_is_on_the_page() -> None:
    page = reference()
    program, commands = make_parsers()

    assert all(f"## toolyard {name}\n" in page for name in commands)
    for parser in (program, *commands.values()):
        for action in parser.actions:
            assert all(f"`{option}" in page for option in action.option_strings)
            assert str(action.help) in page
    assert all(f"| `{code.exit}` | `{code.name}` | " in page for code in CODES.values())
    assert all(f"| `{status}` |  | " in page for status in (0, 1, 2, 130, 141, 143))


def test_the_page_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference()
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LANGUAGE", "de")

    assert reference() == before
