from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from toolyard import Operation, Yard, tool
from toolyard.model.spec import ToolSpec
from toolyard.search import SearchSettings
from toolyard.search.text import Fields, fields_of

PAINT: dict[str, Any] = {"properties": {"lacquer": {}}}


def read(schema: dict[str, Any]) -> Fields:
    return fields_of(ToolSpec(name="one", description="", input_schema=schema, operation=Operation.QUERY))


def names(schema: dict[str, Any]) -> list[str]:
    return read(schema).parameters.split()


def choices(parameter: dict[str, Any], **definitions: Any) -> list[str]:
    return read({"properties": {"one": parameter}, "$defs": definitions}).choices.split()


@pytest.mark.parametrize("strategy", ["lexical", "bm25"])
async def test_what_models_hold_is_found(strategy: str) -> None:
    class Colour(Enum):
        CRIMSON = "crimson"
        TURQUOISE = "turquoise"

    class Paint(BaseModel):
        lacquer: str = Field(description="Name of the varnish.")
        tint: Colour

    class Mode(BaseModel):
        wobble: int

    @tool(operation="query")
    async def apply(job: Paint, others: list[Paint] | None = None) -> str:
        """Do the work."""
        return f"{job} {others}"

    @tool(operation="query")
    async def other(mode: Mode | None = None, fruit: tuple[Literal["pineapple"], ...] = (), sizes: dict[str, Paint] | None = None) -> str:
        """Do the rest."""
        return f"{mode} {fruit} {sizes}"

    async with Yard(tools=[apply, other], search=SearchSettings(strategy=strategy)) as yard:

        async def found(query: str) -> list[str]:
            answer = await yard.call("search_tools", {"query": query})
            return sorted(hit["signature"].partition("(")[0] for hit in answer.data["hits"])

        assert await found("lacquer") == await found("varnish") == await found("turquoise") == ["apply", "other"]
        assert await found("wobble") == await found("pineapple") == ["other"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Paint"},
        {"allOf": [{"$ref": "#/$defs/Paint"}]},
        {"anyOf": [{"$ref": "#/$defs/Paint"}, {"type": "null"}]},
        {"properties": None, "oneOf": [{"allOf": [PAINT]}]},
    ],
)
def test_a_schema_that_is_all_branches_has_their_parameters(schema: dict[str, Any]) -> None:
    assert names(schema | {"$defs": {"Paint": PAINT}}) == ["lacquer"]


@pytest.mark.parametrize(
    "parameter",
    [
        {"$ref": "#/$defs/Paint"},
        {"$ref": "#/$defs/Again"},
        {"allOf": [{"$ref": "#/$defs/Paint"}]},
        {"items": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Paint"}]}},
        {"items": {"items": {"$ref": "#/$defs/Paint"}}},
        {"prefixItems": [{"type": "string"}, {"$ref": "#/$defs/Paint"}]},
        {"additionalProperties": {"$ref": "#/$defs/Paint"}},
    ],
)
def test_a_parameter_has_what_is_behind_references_branches_and_items(parameter: dict[str, Any]) -> None:
    definitions = {"Paint": PAINT, "Again": {"$ref": "#/$defs/Paint"}}

    assert names({"properties": {"job": parameter}, "$defs": definitions}) == ["job", "lacquer"]


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ({"const": "gently"}, ["gently"]),
        ({"const": 3}, []),
        ({"items": {"enum": ["gently", "roughly"]}}, ["gently", "roughly"]),
        ({"oneOf": [{"const": "gently"}, {"const": "roughly"}]}, ["gently", "roughly"]),
        ({"anyOf": [{"enum": ["gently", 3]}, {"type": "null"}]}, ["gently"]),
        ({"$ref": "#/$defs/How"}, ["roughly"]),
        ({"enum": [f"value{number}" for number in range(40)]}, [f"value{number}" for number in range(32)]),
        ({"oneOf": [{"const": f"value{number}"} for number in range(40)]}, [f"value{number}" for number in range(32)]),
    ],
)
def test_the_values_that_a_parameter_may_take_are_read_wherever_they_stand(parameter: dict[str, Any], values: list[str]) -> None:
    assert choices(parameter, How={"enum": ["roughly"]}) == values


def test_what_is_said_beside_a_reference_and_behind_it_is_read() -> None:
    job = {"$ref": "#/$defs/Job", "description": "What is done."}
    schema = {"properties": {"job": job}, "$defs": {"Job": {"description": "A piece of work."}}}

    assert read(schema).parameter_texts == "What is done. A piece of work."


def test_a_definition_is_read_once_however_often_it_is_referred_to() -> None:
    node = {"properties": {"label": {}, "children": {"items": {"$ref": "#/$defs/Node"}}}}

    assert names({"properties": {"tree": {"$ref": "#/$defs/Node"}, "hedge": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}) == [
        "tree",
        "hedge",
        "label",
        "children",
    ]


def test_a_definition_is_read_where_it_is_least_deep() -> None:
    """One that stands so deep that its own parameters are not read is read where it stands higher up."""
    deep = {"properties": {"b": {"properties": {"c": {"properties": {"d": {"$ref": "#/$defs/Low"}}}}}}}
    schema = {"properties": {"a": deep, "e": {"$ref": "#/$defs/Low"}}, "$defs": {"Low": PAINT}}

    assert names(schema) == ["a", "e", "b", "lacquer", "c", "d"]


def test_objects_in_objects_are_read_so_deep_and_no_deeper() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return {"properties": {f"level{depth}": {"allOf": [nested(depth + 1)]}}} if depth < 9 else {}

    assert names(nested(0)) == ["level0", "level1", "level2", "level3"]


@pytest.mark.parametrize(
    "parameter",
    [
        {"$ref": "#/$defs/Nowhere"},
        {"$ref": "#/properties/one"},
        {"$ref": "#"},
        {"$ref": "https://example.com/schema"},
        {"$ref": 3},
        {"$ref": "#/$defs/Odd"},
        {"anyOf": "text", "items": [], "prefixItems": {}, "additionalProperties": False},
        {"allOf": [None, True, 3, {"allOf": {"properties": 3}}]},
    ],
)
def test_a_schema_that_is_not_a_correct_one_is_read_as_far_as_it_can_be(parameter: dict[str, Any]) -> None:
    assert names({"properties": {"one": parameter}, "$defs": {"Odd": True}}) == ["one"]


def test_references_that_double_at_every_step_come_to_an_end() -> None:
    definitions: dict[str, Any] = {f"D{number}": {"anyOf": [{"$ref": f"#/$defs/D{number + 1}"} for _ in range(2)]} for number in range(20)}
    definitions["D20"] = PAINT

    assert names({"properties": {"job": {"$ref": "#/$defs/D0"}}, "$defs": definitions}) == ["job", "lacquer"]


def test_a_parameter_with_very_many_branches_is_read_only_in_part() -> None:
    many: list[dict[str, Any]] = [PAINT, *({"type": "null"} for _ in range(100)), {"properties": {"varnish": {}}}]

    assert names({"properties": {"job": {"anyOf": many}, "other": {"anyOf": many[-1:]}}}) == ["job", "other", "lacquer", "varnish"]
