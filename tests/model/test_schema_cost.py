"""The cost of a schema is known before a validator is compiled, which might never end."""

from typing import Any

import pytest
from table_tests import every_row

from callyard.model.schema import SchemaError, SchemaValidator, check_schema
from callyard.model.schema_cost import schema_cost


def levels(number: int, copies: int = 2, **more: Any) -> dict[str, Any]:
    """Return a schema whose definitions each refer to the next one several times."""
    definitions: dict[str, Any] = {
        f"d{index}": {"allOf": [{"$ref": f"#/$defs/d{index + 1}"} for _ in range(copies)], **more}
        for index in range(number)
    }
    return {"$defs": {**definitions, f"d{number}": {"type": "object"}}, "$ref": "#/$defs/d0"}


def check(schema: dict[str, Any]) -> None:
    check_schema(schema, max_bytes=256 * 1024, max_depth=64)


BOMBS: list[dict[str, Any]] = [
    levels(40),
    {**levels(40), "unevaluatedProperties": False},
    levels(18, 1, unevaluatedProperties={"$ref": "#/$defs/d18"}),
    levels(1000, 1, unevaluatedProperties=False),
    levels(500, 1),
    {"anyOf": [{} for _ in range(6000)]},
    {"properties": {f"p{index}": {"pattern": f"^{index}(a|b)*$"} for index in range(600)}},
    {"$id": "https://a.test/root", "$defs": {"x": {"$id": "x", **levels(30)}}, "$ref": "x"},
    {
        "$defs": {"x": {"$anchor": "here", "allOf": [{"$ref": "#/$defs/y"}] * 3}, "y": levels(20)["$defs"]["d0"]},
        "$ref": "#here",
    }
    | {"$defs": {**levels(20)["$defs"], "x": {"$anchor": "here", "allOf": [{"$ref": "#/$defs/d0"}]}}},
]


@every_row("schema", BOMBS)
def test_a_schema_that_a_validator_would_not_finish_is_refused_at_once(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        check(schema)


HONEST: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {f"p{index}": {"$ref": "#/$defs/text"} for index in range(4000)},
        "$defs": {"text": {"type": "string"}},
    },
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}},
    {
        "oneOf": [{"$ref": f"#/$defs/r{index}"} for index in range(150)],
        "$defs": {f"r{index}": {"type": "object"} for index in range(150)},
    },
    {"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}}], "unevaluatedProperties": False},
    {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    {"$ref": "#"},
]


@every_row("schema", HONEST)
def test_an_honest_schema_passes_however_large_or_recursive(schema: dict[str, Any]) -> None:
    check(schema)


def test_schemas_of_other_places_of_a_value_cost_nothing_more() -> None:
    tree = {
        f"d{index}": {"properties": {side: {"$ref": f"#/$defs/d{index + 1}"} for side in ("left", "right")}}
        for index in range(60)
    }

    assert schema_cost({"$defs": {**tree, "d60": {}}, "$ref": "#/$defs/d0"}).applied <= 2


def test_a_match_that_goes_back_too_often_fails_the_value() -> None:
    assert not SchemaValidator({"type": "string", "pattern": r"(a*)*\1b"}).fits("a" * 40 + "c")
