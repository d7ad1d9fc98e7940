import socket
from datetime import date
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.model.envelope import encode
from callyard.model.schema import (
    Issue,
    SchemaError,
    SchemaValidator,
    check_schema,
    field_name,
    inline_references,
    resolve,
    subschema,
    unknown_field_issue,
)
from callyard.model.simple_schema import fits_simple_schema, is_simple_schema

ORDER: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 1, "maximum": 9},
        "customer": {"$ref": "#/$defs/customer"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "ship": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
    },
    "$defs": {
        "customer": {"type": "object", "properties": {"name": {"type": "string"}, "home": {"$ref": "#/$defs/address"}}},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 3}},
            "additionalProperties": False,
        },
        "line": {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}},
        "a/b~c": {"type": "boolean"},
    },
}


def check(schema: object) -> None:
    check_schema(schema, max_bytes=2000, max_depth=8)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@every_row("schema", [{}, True, False, ORDER, {"type": ["string", "null"]}, nested(8)])
def test_a_schema_within_bounds_is_one(schema: object) -> None:
    check(schema)


@every_row("schema", [None, [], "string", 5])
def test_a_value_that_is_no_object_is_no_schema(schema: object) -> None:
    with pytest.raises(SchemaError):
        check(schema)


@every_row(
    "schema",
    [
        {"type": "objekt"},
        {"properties": []},
        {"required": "id"},
        {"pattern": "("},
        {"minimum": "1"},
        {"properties": {"a": {"type": 5}}},
        {"$ref": "#/$defs/nowhere"},
    ],
)
def test_a_document_that_no_validator_accepts_is_no_schema(schema: object) -> None:
    with pytest.raises(SchemaError):
        check(schema)


@pytest.mark.parametrize("schema", [nested(9), nested(500), {"enum": [[[[[[[[[[1]]]]]]]]]]}])
def test_a_schema_that_is_too_deep_is_refused(schema: object) -> None:
    with pytest.raises(SchemaError, match="8"):
        check(schema)


def test_a_schema_that_goes_in_circles_is_refused() -> None:
    schema: dict[str, Any] = {}
    schema["not"] = schema

    with pytest.raises(SchemaError):
        check(schema)


def test_a_schema_that_is_too_large_is_refused() -> None:
    with pytest.raises(SchemaError, match="2000"):
        check({"description": "x" * 2000})


@pytest.mark.parametrize("value", [object(), "\ud800", {1, 2, object()}])
def test_a_schema_that_cannot_be_written_is_refused(value: object) -> None:
    with pytest.raises(SchemaError):
        check({"default": value})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "https://example.com/schema.json#/x"},
        {"$ref": "file:///etc/hostname"},
        {"properties": {"a": {"$ref": "other.json"}}},
        {"$id": "http://127.0.0.1:9/a", "$ref": "b"},
        {"$dynamicRef": "http://127.0.0.1:9/x"},
        {"allOf": [{"$id": "http://127.0.0.1:9/a", "items": {"$ref": "b"}}]},
    ],
)
def test_a_schema_that_refers_elsewhere_is_refused_and_nothing_is_fetched(
    schema: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: object) -> NoReturn:
        pytest.fail("something was fetched")

    monkeypatch.setattr(socket, "socket", fetch)

    with pytest.raises(SchemaError):
        check(schema)


def test_an_older_dialect_is_read_as_the_newest() -> None:
    check({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"})


def issues(value: object, schema: dict[str, Any] = ORDER) -> dict[str, Issue]:
    return {issue.field: issue for issue in SchemaValidator(schema).issues(value)}


def test_a_value_that_fits_has_no_issues() -> None:
    validator = SchemaValidator(ORDER)

    assert validator.fits({"id": 5, "lines": [{"sku": "a"}]})
    assert validator.issues({"id": 5}) == []


def test_every_issue_is_reported_at_once_with_its_place_and_the_expected_schema() -> None:
    wrong: dict[str, Any] = {
        "customer": {"home": {"city": "Paris"}},
        "lines": [{"sku": "a"}, {"sku": 5}, {}],
        "pair": [1, 2, 3],
        "labels": {"x": 1},
    }

    assert not SchemaValidator(ORDER).fits(wrong)
    found = issues(wrong)
    assert {field: issue.code for field, issue in found.items()} == {
        "id": "missing",
        "customer.home.city": "string_too_long",
        "lines.1.sku": "type",
        "lines.2.sku": "missing",
        "pair.1": "type",
        "pair.2": "type",
        "labels.x": "type",
    }
    assert found["id"].expected == ORDER["properties"]["id"]
    assert found["customer.home.city"].expected == {"type": "string", "maxLength": 3}
    assert found["lines.1.sku"].expected == found["lines.2.sku"].expected == {"type": "string"}
    assert found["pair.1"].expected == {"type": "string"}
    assert found["pair.2"].expected == {"type": "null"}
    assert found["labels.x"].expected == {"type": "string"}


@every_row(
    ("schema", "value", "code"),
    [
        ({"minimum": 3}, 2, "greater_than_equal"),
        ({"maximum": 3}, 4, "less_than_equal"),
        ({"exclusiveMinimum": 3}, 3, "greater_than"),
        ({"exclusiveMaximum": 3}, 3, "less_than"),
        ({"minLength": 3}, "a", "string_too_short"),
        ({"maxLength": 3}, "abcd", "string_too_long"),
        ({"minItems": 1}, [], "too_short"),
        ({"maxItems": 1}, [1, 2], "too_long"),
        ({"pattern": "^a"}, "b", "string_pattern_mismatch"),
        ({"enum": [1, 2]}, 3, "enum"),
        ({"const": 1}, 3, "const"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 3, "anyOf"),
    ],
)
def test_an_issue_has_the_same_code_whoever_found_it(schema: dict[str, Any], value: object, code: str) -> None:
    [issue] = issues({"x": value}, {"type": "object", "properties": {"x": schema}}).values()

    assert (issue.field, issue.code, issue.expected) == ("x", code, schema)


def test_an_issue_never_repeats_the_value() -> None:
    found = issues({"id": "hunter2", "customer": {"home": {"city": "hunter2"}}, "ship": "hunter2"})

    assert len(found) == 3
    assert "hunter2" not in repr(found)


def test_fields_that_nobody_knows_are_each_an_issue_with_what_was_probably_meant() -> None:
    found = issues({"id": 1, "custmer": {}, "zzz": 1, "ship": None, "customer": {"home": {"citi": "x"}}})

    assert {field: (issue.code, issue.did_you_mean) for field, issue in found.items()} == {
        "custmer": ("extra_forbidden", "customer"),
        "zzz": ("extra_forbidden", None),
        "customer.home.citi": ("extra_forbidden", "city"),
    }


def test_a_missing_field_may_be_named_with_any_character() -> None:
    assert list(issues({}, {"required": ['say "hi"']})) == ['say "hi"']


def test_the_whole_value_has_a_name_too() -> None:
    assert list(issues(5)) == ["(root)"]
    assert field_name(()) == "(root)"
    assert field_name(("a", 0, "b")) == "a.0.b"


def test_an_answer_stays_short_however_much_is_wrong() -> None:
    assert len(SchemaValidator({"items": {"type": "string"}}).issues(list(range(1000)))) == 50
    extra: dict[str, Any] = {"properties": {}, "additionalProperties": False}
    assert len(SchemaValidator(extra).issues({str(number): 1 for number in range(1000)})) == 50


@every_row(
    ("path", "found"),
    [
        ((), ORDER),
        (("id",), ORDER["properties"]["id"]),
        (("customer",), ORDER["$defs"]["customer"]),
        (("customer", "home", "city"), {"type": "string", "maxLength": 3}),
        (("lines", 7, "sku"), {"type": "string"}),
        (("pair", 0), {"type": "integer"}),
        (("pair", 5), {"type": "null"}),
        (("labels", "any"), {"type": "string"}),
        (("ship", "city"), {"type": "string", "maxLength": 3}),
        (("nothing",), None),
        (("nothing", "at", "all"), None),
        (("id", "deeper"), None),
        (("customer", 0), None),
    ],
)
def test_the_part_of_a_schema_that_speaks_of_a_value_is_found(path: tuple[str | int, ...], found: object) -> None:
    assert subschema(ORDER, path) == found


def test_a_schema_that_allows_everything_says_nothing_of_a_part() -> None:
    assert subschema({"properties": {"a": True}}, ("a",)) is None
    assert subschema({"properties": {"a": True}}, ("a", "b")) is None


def test_a_part_is_found_in_whichever_branch_knows_it() -> None:
    schema = {"allOf": [True, {"oneOf": [{"type": "string"}, {"anyOf": [{"properties": {"a": {"const": 1}}}]}]}]}

    assert subschema(schema, ("a",)) == {"const": 1}


@every_row(
    ("node", "found"),
    [
        ({"$ref": "#/$defs/address"}, ORDER["$defs"]["address"]),
        ({"$ref": "#/$defs/a~1b~0c"}, {"type": "boolean"}),
        ({"$ref": "#"}, ORDER),
        ({"$ref": "#/$defs/nowhere/at/all"}, None),
        ({"$ref": "#/required/0"}, None),
        ({"$ref": "http://example.com"}, {"$ref": "http://example.com"}),
        ({"$ref": 5}, {"$ref": 5}),
        (True, True),
    ],
)
def test_a_reference_leads_where_it_says(node: object, found: object) -> None:
    assert resolve(ORDER, node) == found


def test_references_that_go_in_circles_lead_nowhere() -> None:
    root = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}

    assert resolve(root, {"$ref": "#/$defs/a"}) is None


def test_a_part_of_a_schema_can_be_read_alone() -> None:
    part = inline_references(ORDER, ORDER["properties"]["customer"])

    assert part == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "home": ORDER["$defs"]["address"]},
    }
    assert inline_references(ORDER, [{"$ref": "#/$defs/line"}, True, None]) == [ORDER["$defs"]["line"], True, None]
    assert "$defs" not in inline_references(ORDER, ORDER)


def test_a_part_that_refers_to_itself_ends_somewhere_and_soon() -> None:
    tree = {"type": "object", "properties": {f"child_{number}": {"$ref": "#/$defs/tree"} for number in range(20)}}
    root = {"$defs": {"tree": tree}}

    assert len(encode(inline_references(root, tree))) < 100_000


def test_a_field_that_is_not_known_is_an_issue_of_its_own() -> None:
    issue = unknown_field_issue(("a", 0, "limt"), ["limit"])

    assert (issue.field, issue.code, issue.did_you_mean) == ("a.0.limt", "extra_forbidden", "limit")


WORDS = st.sampled_from(["a", "b", "type", "items", "$ref"])
NUMBERS = st.integers() | st.floats() | st.booleans()
JSON = st.recursive(
    st.none() | NUMBERS | WORDS | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS | st.integers(), inner, max_size=2),
    max_leaves=4,
)
VALUES = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | WORDS | st.lists(st.integers(0, 1), max_size=2)
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "text"])


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas and near misses: every keyword that may be plain, with what belongs there and what does not."""
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, max_size=2) | JSON,
        "properties": st.dictionaries(WORDS, inner, max_size=2) | JSON,
        "required": st.lists(WORDS, max_size=2) | JSON,
        "anyOf": st.lists(inner, max_size=2) | JSON,
        "enum": st.lists(WORDS, max_size=2) | JSON,
        "additionalProperties": inner | JSON,
        "items": inner | JSON,
        "title": WORDS | JSON,
        "description": WORDS | JSON,
        "$ref": st.just("#/nowhere"),
        "pattern": st.sampled_from(["a", "("]),
        **dict.fromkeys(("default", "const", "examples"), JSON),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS | JSON),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), NUMBERS | JSON),
    }
    return st.fixed_dictionaries({}, optional=keywords)


SCHEMAS = st.recursive(st.booleans() | JSON, schemas_of, max_leaves=5)


@given(schemas_of(SCHEMAS))
def test_a_plain_schema_is_a_schema(schema: dict[str, Any]) -> None:
    if is_simple_schema(schema):
        SchemaValidator(schema).fits(None)  # raises for what is no schema


@given(schemas_of(SCHEMAS), VALUES)
def test_a_value_that_fits_a_simple_schema_is_valid(schema: dict[str, Any], value: object) -> None:
    if is_simple_schema(schema) and fits_simple_schema(schema, value):
        assert SchemaValidator(schema).fits(value)


@every_row(
    "schema",
    [
        True,
        {},
        {
            "type": "object",
            "properties": {"a": {"type": "string", "title": "A", "description": "The a."}},
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"a": True},
            "required": ["a"],
            "additionalProperties": {"type": ["boolean", "null"]},
        },
        {
            "type": "array",
            "items": {"anyOf": [{"const": {"a": [1, None]}}, {"type": "null"}]},
            "minItems": 1,
            "maxItems": 2,
        },
        {
            "type": "integer",
            "minimum": -1,
            "maximum": 1.5,
            "exclusiveMinimum": -2,
            "exclusiveMaximum": 2,
            "default": 1,
            "examples": [1],
        },
        {"enum": ["a", "b"], "minLength": 0, "maxLength": 9},
    ],
)
def test_common_schemas_are_simple(schema: object) -> None:
    assert is_simple_schema(schema)


NOT_PLAIN: list[Any] = [
    None,
    {"type": "text"},
    {"type": []},
    {"type": ["string", "string"]},
    {"type": ["text"]},
    {"type": {}},
    {"properties": []},
    {"properties": {1: {}}},
    {"properties": {"a": {"type": "text"}}},
    {"required": "a"},
    {"required": [1]},
    {"required": ["a", "a"]},
    {"additionalProperties": {"type": "text"}},
    {"items": [{}]},
    {"anyOf": []},
    {"anyOf": [{"type": "text"}]},
    {"enum": "a"},
    {"enum": [date(2026, 1, 1)]},
    {"default": {1: 2}},
    {"default": [{1: 2}]},
    {"default": float("nan")},
    {"minimum": True},
    {"minimum": float("inf")},
    {"maximum": 10**400},
    {"minLength": -1},
    {"minItems": 1.0},
    {"description": 1},
    {"pattern": "a"},
    {"$ref": "#/$defs/a"},
]


@every_row("schema", NOT_PLAIN)
def test_wrong_and_complex_schemas_are_not_simple(schema: object) -> None:
    assert not is_simple_schema(schema)


@every_row(
    ("schema", "value"),
    [
        ({}, None),
        ({"type": "string", "title": "A", "description": "An a.", "default": "b"}, "a"),
        ({"type": "integer", "minimum": 1, "maximum": 3}, 1),
        ({"type": "number", "maximum": 3}, 3),
        ({"type": "number"}, 0.5),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"enum": ["a", "b"]}, "b"),
        ({"type": "array"}, [1]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
    ],
)
def test_simple_values_plainly_fit(schema: dict[str, Any], value: object) -> None:
    assert fits_simple_schema(schema, value)


@every_row(
    ("schema", "value"),
    [
        ({"type": "string"}, 1),
        ({"type": "integer"}, True),
        ({"type": "integer", "minimum": 1}, 0),
        ({"type": "integer", "maximum": 1}, 2),
        ({"minimum": 1}, "a"),
        ({"maximum": 1}, "a"),
        ({"enum": ["a"]}, "b"),
        ({"enum": [1]}, 1),
        ({"type": ["string", "null"]}, "a"),
        ({"minLength": 1}, "a"),
        ({"anyOf": [{"type": "string"}, True]}, 1),
    ],
)
def test_wrong_and_unclear_values_do_not_fit_a_simple_schema(schema: dict[str, Any], value: object) -> None:
    assert not fits_simple_schema(schema, value)
