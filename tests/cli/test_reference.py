"""The arguments of a tool in words, and the page of the command line."""

from pathlib import Path

import pytest

from callyard import CODES
from callyard.cli.parser import make_parsers
from callyard.cli.reference import arguments_of, reference


def test_an_argument_is_written_as_in_a_signature() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 5}, "b": {"type": "string", "default": "x"}, "c": True},
        "required": ["a"],
    }

    arguments = arguments_of(schema)

    assert [argument.signature() for argument in arguments] == ["a: int", 'b: str = "x"', "c?: any"]
    assert arguments[0].rules == "at least 1, at most 5"


def test_what_stands_beside_a_reference_counts() -> None:
    schema = {
        "properties": {"p": {"$ref": "#/$defs/P", "default": 2, "description": "Mine."}},
        "$defs": {"P": {"type": "integer", "description": "Theirs."}},
    }

    assert arguments_of(schema)[0][1:4] == ("int", False, "2")
    assert arguments_of(schema)[0].description == "Mine."


def test_arguments_that_a_reference_brings_are_shown() -> None:
    schema = {"$ref": "#/$defs/A", "required": ["b"], "$defs": {"A": {"properties": {"a": {"type": "string", "format": "date"}}}}}

    assert [(argument.signature(), argument.rules) for argument in arguments_of(schema)] == [("a?: str", "format date"), ("b: any", "")]


def test_a_schema_without_properties_has_no_arguments() -> None:
    assert arguments_of({"type": "object"}) == []


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_in_the_repository_is_up_to_date() -> None:
    assert PAGE.read_text() == reference()


def test_every_command_option_and_status_is_on_the_page() -> None:
    page = reference()
    program, commands = make_parsers()

    assert all(f"## callyard {name}\n" in page for name in commands)
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
