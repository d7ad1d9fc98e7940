"""Tools as Python stubs: types, defaults and names."""

import ast
from typing import Any

from table_tests import every_row

from callyard.model.signature import identifier, stub, stub_path
from callyard.model.spec import Operation, ToolSpec


def spec_of(properties: dict[str, Any], *, required: tuple[str, ...] = (), output: Any = None, **more: Any) -> ToolSpec:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(required)}
    facts: dict[str, Any] = {
        "name": "find",
        "description": "Find it.",
        "source": "shop",
        "operation": Operation.QUERY,
        **more,
    }
    return ToolSpec(input_schema=schema, output_schema=output, **facts)


@every_row(
    ("name", "spelled"),
    [("add", "add"), ("class", "class_"), ("2fa", "_2fa"), ("my-shop", "my_shop"), ("é", "_"), ("a.b", "a_b")],
)
def test_a_name_is_spelled_as_an_identifier(name: str, spelled: str) -> None:
    assert identifier(name) == spelled
    assert spelled.isidentifier()


def test_the_namespace_is_not_repeated_in_the_name() -> None:
    assert stub_path(spec_of({}, name="my_shop__find", source="my-shop")) == ("my_shop", "find")


@every_row(
    ("schema", "written"),
    [
        ({"type": "string"}, "str"),
        ({"type": ["integer", "null"]}, "int | None"),
        ({"type": "array", "items": {"type": "number"}}, "list[float]"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "dict[str, bool]"),
        ({"properties": {"a": {}}}, "dict[str, Any]"),
        ({"enum": ["a", "b"]}, "Literal['a', 'b']"),
        ({"const": 1}, "Literal[1]"),
        ({"enum": list(range(20))}, "int"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "str | None"),
        ({}, "Any"),
        (True, "Any"),
    ],
)
def test_a_schema_is_written_as_a_type(schema: Any, written: str) -> None:
    assert f"(*, x: {written}) -> Any:" in stub(spec_of({"x": schema}, required=("x",)))


def test_required_parameters_come_first_and_others_have_defaults() -> None:
    spec = spec_of(
        {"a": {"type": "integer", "default": 3}, "b": {"type": "string"}, "c": {}, "d": {"default": "x" * 300}},
        required=("b",),
    )
    assert "(*, b: str, a: int = 3, c: Any = ..., d: Any = ...)" in stub(spec)


def test_a_parameter_that_is_no_identifier_is_one_of_the_others() -> None:
    assert "(*, a: int = ..., **more: Any)" in stub(
        spec_of({"a": {"type": "integer"}, "in": {"type": "string"}, "x-y": {}})
    )


def test_a_stub_is_valid_python_whatever_the_description_says() -> None:
    written = stub(
        spec_of(
            {"a": {}}, description='Say """hi""" \\ and\nmore.', output={"type": "array", "items": {"type": "string"}}
        )
    )
    function = ast.parse(written).body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    assert ast.unparse(function.returns or ast.Constant(None)) == "list[str]"
