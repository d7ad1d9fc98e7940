"""Forms from schemas: the kind of each field, and schemas that are made to break a form."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.console.form import Field, Form, defaults_of, make_form

MARKUP = "<script>alert(1)</script>"


def form_of(**properties: Any) -> dict[str, Field]:
    required = [name for name, schema in properties.items() if schema.pop("needed", False)]
    form = make_form({"type": "object", "properties": properties, "required": required})
    return {field.name: field for field in form.fields}


def all_fields(fields: tuple[Field, ...]) -> list[Field]:
    found: list[Field] = []
    for field in fields:
        found += [field, *all_fields(field.fields), *([] if field.item is None else all_fields((field.item,)))]
    return found


@every_row(
    ("schema", "kind"),
    [
        ({"type": "string"}, "text"),
        ({"type": "integer"}, "number"),
        ({"type": "number"}, "number"),
        ({"type": "boolean"}, "switch"),
        ({"enum": ["a", 1, None]}, "choice"),
        ({"const": "a"}, "choice"),
        ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, "choice"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "choices"),
        ({"type": "array", "items": {"type": "string"}}, "list"),
        ({"type": "array"}, "json"),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}}, "json"),
        ({"type": "object", "properties": {"x": {"type": "string"}}}, "object"),
        ({"properties": {"x": {"type": "string"}}}, "object"),
        ({"type": "object"}, "json"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "json"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "json"),
        ({"type": ["string", "integer"]}, "json"),
        ({"allOf": [{"type": "string"}]}, "text"),
        ({}, "json"),
        (True, "json"),
    ],
)
def test_each_kind_of_value_has_its_own_field(schema: Any, kind: str) -> None:
    form = make_form({"type": "object", "properties": {"x": schema}})

    assert [field.kind for field in form.fields] == [kind]


def test_required_fields_come_first_and_keep_their_order() -> None:
    text = {"type": "string"}
    form = make_form({"type": "object", "properties": {"a": text, "b": text, "c": text}, "required": ["c", "b"]})

    assert [(field.name, field.is_required) for field in form.fields] == [("c", True), ("b", True), ("a", False)]


@pytest.mark.parametrize(
    "schema",
    [{"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, {"type": ["integer", "null"], "minimum": 1}],
)
def test_a_value_that_may_be_null_has_the_field_of_the_other_type(schema: Any) -> None:
    field = form_of(x=schema)["x"]

    assert (field.kind, field.is_nullable, field.minimum) == ("number", True, "1")


def test_a_field_says_its_type_its_default_and_its_bounds() -> None:
    fields = form_of(
        count={"type": "integer", "minimum": 1, "maximum": 9, "default": 3, "description": "How many."},
        share={"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5},
        name={"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^a"},
        tags={"type": "array", "items": {"type": "string"}, "maxItems": 4},
    )

    count = fields["count"]
    assert (count.type, count.default, count.minimum, count.maximum, count.step) == ("int", "3", "1", "9", "1")
    assert count.description == "How many."
    assert all(fields[name].hint for name in fields)


def test_a_question_is_filled_in_with_its_defaults_and_shows_titles_of_its_choices() -> None:
    titled = {"type": "string", "enum": ["r", "g"], "enumNames": ["Red"], "default": "g"}
    schema = {
        "type": "object",
        "properties": {"colour": titled, "note": {"type": "string", "default": "x" * 500}, "size": {"type": "integer"}},
    }

    assert [choice.label for choice in make_form(schema).fields[0].choices] == ["Red", "g"]
    assert msgspec.json.decode(defaults_of(schema)) == {"colour": "g", "note": "x" * 500}
    assert defaults_of({"properties": [{"default": 1}]}) == "{}"


def test_secrets_and_dates_have_inputs_of_their_own() -> None:
    fields = form_of(
        key={"type": "string", "writeOnly": True},
        word={"type": "string", "format": "password"},
        day={"type": "string", "format": "date"},
    )

    assert [fields[name].input_type for name in ("key", "word", "day")] == ["password", "password", "date"]


def test_references_are_followed_and_cycles_end_in_json() -> None:
    node = {
        "type": "object",
        "properties": {"value": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
        "required": ["value"],
    }
    form = make_form(
        {
            "type": "object",
            "properties": {"root": {"$ref": "#/$defs/Node", "description": "The first."}},
            "$defs": {"Node": node},
        }
    )

    root = form.fields[0]
    assert (root.kind, root.description, root.type) == ("object", "The first.", "Node")
    assert [field.name for field in root.fields] == ["value", "next"]
    assert "json" in {field.kind for field in all_fields(form.fields)}


@every_row("reference", ["#/$defs/A", "#/$defs/missing", "https://elsewhere.example/schema", "#"])
def test_a_reference_that_leads_nowhere_is_json(reference: str) -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": reference}},
        "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
    }

    assert make_form(schema).fields[0].kind in {"json", "object"}


def test_a_deep_schema_becomes_json_below_a_depth() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"x": schema}}

    assert [field.kind for field in all_fields(make_form(schema).fields)] == ["object", "object", "object", "json"]


def test_a_form_of_thousands_of_fields_is_bounded_and_says_what_is_left_out() -> None:
    long = "x" * 5000
    form = make_form(
        {
            "type": "object",
            "properties": {f"p{number}": {"type": "string", "description": long} for number in range(5000)},
        }
    )

    assert len(form.fields) == 80
    assert form.left_out == 4920
    assert len(msgspec.json.encode(form)) < 60_000


def test_a_huge_enum_of_texts_is_a_text_with_suggestions_and_one_of_numbers_is_json() -> None:
    fields = form_of(city={"enum": [f"city {number}" for number in range(9999)]}, number={"enum": list(range(9999))})

    assert (fields["city"].kind, len(fields["city"].choices)) == ("text", 100)
    assert fields["number"].kind == "json"


def test_wide_objects_in_lists_in_objects_do_not_multiply() -> None:
    wide: dict[str, Any] = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(50)}}
    middle = {"type": "object", "properties": {f"m{number}": {"type": "array", "items": wide} for number in range(50)}}
    form = make_form({"type": "object", "properties": {f"o{number}": middle for number in range(50)}})

    assert len(all_fields(form.fields)) <= 80


def test_names_are_kept_as_they_are_however_strange() -> None:
    names = [MARKUP, "__proto__", "a.b", "", "ünïcode\n", "constructor"]

    assert [
        field.name
        for field in make_form({"type": "object", "properties": {name: {"type": "string"} for name in names}}).fields
    ] == names


def test_a_text_among_other_types_may_be_written_without_quotes() -> None:
    fields = form_of(
        a={"type": ["string", "integer"]},
        b={"anyOf": [{"type": "string"}, {"type": "array"}]},
        c={"type": ["integer", "array"]},
        d={},
    )

    assert [fields[name].takes_text for name in "abcd"] == [True, True, False, True]


def test_alternatives_are_merged_as_far_as_they_share_fields() -> None:
    text = {"type": "string"}
    branches = [{"properties": {"kind": {"const": kind}, kind: text}, "required": ["kind"]} for kind in ("a", "b")]
    form = make_form({"type": "object", "oneOf": branches})

    assert [field.name for field in form.fields] == ["kind"]
    assert [choice.label for choice in form.fields[0].choices] == ["a", "b"]
    assert form.is_partial


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "required",
        "minimum",
        "default",
        "format",
        "pattern",
        "title",
    ]
)


@given(st.dictionaries(_KEYS, _JSON | st.dictionaries(_KEYS, _JSON)))
def test_no_schema_makes_a_form_fail(schema: dict[str, Any]) -> None:
    assert isinstance(make_form(schema), Form)
    assert isinstance(make_form({"type": "object", "properties": {"x": schema}}), Form)
