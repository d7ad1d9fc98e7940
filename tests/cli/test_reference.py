"""Schemas in short: types as people write them."""

from pathlib import Path
from typing import Any

import pytest

from toolyard import CODES
from toolyard.cli.parser import make_parsers
from toolyard.cli.reference import arguments_of, reference, type_text

ROOT: dict[str, Any] = {
    "$defs": {
        "Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "Tree": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
    }
}
DEEP: dict[str, Any] = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
MANY: dict[str, Any] = {f"p{number}": {} for number in range(20)}
LOOP = {"$defs": {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}]}, "both": {"allOf": [{"$ref": "#/$defs/both"}]}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        (True, "any"),
        (False, "never"),
        ({"type": "integer"}, "integer"),
        ({"type": ["integer", "null"]}, "integer | null"),
        ({"type": "string", "format": "date"}, "string (date)"),
        ({"const": "a"}, '"a"'),
        ({"enum": [1, "a", None]}, '1 | "a" | null'),
        ({"enum": list(range(20))}, "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | …"),
        ({"anyOf": [{"type": "integer"}, {"type": "integer"}, {"type": "null"}]}, "integer | null"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "integer | string"),
        ({"allOf": [{"type": "integer"}]}, "integer"),
        ({"allOf": [{"type": "integer"}, {"enum": [1]}]}, "integer & 1"),
        ({"type": "array"}, "any[]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "array", "items": DEEP}}}, "array[][][][]"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "(integer | null)[]"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, "[integer, string]"),
        ({"type": "object"}, "object"),
        ({"type": "object", "additionalProperties": True}, "object"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "{…: integer}"),
        ({"properties": {"a": {"type": "integer"}}}, "{a?: integer}"),
        ({"type": "object", "properties": MANY}, "object"),
        ({"$ref": "#/$defs/Point"}, "{x: number}"),
        ({"type": "array", "items": {"$ref": "#/$defs/Point"}}, "{x: number}[]"),
        ({"$ref": "#/$defs/Tree"}, "{children?: {children?: object[]}[]}"),
        ({"$ref": "#/$defs/Missing"}, "any"),
    ],
)
def test_a_schema_is_written_as_a_type(schema: object, text: str) -> None:
    assert type_text(schema, ROOT) == text


@pytest.mark.parametrize("name", ["loop", "both"])
def test_a_schema_that_refers_to_itself_is_written_in_the_end(name: str) -> None:
    assert "any" in type_text({"$ref": f"#/$defs/{name}"}, LOOP)


def test_an_argument_is_written_as_in_a_signature() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 5}, "b": {"type": "string", "default": "x"}, "c": True},
        "required": ["a"],
    }

    arguments = arguments_of(schema)

    assert [argument.signature() for argument in arguments] == ["a: integer", 'b: string = "x"', "c?: any"]
    assert arguments[0].rules == "at least 1, at most 5"


def test_what_stands_beside_a_reference_counts() -> None:
    schema = {
        "properties": {"p": {"$ref": "#/$defs/P", "default": 2, "description": "Mine."}},
        "$defs": {"P": {"type": "integer", "description": "Theirs."}},
    }

    assert arguments_of(schema)[0][1:4] == ("integer", False, "2")
    assert arguments_of(schema)[0].description == "Mine."


def test_a_schema_without_properties_has_no_arguments() -> None:
    assert arguments_of({"type": "object"}) == []


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
