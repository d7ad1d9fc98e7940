from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel
from table_tests import every_row

from callyard import Call, Envelope, Limits, PublishError, Tool, ToolError, ToolSpec, Yard, tool
from callyard.dispatch.tool import InvalidArgumentsError, check_by_schema, check_tool, encode_arguments
from callyard.model.envelope import encode
from callyard.model.schema import Issue
from callyard.providers.functions import tool_from

WALK: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["steps"],
    "properties": {
        "steps": {"type": "integer", "minimum": 1},
        "pace": {"type": "string", "enum": ["slow", "fast"], "default": "slow"},
        "stops": {"type": "array", "items": {"type": "string"}, "default": ["home"]},
        "anything": True,
    },
}


def make_tool(schema: dict[str, Any] = WALK, **given: Any) -> Tool:
    async def handler(call: Call) -> object:
        return call.arguments

    least: dict[str, Any] = {"name": "walk", "description": "Walk.", "input_schema": schema, "operation": "query"}
    return Tool(spec=ToolSpec(**{**least, **given}), handler=handler, check=check_by_schema(schema))


def checked(what: Tool, arguments: object) -> dict[str, Any]:
    return what.check(encode(arguments))


def issues_of(answer: Envelope) -> list[dict[str, Any]]:
    assert answer.error is not None
    assert answer.error.code == "invalid_input"
    return answer.error.details["issues"]


def test_arguments_that_fit_get_their_defaults() -> None:
    assert checked(make_tool(), {"steps": 5}) == {"steps": 5, "pace": "slow", "stops": ["home"]}
    assert checked(make_tool(), {"steps": 5, "pace": "fast", "anything": None})["pace"] == "fast"


def test_arguments_that_do_not_fit_carry_every_issue() -> None:
    with pytest.raises(InvalidArgumentsError) as caught:
        checked(make_tool(), {"steps": 0, "pace": "medium", "stop": []})

    assert {issue.field: issue.code for issue in caught.value.issues} == {
        "steps": "greater_than_equal",
        "pace": "enum",
        "stop": "extra_forbidden",
    }


@every_row("arguments", [[], "x", 5, True])
def test_arguments_that_are_no_object_do_not_fit(arguments: object) -> None:
    with pytest.raises(InvalidArgumentsError):
        checked(make_tool(), arguments)


class Place(BaseModel):
    city: str


@every_row(
    ("given", "arrived"),
    [
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ((1, 2), [1, 2]),
        ({1}, [1]),
        (Place(city="Rome"), {"city": "Rome"}),
        ({1: 2}, {"1": 2}),
    ],
)
async def test_arguments_are_json_whatever_the_caller_gave(given: object, arrived: object) -> None:
    seen: list[object] = []

    async def handler(call: Call) -> object:
        seen.append(call.arguments["anything"])
        return True

    plain = make_tool()
    walk = Tool(spec=plain.spec, handler=handler, check=plain.check)
    async with Yard(tools=[walk]) as yard:
        answer = await yard.call("walk", {"steps": 1, "anything": given})

    assert answer.success
    assert seen == [arrived]


@every_row("arguments", [{"steps": object()}, {"steps": "\ud800"}, {"steps": 10**5000}, {"steps": 1j}])
async def test_arguments_that_are_no_json_are_refused(arguments: dict[str, Any]) -> None:
    async with Yard(tools=[make_tool()]) as yard:
        answer = await yard.call("walk", arguments)

    assert issues_of(answer) == []
    assert answer.error is not None
    assert "whole characters" in answer.error.hint
    assert "'issues'" not in answer.error.hint


async def test_arguments_that_are_too_long_are_refused() -> None:
    async with Yard(tools=[make_tool()], limits=Limits(argument_bytes=20)) as yard:
        fits = await yard.call("walk", {"steps": 10**9})
        over = await yard.call("walk", {"steps": 10**10})

    assert fits.success
    assert over.error is not None
    assert (over.error.code, over.error.details) == ("too_large", {"bytes": 21, "limit": 20})


async def test_an_issue_inside_a_tuple_has_its_path() -> None:
    @tool
    async def add(numbers: list[int]) -> int:
        """Add."""
        raise AssertionError

    async with Yard(tools=[add]) as yard:
        answer = await yard.call("add", {"numbers": (1, "x")})

    assert [issue["field"] for issue in issues_of(answer)] == ["numbers.1"]


def test_a_default_that_was_changed_is_fresh_for_the_next_call() -> None:
    walk = make_tool()
    checked(walk, {"steps": 1})["stops"].append("pub")

    assert checked(walk, {"steps": 1})["stops"] == ["home"]
    assert WALK["properties"]["stops"]["default"] == ["home"]


def test_a_schema_without_properties_has_no_defaults() -> None:
    assert checked(make_tool({"type": "object", "additionalProperties": False}), {}) == {}


def test_a_valid_tool_passes_the_check() -> None:
    check_tool(make_tool(examples=()), Limits())


def test_an_example_that_does_not_fit_fails_with_the_names_of_tool_and_argument() -> None:
    @tool(examples=[{"steps": 5}, {"steps": "many"}])
    def walk(steps: int) -> int:
        """Walk."""
        return steps

    with pytest.raises(PublishError, match=r"'walk'.* 2 .*'steps'"):
        check_tool(tool_from(walk, source="s"), Limits())


def test_a_default_that_does_not_fit_its_schema_fails_with_the_names_of_tool_and_argument() -> None:
    wrong: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"steps": {"type": "integer", "default": "many"}},
    }

    with pytest.raises(PublishError, match=r"'walk'.*'steps'"):
        check_tool(make_tool(wrong), Limits())
    check_tool(make_tool(wrong), Limits(), foreign=True)


def test_a_default_may_stand_beside_a_reference_to_anywhere_in_the_schema() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "definitions": {"steps": {"type": "integer"}},
        "$defs": {"pace": {"enum": ["slow"]}},
        "required": ["first"],
        "properties": {
            "first": {"type": "integer"},
            "steps": {"$ref": "#/definitions/steps", "default": 1},
            "pace": {"$ref": "#/$defs/pace", "default": "slow"},
            "last": {"$ref": "#/properties/first", "default": 2},
        },
    }

    check_tool(make_tool(schema), Limits())
    assert checked(make_tool(schema), {"first": 1}) == {"first": 1, "steps": 1, "pace": "slow", "last": 2}


def test_a_tool_with_an_invalid_spec_is_refused() -> None:
    with pytest.raises(PublishError, match="'Walk'"):
        check_tool(make_tool(name="Walk"), Limits())
    check_tool(make_tool(name="Walk"), Limits(), foreign=True)


async def test_one_answer_has_every_issue() -> None:
    class Strict(BaseModel, extra="forbid"):
        city: str
        zip_code: int

    @tool
    async def send(place: Strict, count: int, label: str = "x") -> int:
        """Send."""
        raise AssertionError

    async with Yard(tools=[send]) as yard:
        answer = await yard.call("send", {"place": {"zip_code": "many", "cty": "Rome"}, "coutn": 5, "label": 2.5})

    found = {issue["field"]: issue for issue in issues_of(answer)}
    assert {field: issue["code"] for field, issue in found.items()} == {
        "place.city": "missing",
        "place.zip_code": "int_type",
        "place.cty": "extra_forbidden",
        "count": "missing",
        "coutn": "extra_forbidden",
        "label": "string_type",
    }
    assert found["place.city"]["expected"] == {"type": "string"}
    assert found["place.zip_code"]["expected"] == {"type": "integer"}
    assert found["label"]["expected"] == {"type": "string", "default": "x"}
    assert found["place.cty"]["did_you_mean"] == "city"
    assert found["coutn"]["did_you_mean"] == "count"


async def test_a_tool_with_a_json_schema_answers_with_every_issue_too() -> None:
    async with Yard(tools=[make_tool()]) as yard:
        answer = await yard.call("walk", {"pase": "slow", "stops": [1, "x", None]})

    found = {issue["field"]: issue for issue in issues_of(answer)}
    assert {field: issue["code"] for field, issue in found.items()} == {
        "steps": "missing",
        "pase": "extra_forbidden",
        "stops.0": "type",
        "stops.2": "type",
    }
    assert found["steps"]["expected"] == {"type": "integer", "minimum": 1}
    assert found["pase"]["did_you_mean"] == "pace"


@pytest.mark.parametrize(
    ("arguments", "again"),
    [
        ({"steps": None}, "walk(steps=…)"),
        ({"steps": 1, "pase": "slow"}, "walk(pace=…)"),
        ([], "walk(…)"),
    ],
)
async def test_invalid_input_suggests_the_next_call(arguments: Any, again: str) -> None:
    async with Yard(tools=[make_tool()]) as yard:
        answer = await yard.call("walk", arguments)

    assert answer.error is not None
    assert answer.error.next_actions == (again,)


async def test_a_message_names_a_few_fields_and_the_issues_name_all() -> None:
    async with Yard(tools=[make_tool()]) as yard:
        answer = await yard.call("walk", {"steps": 1, **{f"x{number}": 1 for number in range(9)}})

    assert answer.error is not None
    assert len(issues_of(answer)) == 9
    assert "x8" not in answer.error.message + answer.error.hint
    assert answer.error.message.startswith("9 things")


@pytest.mark.parametrize("number", [49, 50, 2000])
async def test_a_message_says_when_not_every_issue_was_counted(number: int) -> None:
    @tool
    async def sum_of(numbers: list[int | list[int]]) -> int:
        """Sum."""
        raise AssertionError

    async with Yard(tools=[make_tool(), sum_of]) as yard:
        by_schema = await yard.call("walk", {"steps": 1, "stops": [[]] * number})
        by_signature = await yard.call("sum_of", {"numbers": ["x"] * number})

    for answer in (by_schema, by_signature):
        assert answer.error is not None
        assert len(issues_of(answer)) == min(number, 50)
        assert answer.error.message.startswith("At least 50 things" if number >= 50 else "49 things")


async def test_an_answer_stays_short_however_much_is_wrong_with_the_arguments() -> None:
    @tool
    async def add(numbers: list[int]) -> int:
        """Add."""
        raise AssertionError

    numbers = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"numbers": {"type": "array", "items": {"type": "integer"}}},
    }
    for add_up in (add, make_tool(numbers, name="add")):
        async with Yard(tools=[add_up]) as yard:
            answer = await yard.call("add", {"numbers": ["x"] * 1000})
        assert len(issues_of(answer)) == 50
        assert len(answer.to_json()) < 10_000


async def test_a_large_part_of_a_schema_is_cut_down_to_its_type() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"word": {"type": "string", "enum": [f"word {number}" for number in range(500)]}},
    }
    async with Yard(tools=[make_tool(schema)]) as yard:
        answer = await yard.call("walk", {"word": "no such word"})

    [issue] = issues_of(answer)
    assert issue["expected"] == {"type": "string"}


async def test_a_large_part_of_a_schema_without_a_type_is_left_out() -> None:
    choices = [
        {"type": "string", "enum": [f"word {number}" for number in range(500)]},
        {"type": "integer", "maximum": 3},
    ]
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"word": {"anyOf": choices}},
    }
    async with Yard(tools=[make_tool(schema)]) as yard:
        answer = await yard.call("walk", {"word": []})

    [issue] = issues_of(answer)
    assert issue.get("expected", {}).get("type") != "object"
    assert len(encode(issue)) < 2000


async def test_an_expected_schema_can_be_read_without_the_rest_of_the_schema() -> None:
    class Node(BaseModel):
        name: str
        children: list["Node"] = []

    @tool
    async def plant(tree: Node | None, trees: list[Node]) -> int:
        """Plant."""
        raise AssertionError

    async with Yard(tools=[plant]) as yard:
        answer = await yard.call("plant", {"tree": 5, "trees": "x"})

    assert {issue["field"] for issue in issues_of(answer)} == {"tree", "trees"}
    assert "$ref" not in str(issues_of(answer))
    assert "name" in str(issues_of(answer)[0]["expected"])


def test_issues_are_answered_unchanged_unless_they_are_large() -> None:
    walk = make_tool()
    small = Issue("steps", "missing", "…", {"type": "integer"}, "step")

    with pytest.raises(Exception, match="…") as caught:
        walk.repair(b"{}", [small], enabled=False)

    assert getattr(caught.value, "details", {})["issues"] == [small]


def test_a_handler_may_be_any_function_of_a_call() -> None:
    def handler(call: Call) -> Awaitable[object]:
        raise AssertionError(call)

    spec = make_tool().spec
    whole = Tool(spec=spec, handler=handler, check=check_by_schema(WALK))

    assert (whole.spec, whole.fits_output, whole.may_return_none) == (spec, None, False)


def test_arguments_of_too_many_values_are_refused_before_they_are_decoded() -> None:
    text = b'{"a":[' + b"1," * 500_001 + b"1]}"

    with pytest.raises(ToolError) as caught:
        encode_arguments(msgspec.Raw(text), 10_000_000)

    assert (caught.value.code, caught.value.details["limit"]) == ("too_large", 500_000)


def test_commas_in_texts_are_no_values() -> None:
    text = b'{"a":"' + b'1,\\",' * 500_000 + b'"}'

    assert encode_arguments(msgspec.Raw(text), 10_000_000) == text
