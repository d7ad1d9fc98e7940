from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard.model.schema import SchemaValidator, is_plain, plainly_fits

WORDS = st.sampled_from(["a", "b", "type", "items", "$ref"])
NUMBERS = st.integers() | st.floats() | st.booleans()
JSON = st.recursive(
    st.none() | NUMBERS | WORDS | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS | st.integers(), inner, max_size=2),
    max_leaves=4,
)
VALUES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | WORDS | st.lists(st.integers(0, 1), max_size=2)
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
    if is_plain(schema):
        SchemaValidator(schema).fits(None)  # raises for what is no schema


@given(schemas_of(SCHEMAS), VALUES)
def test_what_plainly_fits_does_fit(schema: dict[str, Any], value: object) -> None:
    if is_plain(schema) and plainly_fits(schema, value):
        assert SchemaValidator(schema).fits(value)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object", "properties": {"a": {"type": "string", "title": "A", "description": "The a."}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": True}, "required": ["a"], "additionalProperties": {"type": ["boolean", "null"]}},
        {"type": "array", "items": {"anyOf": [{"const": {"a": [1, None]}}, {"type": "null"}]}, "minItems": 1, "maxItems": 2},
        {"type": "integer", "minimum": -1, "maximum": 1.5, "exclusiveMinimum": -2, "exclusiveMaximum": 2, "default": 1, "examples": [1]},
        {"enum": ["a", "b"], "minLength": 0, "maxLength": 9},
    ],
)
def test_what_people_write_is_plain(schema: object) -> None:
    assert is_plain(schema)


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


@pytest.mark.parametrize("schema", NOT_PLAIN)
def test_what_is_wrong_or_takes_a_closer_look_is_not_plain(schema: object) -> None:
    assert not is_plain(schema)


@pytest.mark.parametrize(
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
    assert plainly_fits(schema, value)


@pytest.mark.parametrize(
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
def test_what_does_not_fit_or_takes_a_closer_look_does_not_plainly_fit(schema: dict[str, Any], value: object) -> None:
    assert not plainly_fits(schema, value)
