"""Wrong values of any size are explained with at most fifty issues, in bounded time and memory."""

import tracemalloc
from typing import Any

from table_tests import every_row

from callyard.metatools.chain import INPUT_SCHEMA
from callyard.model.coercion import IntegerConverter, find_repairs
from callyard.model.schema import MAX_ISSUES, SchemaValidator

INTEGER: dict[str, Any] = {"type": "integer"}
MANY = 200_000


def one(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: INTEGER}, "required": [name], "additionalProperties": False}


@every_row(
    ("schema", "value", "number", "field", "code"),
    [
        ({"type": "array", "items": INTEGER}, ["a"] * MANY, MAX_ISSUES, "a.0", "type"),
        ({"type": "array", "items": INTEGER}, [1] * MANY + ["a"], 1, f"a.{MANY}", "type"),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": INTEGER}, [1] * MANY, 1, "a.0", "type"),
        ({"type": "array", "items": INTEGER, "maxItems": 5}, ["a"] * MANY, 1, "a", "too_long"),
        ({"type": "string"}, ["a"] * MANY, 1, "a", "type"),
        ({"type": "array", "items": {"anyOf": [one("x"), one("y")]}}, [{"q": 1}] * MANY, MAX_ISSUES, "a.0", "anyOf"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}, ["a"] * MANY, MAX_ISSUES, "a.0", "type"),
        ({"allOf": [{"$ref": "#/$defs/list"}]}, ["a"] * MANY, MAX_ISSUES, "a.0", "type"),
        ({"not": {"type": "array"}}, ["a"] * MANY, 1, "a", "invalid"),
        (one("x"), {str(index): 1 for index in range(MANY)}, MAX_ISSUES, "a.x", "missing"),
        ({"additionalProperties": INTEGER}, {str(index): "" for index in range(MANY)}, MAX_ISSUES, "a.0", "type"),
        (
            {"properties": {"b/c": {"type": "array", "items": INTEGER}}},
            {"b/c": ["a"] * MANY},
            MAX_ISSUES,
            "a.b/c.0",
            "type",
        ),
    ],
)
def test_a_large_wrong_value_is_explained_with_few_issues_and_little_memory(
    schema: dict[str, Any], value: object, number: int, field: str, code: str
) -> None:
    root = {"properties": {"a": schema}, "$defs": {"list": {"type": "array", "items": INTEGER}}}
    validator = SchemaValidator(root)
    assert not validator.fits({"a": value})
    tracemalloc.start()
    try:
        issues = validator.issues({"a": value})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (len(issues), issues[0].field, issues[0].code) == (number, field, code)
    assert peak < 30_000_000


def test_a_large_value_that_fits_has_no_issues() -> None:
    assert SchemaValidator({"type": "array", "items": INTEGER}).issues([1] * MANY) == []


def test_the_length_of_a_chain_is_checked_before_its_steps() -> None:
    issues = SchemaValidator(INPUT_SCHEMA).issues({"steps": [{"wrong": True}] * 50_000})

    assert [(issue.field, issue.code) for issue in issues] == [("steps", "too_long")]


def test_a_repair_gives_up_where_there_is_too_much_to_repair() -> None:
    assert find_repairs({"items": INTEGER}, ["1"] * MANY) == []
    assert find_repairs({"type": "array"}, "[" + "1," * 3_000_000 + "1]") == []


def test_a_long_text_beside_a_mistake_is_still_repaired() -> None:
    schema = {"properties": {"text": {"anyOf": [{"type": "string"}, INTEGER]}, "number": INTEGER}}
    (repair,) = find_repairs(schema, {"text": "x" * 4_000_000, "number": "1"})

    assert repair.changed == ("number",)


def test_whole_floats_are_converted_in_a_list_of_any_length() -> None:
    schema = {
        "properties": {
            "a": {"items": INTEGER},
            "b": {"additionalProperties": INTEGER, "properties": {"x": {"type": "number"}}},
        }
    }
    converted = IntegerConverter(schema).convert({"a": [5.0, 1] * MANY, "b": {"x": 5.0, "y": 5.0}})

    assert type(converted["a"][-2]) is int
    assert [type(value) for value in converted["b"].values()] == [float, int]
