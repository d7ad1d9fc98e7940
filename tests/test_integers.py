from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard import Call, Operation, Tool, ToolSpec, Yard
from toolyard.dispatch.tool import check_by_schema
from toolyard.model.coercion import Integers

WHOLE: dict[str, Any] = {"type": "integer"}
ANY: dict[str, Any] = {"type": "number"}
LOOP: dict[str, Any] = {"$ref": "#/$defs/tree"}
TREE: dict[str, Any] = {"properties": {"size": WHOLE, "weight": ANY, "inner": LOOP}}


def kinds(value: Any) -> Any:
    """Return a value with types in place of its numbers."""
    if isinstance(value, list):
        return [kinds(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in cast("dict[str, Any]", value).items()}
    return cast("type[Any]", type(value))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"allOf": [{"minimum": 1}, {"type": "integer"}]},
        {"$ref": "#/$defs/count"},
        {"anyOf": [{"$ref": "#/$defs/count"}, {"$ref": "#"}]},
    ],
)
def test_a_whole_number_with_a_point_is_an_integer_where_the_schema_says_so(schema: dict[str, Any]) -> None:
    put = Integers({**schema, "$defs": {"count": WHOLE}}).put(5.0)

    assert (put, type(put)) == (5, int)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": ["integer", "number"]},
        {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        {"enum": [5, "integer"]},
        {"properties": {"type": WHOLE}},
        {"$ref": "https://example.com/elsewhere", "title": "integer"},
        {"anyOf": [True], "title": "integer"},
        {},
        True,
    ],
)
def test_it_stays_as_it_is_where_the_schema_says_anything_else(schema: Any) -> None:
    assert type(Integers(schema).put(5.0)) is float


def test_it_is_found_inside_objects_and_lists() -> None:
    schema = {
        "properties": {"page": WHOLE, "price": ANY, "pairs": {"items": {"prefixItems": [WHOLE, ANY], "items": WHOLE}}},
        "additionalProperties": {"anyOf": [{"type": "string"}, WHOLE]},
    }

    put = Integers(schema).put({"page": 2.0, "price": 3.0, "pairs": [[1.0, 1.0, 1e2]], "more": 4.0, "word": "5.0"})

    assert kinds(put) == {"page": int, "price": float, "pairs": [[int, float, int]], "more": int, "word": str}


def test_a_schema_that_refers_to_itself_is_followed_as_far_as_the_value_goes() -> None:
    tree: dict[str, Any] = {"size": 1.0, "weight": 1.0}
    for _ in range(100):
        tree = {"size": 1.0, "weight": 1.0, "inner": tree}

    put = Integers({**LOOP, "$defs": {"tree": TREE}}).put(tree)

    assert put == tree
    assert kinds(put["inner"]["inner"]["size"]) is int
    assert kinds(put["inner"]["inner"]["weight"]) is float


@given(st.recursive(st.integers() | st.text() | st.just(0.5), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_holds_no_such_number_is_the_same_value(value: Any) -> None:
    assert Integers(WHOLE).put(value) is value


async def test_the_handler_of_a_tool_with_a_ready_schema_gets_integers() -> None:
    properties = {"count": {**WHOLE, "default": 2.0}, "size": WHOLE, "price": ANY}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}

    async def handler(call: Call) -> object:
        return {name: type(value).__name__ for name, value in call.arguments.items()}

    spec = ToolSpec(name="order", description="Order.", input_schema=schema, operation=Operation.QUERY)
    async with Yard(tools=[Tool(spec=spec, handler=handler, check=check_by_schema(schema))]) as yard:
        answer = await yard.call("order", {"size": 3.0, "price": 4.0})

    assert answer.data == {"count": "int", "size": "int", "price": "float"}
    assert answer.meta.coerced == ()
