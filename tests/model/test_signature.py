"""Signatures: a tool and its description, each on one line."""

from typing import Any

import pytest
from table_tests import every_row

from callyard import Operation
from callyard.model.envelope import encode
from callyard.model.signature import TypeNames, one_line, signature
from callyard.model.spec import ToolSpec

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
ROOT = {
    "$defs": {
        "Owner": {"type": "object", "properties": {"name": TEXT}, "required": ["name"]},
        "Name": TEXT,
        "Loop": {"type": "array", "items": {"$ref": "#/$defs/Loop"}},
        "Tree": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
    }
}


def line_of(**schema: Any) -> str:
    spec = ToolSpec(
        name="f", description="d", input_schema={"type": "object", **schema}, operation=Operation.QUERY, source="s"
    )
    return signature(spec)


@every_row(
    ("schema", "written"),
    [
        ({"type": "string"}, "str"),
        ({"type": ["integer", "null"]}, "int|None"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "float|None"),
        ({"enum": ["a", "b"]}, "'a'|'b'"),
        ({"enum": [1, 2]}, "1|2"),
        ({"const": "x"}, "'x'"),
        ({"enum": [f"choice number {n}" for n in range(9)]}, "str"),
        ({"type": "array", "items": {"type": "boolean"}}, "list[bool]"),
        ({"type": "array"}, "list"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"type": "object", "title": "Issue", "properties": {"id": {}}}, "Issue"),
        ({"type": "object", "title": "An issue", "properties": {"id": {}}}, "object"),
        ({"properties": {"id": {}}}, "object"),
        ({"$ref": "#/$defs/Owner"}, "Owner"),
        ({"$ref": "#/$defs/Name"}, "str"),
        ({"$ref": "#/$defs/Loop"}, "list[list[list[list[Loop]]]]"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
        ({}, "any"),
        (True, "any"),
    ],
    ids=str,
)
def test_a_type_is_written_as_people_write_it(schema: Any, written: str) -> None:
    assert TypeNames(ROOT).of(schema) == written
    assert line_of(properties={"x": schema}, **ROOT) == f"f(x?: {written})"


@every_row(
    ("schema", "text"),
    [
        ({"type": "integer"}, "int"),
        ({"enum": [1, "a", None]}, "1|'a'|None"),
        ({"enum": list(range(20))}, "0|1|2|3|4|5|6|7|8|9|10|11|…"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "list[int|None]"),
        ({"type": "object"}, "object"),
        ({"type": "object", "additionalProperties": True}, "object"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"properties": {"a": {"type": "integer"}}}, "{a?: int}"),
        ({"type": "object", "properties": dict.fromkeys("abcdefghi", TEXT)}, "object"),
        ({"type": "array", "items": {"$ref": "#/$defs/Owner"}}, "list[{name: str}]"),
        ({"$ref": "#/$defs/Tree"}, "{children?: list[{children?: list[Tree]}]}"),
    ],
    ids=str,
)
def test_small_objects_and_more_choices_are_written_out_where_there_is_room(schema: Any, text: str) -> None:
    assert TypeNames(ROOT, expand=True).of(schema) == text


def test_a_signature_shows_what_is_required_and_of_the_rest_what_there_is_room_for() -> None:
    properties = {f"parameter_{number}": TEXT for number in range(40)}
    written = line_of(properties=properties, required=["parameter_39"])

    assert written.startswith("f(parameter_39: str, parameter_0?: str")
    assert written.endswith(", …)")
    assert len(written) < 180


def test_a_line_is_cut_at_a_word() -> None:
    assert one_line("One thing. Another.\nMore.", 50) == "One thing."
    assert one_line("word " * 30, 12) == "word word…"
    assert len(encode(one_line("x" * 500, 90))) < 100


def test_arguments_that_a_reference_brings_are_shown() -> None:
    base = {"properties": {"b": FLAG}, "required": ["b"]}
    definitions = {"A": {"$ref": "#/$defs/B", "properties": {"a": TEXT}, "required": ["a"]}, "B": base}

    assert line_of(**{"$ref": "#/$defs/A", "$defs": definitions}) == "f(a: str, b: bool)"
    assert (
        line_of(**{"$ref": "#/$defs/A", "$defs": definitions}, properties={"own": TEXT})
        == "f(a: str, b: bool, own?: str)"
    )


def test_arguments_of_all_parts_are_shown() -> None:
    parts = [
        {"properties": {"a": {}, "b": FLAG}, "required": ["a"]},
        {"properties": {"a": TEXT, "b": True}, "required": ["a"]},
        {"$ref": "#/$defs/C"},
    ]
    common = {"allOf": [{"properties": {"c": FLAG}, "required": ["c"]}]}

    assert line_of(allOf=parts, **{"$defs": {"C": common}}) == "f(a: str, c: bool, b?: bool)"
    assert line_of(properties={"x": {"allOf": [{"description": "An x."}, TEXT]}}) == "f(x?: str)"


def test_a_required_name_is_shown_even_without_a_schema() -> None:
    assert line_of(required=["zeal"]) == "f(zeal: any)"
    assert line_of(required=["zeal", "a", "zeal"], properties={"a": TEXT}) == "f(zeal: any, a: str)"


@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_alternatives_are_marked_and_what_all_of_them_require_is_shown(key: str) -> None:
    kinds = [
        {"properties": {"kind": {"const": kind}, kind: TEXT}, "required": ["kind", kind]} for kind in ("disc", "ring")
    ]

    assert line_of(**{key: kinds}) == "f(kind: 'disc'|'ring', …)"
    assert line_of(**{key: [{"required": ["id"]}, {"required": ["name"]}]}, properties={"id": TEXT, "name": TEXT}) == (
        "f(id?: str, name?: str, …)"
    )
    assert line_of(**{key: [{"required": ["id"]}]}, properties={"id": TEXT}) == "f(id: str)"
    assert line_of(**{key: [{"properties": {"x": TEXT}}, True]}) == "f(…)"


def test_conditions_are_marked() -> None:
    assert line_of(properties={"a": TEXT}, dependentRequired={"a": ["b"]}) == "f(a?: str, …)"
    assert line_of(**{"if": {"required": ["a"]}, "then": {"required": ["b"]}}) == "f(…)"


def test_a_mark_stands_once_however_much_is_left_out() -> None:
    many = {f"parameter_{number}": TEXT for number in range(40)}

    assert line_of(properties=many, anyOf=[{}, {}]).count("…") == 1


@every_row(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.org/elsewhere"},
        {"allOf": [{"$ref": "#"}] * 500},
        {"anyOf": [{"$ref": "#"}] * 500},
    ],
    ids=["itself", "nowhere", "elsewhere", "itself in parts", "itself in alternatives"],
)
def test_a_dangling_reference_still_has_a_signature(schema: dict[str, Any]) -> None:
    assert line_of(**schema, properties={"a": TEXT}, required=["a"]) == "f(a: str, …)"


@every_row("key", ["properties", "required", "$ref", "allOf", "anyOf", "oneOf", "enum", "type", "items"])
@every_row("value", [5, "five", None, [5], [None], {"five": 5}, True])
def test_a_keyword_that_is_no_schema_may_be_any_value(key: str, value: object) -> None:
    shown = line_of(**{"$ref": "#/x", "x": {key: value}}, properties={"a": {"$ref": "#/x"}}, required=["a"])

    assert shown.startswith("f(a: ")


@pytest.mark.parametrize("key", ["anyOf", "oneOf", "allOf"])
def test_a_type_that_branches_into_itself_comes_to_an_end(key: str) -> None:
    defs = {"x": {key: [{"$ref": "#/$defs/x"}] * 3000}}

    assert line_of(**{"$defs": defs}, properties={"a": {"$ref": "#/$defs/x"}}).startswith("f(a?: ")


def test_little_is_read_of_a_text_without_an_end() -> None:
    assert one_line("a. " * 1_000_000, 20) == "a. a. a. a. a. a.…"


def test_a_signature_is_one_line_whatever_names_and_values_hold() -> None:
    shown = line_of(
        properties={"odd\nname": {"enum": ["x\r\ny", "\u2028"]}, "c": {"const": "\x85\x1b"}}, required=["odd\nname"]
    )

    assert shown == "f(odd\\nname: 'x\\r\\ny'|'\\u2028', c?: '\\x85\\x1b')"


@every_row(
    ("text", "line"),
    [
        ("Create an issue (e.g. a bug). More.", "Create an issue (e.g. a bug)."),
        ("Create an issue, E.g. A bug. More.", "Create an issue, E.g. A bug."),
        ("List items, i.e. rows. X marks it.", "List items, i.e. rows."),
        ("Return the U.S. Weather. More.", "Return the U.S. Weather."),
        ("Find Dr. Who or Mrs. Hudson in St. Ives. More.", "Find Dr. Who or Mrs. Hudson in St. Ives."),
        ("Compare A vs. B, C, etc. And more. Then end.", "Compare A vs. B, C, etc. And more."),
        ("Say yes or no. More.", "Say yes or no."),
        ("Use v2.0 of it. Yes.", "Use v2.0 of it."),
        ("Count to 3. Then stop.", "Count to 3."),
        ("Read file.txt. `Path` says where.", "Read file.txt."),
        ("Take approx. 5 of them. then more.", "Take approx. 5 of them. then more."),
        ("Wait... Then go.", "Wait..."),
        ("सूची दिखाएँ. और पाठ.", "सूची दिखाएँ."),
        ("# Weather\nSays it.", "Weather"),
        ("## Say the weather. More.", "Say the weather."),
        ("#1 of all tools. More.", "#1 of all tools."),
        ("No dot", "No dot"),
        ("A dot at the end. ", "A dot at the end."),
        ("", ""),
    ],
)
def test_a_line_is_the_first_sentence(text: str, line: str) -> None:
    assert one_line(text, 90) == line
