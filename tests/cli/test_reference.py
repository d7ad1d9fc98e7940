"""The arguments of a tool in words, and the page of the command line."""

import os
import subprocess
import sys
from pathlib import Path

from callyard import CODES
from callyard.cli.inspect import arguments_of
from callyard.cli.parser import help_of, make_parsers


def test_an_argument_is_written_as_in_a_signature() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 1, "maximum": 5},
            "b": {"type": "string", "default": "x"},
            "c": True,
        },
        "required": ["a"],
    }

    arguments = arguments_of(schema)

    assert [argument.signature() for argument in arguments] == ["a: int", 'b: str = "x"', "c?: any"]
    assert arguments[0].rules == "at least 1, at most 5"


def test_keywords_beside_a_reference_count() -> None:
    schema = {
        "properties": {"p": {"$ref": "#/$defs/P", "default": 2, "description": "Mine."}},
        "$defs": {"P": {"type": "integer", "description": "Theirs."}},
    }

    assert arguments_of(schema)[0][1:4] == ("int", False, "2")
    assert arguments_of(schema)[0].description == "Mine."


def test_arguments_that_a_reference_brings_are_shown() -> None:
    schema = {
        "$ref": "#/$defs/A",
        "required": ["b"],
        "$defs": {"A": {"properties": {"a": {"type": "string", "format": "date"}}}},
    }

    assert [(argument.signature(), argument.rules) for argument in arguments_of(schema)] == [
        ("a?: str", "format date"),
        ("b: any", ""),
    ]


def test_a_schema_without_properties_has_no_arguments() -> None:
    assert arguments_of({"type": "object"}) == []


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "cli.md"


def test_every_command_option_and_status_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    program, commands = make_parsers()

    assert all(f"## callyard {name}\n" in page for name in commands)
    for parser in (program, *commands.values()):
        for action in parser.actions:
            assert all(f"`{option}" in page for option in action.option_strings)
            assert help_of(action) in page
    assert all(f"| `{code.exit}` | `{code.name}` | " in page for code in CODES.values())
    assert all(f"| `{status}` |  | " in page for status in (0, 1, 2, 130, 141, 143))


def test_the_page_is_up_to_date_and_does_not_depend_on_the_terminal() -> None:
    program = [sys.executable, "scripts/generate.py", "--check"]
    environment = {**os.environ, "COLUMNS": "20", "LANGUAGE": "de"}
    ran = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own

    assert "cli.md" not in ran.stdout
    assert ran.returncode == 0
