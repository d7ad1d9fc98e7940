from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, NotRequired, Self
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, Field, field_validator, model_validator
from table_tests import every_row
from typing_extensions import TypedDict

from callyard import PublishError, Tool
from callyard.dispatch.tool import InvalidArgumentsError
from callyard.model.envelope import encode
from callyard.model.schema import Issue
from callyard.providers.functions import tool_from
from callyard.providers.functions.pydantic import pydantic_schema

_NONE: Any = object()


class Odd:
    """What no schema describes."""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Address(BaseModel):
    """Where somebody lives."""

    city: str = Field(description="The town.")
    zip_code: int = Field(default=0, ge=0, alias="zip")


class Person(BaseModel, extra="forbid"):
    name: str
    home: Address | None = None
    friends: list["Person"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list[str])


class Window(TypedDict, total=False):
    width: int
    title: str


class Pair(NamedTuple):
    left: int
    right: str


def taking(annotation: Any, default: Any = _NONE) -> Tool:
    """Return a tool that takes one argument."""

    def walk(what: Any) -> Any:
        """Walk."""
        raise AssertionError(what)

    walk.__annotations__["what"] = annotation
    if default is not _NONE:
        walk.__defaults__ = (default,)
    return tool_from(walk, source="s")


def schema_of(annotation: Any, default: Any = _NONE) -> dict[str, Any]:
    return taking(annotation, default).spec.input_schema["properties"]["what"]


def taken(made: Tool, arguments: dict[str, Any]) -> Any:
    return made.check(encode(arguments))["what"]


def issues(made: Tool, arguments: dict[str, Any]) -> dict[str, Issue]:
    with pytest.raises(InvalidArgumentsError) as caught:
        made.check(encode(arguments))
    return {issue.field: issue for issue in caught.value.issues}


GOOD: list[tuple[Any, Any, Any]] = [
    (Address, {"city": "Rome", "zip": 5}, Address.model_validate({"city": "Rome", "zip": 5})),
    (
        Person,
        {"name": "Ann", "home": {"city": "Rome"}},
        Person(name="Ann", home=Address.model_validate({"city": "Rome"})),
    ),
    (list[Address], [{"city": "Rome"}], [Address.model_validate({"city": "Rome"})]),
    (Address | None, None, None),
    (Cat | Dog, {"kind": "dog", "tricks": ["sit"]}, Dog(kind="dog", tricks=["sit"])),
    (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cat", "lives": 9}, Cat(kind="cat", lives=9)),
    (Annotated[int, Field(ge=1, le=10)], 10, 10),
    (Annotated[str, Field(pattern="^a")], "ab", "ab"),
    (Colour, "red", Colour.RED),
    (Level, 2, Level.HIGH),
    (Literal[1, "a"], 1, 1),
    (Point, {"x": 1}, Point(1)),
    (list[Point], [{"x": 1, "y": 2, "tags": ["a"]}], [Point(1, 2, ["a"])]),
    (Window, {"width": 3}, {"width": 3}),
    (Pair, [1, "a"], Pair(1, "a")),
    (datetime, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (date, "2026-01-02", date(2026, 1, 2)),
    (timedelta, "PT5S", timedelta(seconds=5)),
    (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
    (Decimal, "1.10", Decimal("1.10")),
    (bytes, "abc", b"abc"),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (set[int], [1, 2], {1, 2}),
    (dict[str, Point], {"a": {"x": 1}}, {"a": Point(1)}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
]


@every_row(("annotation", "value", "meant"), GOOD, ids=[str(row[0]) for row in GOOD])
def test_an_argument_comes_as_json_and_arrives_as_its_type(annotation: Any, value: Any, meant: Any) -> None:
    got = taken(taking(annotation), {"what": value})

    assert got == meant
    assert type(got) is type(meant)


BAD: list[tuple[Any, Any]] = [
    (Address, {"city": 5}),
    (Address, "Rome"),
    (Person, {"name": "Ann", "age": 5}),
    (Annotated[int, Field(ge=1)], 0),
    (Annotated[int, Field(ge=1)], "1"),
    (Colour, "green"),
    (Colour, 1),
    (Level, "1"),
    (Point, {"x": "1"}),
    (Window, {"width": "3"}),
    (datetime, "yesterday"),
    (date, "2026-01-02T03:04:05"),
    (UUID, "1"),
    (UUID, 1),
    (Decimal, "much"),
    (tuple[int, str], [1]),
    (set[int], 5),
    (dict[int, str], {"a": "b"}),
]


@every_row(("annotation", "value"), BAD, ids=[f"{row[0]}-{row[1]}" for row in BAD])
def test_an_argument_that_does_not_fit_its_type_is_refused_strictly(annotation: Any, value: Any) -> None:
    assert all(name == "what" or name.startswith("what.") for name in issues(taking(annotation), {"what": value}))


def test_a_schema_says_everything_that_an_annotation_does() -> None:
    assert schema_of(Annotated[int, Field(ge=1, le=9, description="How many.")]) == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "How many.",
    }
    assert schema_of(Colour) == {"$ref": "#/$defs/Colour"}
    assert taking(Colour).spec.input_schema["$defs"]["Colour"] == {"enum": ["red", "blue"], "type": "string"}
    assert schema_of(datetime) == {"type": "string", "format": "date-time"}
    assert schema_of(UUID) == {"type": "string", "format": "uuid"}
    assert schema_of(Literal[1, 2]) == {"enum": [1, 2], "type": "integer"}
    assert schema_of(Point | None) == {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}


def test_a_schema_has_no_titles_that_only_repeat_names_and_keeps_the_others() -> None:
    whole = taking(Person).spec.input_schema
    assert "title" not in str(whole)

    assert schema_of(Annotated[int, Field(title="How many")])["title"] == "How many"
    window = taking(Window).spec.input_schema["$defs"]["Window"]
    assert window["properties"] == {"width": {"type": "integer"}, "title": {"type": "string"}}


def test_a_model_keeps_its_descriptions_and_aliases() -> None:
    address = taking(Address).spec.input_schema["$defs"]["Address"]

    assert address["description"] == "Where somebody lives."
    assert address["properties"] == {
        "city": {"type": "string", "description": "The town."},
        "zip": {"type": "integer", "minimum": 0, "default": 0},
    }
    assert address["required"] == ["city"]


def test_arguments_are_a_strict_object_whatever_their_types() -> None:
    made = taking(Address)

    assert made.spec.input_schema["additionalProperties"] is False
    assert made.spec.input_schema["required"] == ["what"]
    found = issues(made, {"what": {"city": "Rome"}, "waht": 1})
    assert (found["waht"].code, found["waht"].did_you_mean) == ("extra_forbidden", "what")


DEFAULTS: list[tuple[Any, Any, Any, Any]] = [
    (Annotated[int, Field(ge=1)], 3, 3, 3),
    (int, Field(3, ge=1), 3, 3),
    (int, Field(default=3), 3, 3),
    (Annotated[int, Field(default=3)], _NONE, 3, 3),
    (Annotated[int, Field(default=5)], 3, 3, 3),
    (Annotated[int, Field(default=3), Field(ge=1)], _NONE, 3, 3),
    (Colour, Colour.RED, Colour.RED, "red"),
    (Point, Point(1), Point(1), {"x": 1, "y": 0, "tags": []}),
    (
        Address,
        Address.model_validate({"city": "Rome"}),
        Address.model_validate({"city": "Rome"}),
        {"city": "Rome", "zip": 0},
    ),
    (date, date(2026, 1, 2), date(2026, 1, 2), "2026-01-02"),
    (set[int], {1}, {1}, [1]),
    (Annotated[int, Field(alias="which")], 3, 3, 3),
    (Annotated[int, Field(validation_alias="which")], 3, 3, 3),
    (int, Field(3, alias="which"), 3, 3),
]


@every_row(
    ("annotation", "default", "meant", "written"), DEFAULTS, ids=[f"{number}" for number in range(len(DEFAULTS))]
)
def test_a_default_is_filled_in_and_written_in_the_schema(
    annotation: Any, default: Any, meant: Any, written: Any
) -> None:
    made = taking(annotation, default)
    [inner] = made.spec.input_schema["properties"].values()

    assert taken(made, {}) == meant
    assert inner["default"] == written
    assert "required" not in made.spec.input_schema


def test_a_default_of_none_is_filled_in_and_not_written() -> None:
    made = taking(Point | None, None)

    assert taken(made, {}) is None
    assert "default" not in made.spec.input_schema["properties"]["what"]


@pytest.mark.parametrize("default", [Field(ge=1), Field(...), Field(..., ge=1)])
def test_a_field_without_a_default_is_required(default: Any) -> None:
    made = taking(int, default)

    assert made.spec.input_schema["required"] == ["what"]
    assert issues(made, {})["what"].code == "missing"


@pytest.mark.parametrize(
    "made",
    [lambda: taking(UUID, Field(default_factory=uuid4)), lambda: taking(Annotated[UUID, Field(default_factory=uuid4)])],
    ids=["default", "annotated"],
)
def test_a_default_that_is_made_is_made_for_every_call_and_is_no_part_of_the_schema(made: Callable[[], Tool]) -> None:
    one, other = made(), made()

    assert taken(one, {}) != taken(one, {})
    assert one.spec == other.spec
    assert "required" not in one.spec.input_schema


@every_row(
    ("annotation", "default"),
    [
        (list[Point], [Point(1)]),
        (Point, Point(1)),
        (list[int], Field(default_factory=list)),
        (Address, Address(city="Rome")),
    ],  # pyright: ignore[reportUnknownArgumentType, reportCallIssue] - a Field stands for any default
)
def test_a_default_that_was_changed_is_fresh_for_the_next_call(annotation: Any, default: Any) -> None:
    made = taking(annotation, default)
    first = taken(made, {})

    assert taken(made, {}) is not first
    assert taken(made, {}) == first


@every_row(
    ("annotation", "default"),
    [
        (Annotated[int, Field(ge=1)], 0),
        (int, Field(0, ge=1)),
        (Annotated[int, Field(default=0, ge=1)], _NONE),
        (Colour, "green"),
        (Point, "x"),
        (Address, None),
        (datetime, 5.5j),
        (Any, Field(default=object())),
    ],
)
def test_a_default_that_does_not_fit_or_cannot_be_written_names_tool_and_parameter(
    annotation: Any, default: Any
) -> None:
    with pytest.raises(PublishError, match=r"'walk'.*'what'"):
        taking(annotation, default)


@every_row(
    "annotation",
    [
        object(),
        5,
        (int, str),
        Callable[[int], int],
        Odd,
        list[Odd],
        Odd | None,
        "Nobody",
        ClassVar[int],
        Final[int],
        NotRequired[int],
        Self,
    ],
)
def test_an_annotation_that_cannot_become_a_schema_names_tool_and_parameter(annotation: Any) -> None:
    with pytest.raises(PublishError, match=r"'walk'.*'what'") as caught:
        taking(annotation)

    assert "\n" not in str(caught.value)


def test_the_parameter_at_fault_is_the_one_that_is_named() -> None:
    def walk(good: Address, bad: Any, also: int) -> None:
        raise AssertionError

    walk.__annotations__["bad"] = Odd
    with pytest.raises(PublishError, match=r"'walk'.*'bad'"):
        tool_from(walk, source="s")


def test_a_signature_that_fails_as_a_whole_names_the_tool() -> None:
    tries: list[int] = []

    class Fickle:
        @classmethod
        def __get_pydantic_core_schema__(cls, _: Any, handler: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise TypeError
            return handler(int)

    with pytest.raises(PublishError, match="'walk'"):
        taking(Fickle)


def test_every_issue_is_reported_with_its_place() -> None:
    made = taking(list[Person])
    found = issues(made, {"what": [{"name": "Ann", "home": {"zip": -1}}, {"name": 5, "nmae": "x", "friends": [{}]}]})

    assert {name: issue.code for name, issue in found.items()} == {
        "what.0.home.city": "missing",
        "what.0.home.zip": "greater_than_equal",
        "what.1.name": "string_type",
        "what.1.nmae": "extra_forbidden",
        "what.1.friends.0.name": "missing",
    }
    assert found["what.0.home.zip"].expected == {"type": "integer", "minimum": 0, "default": 0}
    assert found["what.1.nmae"].did_you_mean == "name"


def test_every_type_of_a_union_is_reported_at_the_same_place() -> None:
    found = issues(taking(int | Point | list[int]), {"what": "x"})

    [issue] = found.values()
    assert (issue.field, issue.code) == ("what", "union")
    assert len(issue.expected["anyOf"]) == 3


def test_the_message_of_a_validator_is_reported() -> None:
    class Even(BaseModel):
        n: int
        m: int = 0

        @field_validator("n")
        @classmethod
        def check_n(cls, n: int) -> int:
            assert n % 2 == 0, "must be even"
            return n

        @model_validator(mode="after")
        def check_all(self) -> "Even":
            if self.m > self.n:
                raise ValueError("m must not be more than n")
            return self

    made = taking(Even)
    assert issues(made, {"what": {"n": 3}})["what.n"].code == "assertion_error"
    assert issues(made, {"what": {"n": 2, "m": 3}})["what"].code == "value_error"
    either = issues(taking(Even | Cat), {"what": {"n": 2, "m": 3}})
    assert set(either) == {"what", "what.kind", "what.lives"}


def test_a_wrong_key_is_reported_at_its_place() -> None:
    assert set(issues(taking(dict[int, str]), {"what": {"a": "b"}})) == {"what.a"}


def test_a_type_that_pydantic_cannot_describe_has_no_schema() -> None:
    assert pydantic_schema(Odd) is None
    assert pydantic_schema(Point) == {
        "type": "object",
        "properties": {
            "x": {"type": "integer"},
            "y": {"type": "integer", "default": 0},
            "tags": {"items": {"type": "string"}, "type": "array"},
        },
        "required": ["x"],
    }
