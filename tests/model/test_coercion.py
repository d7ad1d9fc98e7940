import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from table_tests import every_row
from typing_extensions import TypedDict

from callyard import Call, Envelope, Limits, Operation, Tool, ToolSpec, Yard, tool
from callyard.dispatch.tool import check_by_schema
from callyard.model.coercion import IntegerConverter, find_repairs
from callyard.providers.functions import tool_from

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


class Filter(TypedDict):
    limit: int
    words: list[str]


class Deep(BaseModel):
    filters: list[Filter]


@tool
async def take(
    *,
    number: int = 0,
    price: float = 0,
    flag: bool = False,
    word: str = "",
    maybe: int | None = None,
    words: list[str] | None = None,
    numbers: dict[str, int] | None = None,
    choice: Literal["1", "2"] = "1",
    level: Literal[1, 2] = 1,
    filter: Filter | None = None,  # noqa: A002 - a name that people give
    deep: Deep | None = None,
    either: int | str = 0,
    small: Annotated[int, Field(le=10)] = 0,
) -> Any:
    """Take anything."""
    return {"number": number, "deep": deep}


def by_schema() -> Tool:
    """Return the same tool as one that came with nothing but its JSON Schema."""
    schema = tool_from(take, source="yard").spec.input_schema

    async def handler(call: Call) -> object:
        return call.arguments

    spec = ToolSpec(name="take", description="Take.", input_schema=schema, operation=Operation.COMMAND)
    return Tool(spec=spec, handler=handler, check=check_by_schema(schema))


def by_function() -> Tool:
    made = tool_from(take, source="yard")

    async def handler(call: Call) -> object:
        return {
            name: value.model_dump() if isinstance(value, BaseModel) else value
            for name, value in call.arguments.items()
        }

    return Tool(spec=made.spec, handler=handler, check=made.check)


@pytest.fixture(params=[by_function, by_schema], ids=["function", "schema"])
def call(request: pytest.FixtureRequest) -> Callable[..., Awaitable[Envelope]]:
    make: Callable[[], Tool] = request.param

    async def run(arguments: Any, **limits: Any) -> Envelope:
        async with Yard(tools=[make()], limits=Limits(**limits)) as yard:
            return await yard.call("take", arguments)

    return run


Run = Callable[..., Awaitable[Envelope]]
REPAIRED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"number": "5"}, {"number": 5}, ["number"]),
    ({"number": " -5 "}, {"number": -5}, ["number"]),
    ({"number": "5.0"}, {"number": 5}, ["number"]),
    ({"price": "2.5"}, {"price": 2.5}, ["price"]),
    ({"flag": "true"}, {"flag": True}, ["flag"]),
    ({"flag": "False"}, {"flag": False}, ["flag"]),
    ({"word": 5}, {"word": "5"}, ["word"]),
    ({"maybe": "7"}, {"maybe": 7}, ["maybe"]),
    ({"maybe": "null"}, {"maybe": None}, ["maybe"]),
    ({"maybe": "None"}, {"maybe": None}, ["maybe"]),
    ({"words": '["a", "b"]'}, {"words": ["a", "b"]}, ["words"]),
    ({"words": ["a", 5]}, {"words": ["a", "5"]}, ["words.1"]),
    ({"words": '["a", 5]'}, {"words": ["a", "5"]}, ["words", "words.1"]),
    ({"numbers": {"a": "1", "b": 2}}, {"numbers": {"a": 1, "b": 2}}, ["numbers.a"]),
    ({"choice": 2}, {"choice": "2"}, ["choice"]),
    ({"level": "2"}, {"level": 2}, ["level"]),
    (
        {"filter": '{"limit": "3", "words": "[]"}'},
        {"filter": {"limit": 3, "words": []}},
        ["filter", "filter.limit", "filter.words"],
    ),
    (
        {"deep": {"filters": [{"limit": "3", "words": ["x"]}, '{"limit": 4, "words": [5]}']}},
        {"deep": {"filters": [{"limit": 3, "words": ["x"]}, {"limit": 4, "words": ["5"]}]}},
        ["deep.filters.0.limit", "deep.filters.1", "deep.filters.1.words.0"],
    ),
    ({"number": "5", "word": 6, "flag": "true"}, {"number": 5, "word": "6", "flag": True}, ["number", "word", "flag"]),
    ({"either": "5", "number": "7"}, {"either": "5", "number": 7}, ["number"]),
    ({"maybe": None, "number": "7"}, {"maybe": None, "number": 7}, ["number"]),
    ({"number": None}, {"number": 0}, ["number"]),
    ({"number": "5", "word": None}, {"number": 5, "word": ""}, ["number", "word"]),
    ({"choice": None, "either": None}, {"choice": "1", "either": 0}, ["choice", "either"]),
]


@every_row(("given", "meant", "coerced"), REPAIRED, ids=[json.dumps(row[0]) for row in REPAIRED])
async def test_common_mistakes_of_models_are_corrected_and_reported(
    call: Run, given: dict[str, Any], meant: dict[str, Any], coerced: list[str]
) -> None:
    answer = await call(given)

    assert answer.success
    assert {name: answer.data[name] for name in meant} == meant
    assert {name: type(answer.data[name]) for name in meant} == {name: type(value) for name, value in meant.items()}
    assert sorted(answer.meta.coerced) == sorted(coerced)


@every_row(("given", "meant", "coerced"), REPAIRED, ids=[json.dumps(row[0]) for row in REPAIRED])
async def test_nothing_is_put_right_where_that_is_switched_off(
    call: Run, given: dict[str, Any], meant: dict[str, Any], coerced: list[str]
) -> None:
    answer = await call(given, repair=False)

    assert answer.error is not None, (meant, coerced)
    assert answer.error.code == "invalid_input"


async def test_a_whole_number_as_text_is_a_number_where_any_number_will_do(call: Run) -> None:
    answer = await call({"price": "5"})

    assert answer.data["price"] == 5
    assert answer.meta.coerced == ("price",)


async def test_a_whole_number_written_as_a_fraction_is_that_number(call: Run) -> None:
    answer = await call({"number": 5.0})

    assert answer.data["number"] == 5


REFUSED: list[dict[str, Any]] = [
    {"number": "five"},
    {"number": "5.5"},
    {"number": ""},
    {"number": "NaN"},
    {"number": "Infinity"},
    {"number": "1e400"},
    {"number": "[5]"},
    {"number": True},
    {"number": [5]},
    {"number": "9" * 5000},
    {"price": "NaN"},
    {"price": "-Infinity"},
    {"flag": "yes"},
    {"flag": 1},
    {"flag": "1"},
    {"flag": "maybe"},
    {"word": True},
    {"word": 5.5},
    {"words": "a, b"},
    {"words": '{"a": 1}'},
    {"words": [None]},
    {"numbers": '{"a": "x"}'},
    {"filter": '{"limit": 3}'},
    {"filter": "{limit: 3}"},
    {"filter": {}},
    {"choice": "3"},
    {"level": "3"},
    {"small": "11"},
    {"numbers": {"a": None}},
    {"filter": {"limit": None, "words": []}},
    {"number": "5", "filter": {"limit": None, "words": []}},
    {"nmber": "5"},
    {"nmber": None},
    {"words": "[" * 100_000},
]


@every_row("given", REFUSED, ids=[json.dumps(row)[:40] for row in REFUSED])
async def test_a_value_without_a_valid_reading_is_refused_unchanged(call: Run, given: dict[str, Any]) -> None:
    answer = await call(given)

    assert answer.error is not None
    assert answer.error.code == "invalid_input"
    assert answer.error.details["issues"]


async def test_a_value_with_two_valid_readings_is_refused() -> None:
    @tool
    async def pick(number: int | float | bool) -> object:  # noqa: PYI041, FBT001 - the point is the choice
        """Pick."""
        return number

    async with Yard(tools=[pick]) as yard:
        answer = await yard.call("pick", {"number": "5.0"})

    assert answer.error is not None
    assert answer.error.code == "invalid_input"


async def test_half_a_character_is_no_reading() -> None:
    @tool
    async def pick(x: Literal["a", "b"] | Literal["c", "d"]) -> str:  # noqa: PYI030 - two choices of two
        """Pick."""
        return x

    async with Yard(tools=[pick]) as yard:
        answer = await yard.call("pick", {"x": '"\\ud800"'})

    assert answer.error is not None
    assert answer.error.code == "invalid_input"


def test_two_readings_are_two_also_inside_an_object() -> None:
    schema = {"anyOf": [{"type": "object", "properties": {"a": {"type": kind}}} for kind in ("integer", "number")]}

    assert [reading.value for reading in find_repairs(schema, {"a": "5.0"})] == [{"a": 5}, {"a": 5.0}]
    assert [type(reading.value["a"]) for reading in find_repairs(schema, {"a": "5.0"})] == [int, float]


def test_too_many_readings_are_none() -> None:
    either = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    schema = {"type": "object", "properties": dict.fromkeys("abcd", either)}

    assert find_repairs(schema, dict.fromkeys("abc", "5"))
    assert find_repairs(schema, dict.fromkeys("abcd", "5")) == []


def test_too_many_readings_of_several_choices_are_none() -> None:
    either = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    one: dict[str, Any] = {"type": "object", "properties": dict.fromkeys("abc", either)}
    other: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "number"}}}
    value = {"a": "5.0", "b": "5", "c": "5"}

    assert len(find_repairs(one, value)) == 7
    assert len(find_repairs(other, value)) == 1
    assert find_repairs({"anyOf": [one, other]}, value) == []


def test_a_reading_is_found_after_many_choices_that_read_the_same() -> None:
    schema: dict[str, Any] = {"anyOf": [*({"const": str(number)} for number in range(20)), {"type": "integer"}]}

    assert [reading.value for reading in find_repairs(schema, "77")] == [77]


def test_a_valid_value_needs_no_repair() -> None:
    assert find_repairs({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 5, "b": [1]}) == []
    assert find_repairs({}, "5") == []


@every_row(
    ("schema", "value", "meant"),
    [
        ({"type": ["integer", "null"]}, "5", 5),
        ({"type": ["integer", "null"]}, "null", None),
        ({"const": 5}, "5", 5),
        ({"enum": [1, 2, None]}, "2", 2),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "true", True),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "5", 5),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"x": "5"}, {"x": 5}),
        ({"type": "array", "items": {"type": "integer"}}, ["5", 6], [5, 6]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, ["5", "6"], [5, "6"]),
        ({"type": "integer"}, 5.0, 5),
    ],
)
def test_a_reading_follows_the_schema(schema: dict[str, Any], value: object, meant: object) -> None:
    [reading] = find_repairs(schema, value)

    assert reading.value == meant
    assert type(reading.value) is type(meant)


@every_row(
    ("schema", "value"),
    [
        ({"type": "integer"}, 2.0**60),
        ({"type": "integer"}, 5.5),
        ({"type": "string"}, True),
        ({"type": "array", "items": {"type": "integer"}}, ["5", "x"]),
        ({"type": "array", "items": False}, ["5"]),
    ],
)
def test_a_value_without_a_reading_has_no_repair(schema: dict[str, Any], value: object) -> None:
    assert find_repairs(schema, value) == []


def test_very_deep_arguments_are_read_only_so_far() -> None:
    schema: dict[str, Any] = {
        "$defs": {"list": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "integer"}]}}}
    }
    schema["$ref"] = "#/$defs/list"
    shallow: Any = ["5"]
    deep: Any = ["5"]
    for _ in range(100):
        deep = [deep]

    assert find_repairs(schema, shallow)
    assert find_repairs(schema, deep) == []


def test_very_many_arguments_are_not_read_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    looked: list[object] = []

    def look(root: Any, node: object) -> Any:
        looked.append(root)
        return node

    monkeypatch.setattr("callyard.model.coercion.resolve", look)

    assert find_repairs(schema, ["5"] * 1000)
    looked.clear()
    assert find_repairs(schema, ["5"] * 50_000) == []
    assert len(looked) <= 20_000


async def test_very_much_that_was_put_right_is_said_in_few_words() -> None:
    @tool
    async def add(numbers: list[int]) -> int:
        """Add."""
        return sum(numbers)

    async with Yard(tools=[add]) as yard:
        answer = await yard.call("add", {"numbers": ["5"] * 1000})

    assert answer.data == 5000 or answer.error is not None
    assert len(answer.to_json()) < 10_000


def test_a_schema_that_goes_in_circles_is_read_only_so_far() -> None:
    schema: dict[str, Any] = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}

    assert find_repairs(schema, "5") == []


@given(JSON, JSON)
def test_reading_never_fails_and_never_changes_what_it_reads(value: Any, default: Any) -> None:
    before = json.dumps(value)
    schema = {
        "anyOf": [
            {"type": "integer"},
            {"type": "object", "additionalProperties": {"type": "boolean"}},
            {"const": default},
        ]
    }

    for reading in find_repairs(schema, value):
        assert reading.changed

    assert json.dumps(value) == before


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


@every_row(
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
    put = IntegerConverter({**schema, "$defs": {"count": WHOLE}}).convert(5.0)

    assert (put, type(put)) == (5, int)


@every_row(
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
    assert type(IntegerConverter(schema).convert(5.0)) is float


def test_it_is_found_inside_objects_and_lists() -> None:
    schema = {
        "properties": {"page": WHOLE, "price": ANY, "pairs": {"items": {"prefixItems": [WHOLE, ANY], "items": WHOLE}}},
        "additionalProperties": {"anyOf": [{"type": "string"}, WHOLE]},
    }

    put = IntegerConverter(schema).convert(
        {"page": 2.0, "price": 3.0, "pairs": [[1.0, 1.0, 1e2]], "more": 4.0, "word": "5.0"}
    )

    assert kinds(put) == {"page": int, "price": float, "pairs": [[int, float, int]], "more": int, "word": str}


def test_a_schema_that_refers_to_itself_is_followed_as_far_as_the_value_goes() -> None:
    tree: dict[str, Any] = {"size": 1.0, "weight": 1.0}
    for _ in range(100):
        tree = {"size": 1.0, "weight": 1.0, "inner": tree}

    put = IntegerConverter({**LOOP, "$defs": {"tree": TREE}}).convert(tree)

    assert put == tree
    assert kinds(put["inner"]["inner"]["size"]) is int
    assert kinds(put["inner"]["inner"]["weight"]) is float


@given(
    st.recursive(
        st.integers() | st.text() | st.just(0.5), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_value_without_whole_floats_is_the_same_object(value: Any) -> None:
    assert IntegerConverter(WHOLE).convert(value) is value


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
