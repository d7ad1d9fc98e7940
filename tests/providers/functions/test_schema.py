import json
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Optional, Union, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, computed_field
from pydantic_core import CoreSchema, SchemaValidator, ValidationError
from table_tests import every_row
from typing_extensions import TypedDict

from callyard import Audio, Blob, Envelope, Image, PublishError, Text, Tool, Yard, tool
from callyard.model.simple_schema import fits_simple_schema
from callyard.providers.functions import tool_from
from callyard.providers.functions.schema import SimpleType, output_of, simple_type
from callyard.providers.functions.signature import REQUIRED

PNG = b"\x89PNG\r\n\x1a\n"


class Odd:
    """What no schema describes."""


class Colour(Enum):
    RED = "red"


class Money(BaseModel):
    amount: Decimal = Field(alias="sum")

    @computed_field
    @property
    def rounded(self) -> int:
        return round(self.amount)


class Moody(BaseModel):
    @computed_field
    @property
    def mood(self) -> str:
        raise RuntimeError


@dataclass
class Point:
    x: int
    y: int = 0


class Window(TypedDict):
    width: int
    opened: datetime


class Struct(msgspec.Struct, rename="camel"):
    first_name: str
    colour: Colour = Colour.RED


class Pair(NamedTuple):
    left: int
    right: str


def returning(value: object, annotation: Any = REQUIRED, **marks: Any) -> Tool:
    """Return a tool that answers with this, and says that it returns that."""

    async def give() -> Any:
        """Give."""
        return value

    if annotation is REQUIRED:
        del give.__annotations__["return"]
    else:
        give.__annotations__["return"] = annotation
    return tool_from(tool(**marks)(give), source="yard")


async def answer_of(value: object, annotation: Any = REQUIRED, **marks: Any) -> Envelope:
    async with Yard(tools=[returning(value, annotation, **marks)]) as yard:
        return await yard.call("give")


def code(answer: Envelope) -> str | None:
    return None if answer.error is None else answer.error.code


MONEY = Money.model_validate({"sum": "1.50"})
WHEN = datetime(2026, 1, 2, tzinfo=UTC)
GOOD: list[tuple[Any, Any, Any]] = [
    (int, 1, 1),
    (float, 1, 1),
    (str, "x", "x"),
    (list[int], [1], [1]),
    (dict[str, Any], {"a": None}, {"a": None}),
    (Money, MONEY, {"sum": "1.50", "rounded": 2}),
    (list[Money], [MONEY], [{"sum": "1.50", "rounded": 2}]),
    (dict[str, Money], {"a": MONEY}, {"a": {"sum": "1.50", "rounded": 2}}),
    (Money | None, None, None),
    (Point, Point(1), {"x": 1, "y": 0}),
    (list[Point], [Point(1)], [{"x": 1, "y": 0}]),
    (Window, {"width": 1, "opened": WHEN}, {"width": 1, "opened": "2026-01-02T00:00:00Z"}),
    (Struct, Struct("Ann"), {"firstName": "Ann", "colour": "red"}),
    (list[Struct], [Struct("Ann")], [{"firstName": "Ann", "colour": "red"}]),
    (Struct | None, None, None),
    (Pair, Pair(1, "a"), [1, "a"]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (set[int], {1}, [1]),
    (Colour, Colour.RED, "red"),
    (datetime, WHEN, "2026-01-02T00:00:00Z"),
    (Decimal, Decimal("1.10"), "1.10"),
    (Annotated[int, Field(ge=1)], 1, 1),
    (Annotated[list[int], {"not": "hashable"}], [1], [1]),
    (Iterable[int], (number for number in (0, 1, 2)), [0, 1, 2]),
    (int | str, "x", "x"),
    (Any, None, None),
    (object, None, None),
    (Any, {"a": {1: Colour.RED}}, {"a": {"1": "red"}}),
    (None, None, None),
    (int | None, None, None),
    (REQUIRED, [1], [1]),
]


@every_row(("annotation", "value", "data"), GOOD, ids=[f"{number}" for number in range(len(GOOD))])
async def test_a_result_of_the_annotated_type_is_answered_as_plain_json(annotation: Any, value: Any, data: Any) -> None:
    answer = await answer_of(value, annotation)

    assert answer.success, annotation
    assert answer.data == data


@every_row(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (None, {"type": "null"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
            },
        ),
        (Annotated[int, Field(ge=1)], {"type": "integer", "minimum": 1}),
        (REQUIRED, None),
        (Any, None),
        (object, None),
        (Envelope, None),
        (Envelope | None, None),
        (bytes, None),
        (Image, None),
        (Annotated[Image, "a picture"], None),
        (list[Image], None),
        (list[Image | str], None),
        (tuple[Image, Audio], None),
        (dict[str, Image], None),
        (Image | None, None),
    ],
)
def test_the_output_schema_is_that_of_the_annotation(annotation: Any, schema: Any) -> None:
    assert returning(None, annotation).spec.output_schema == schema


def test_a_model_is_described_as_it_is_written() -> None:
    schema = returning(None, Money).spec.output_schema

    assert schema is not None
    assert set(schema["properties"]) == set(schema["required"]) == {"sum", "rounded"}


def test_a_struct_is_described_by_who_writes_it() -> None:
    schema = returning(None, Struct).spec.output_schema

    assert schema is not None
    assert set(schema["$defs"]["Struct"]["properties"]) == {"firstName", "colour"}


@pytest.mark.parametrize("annotation", [Odd, list[Odd], dict[str, Odd]])
def test_a_return_annotation_that_cannot_become_a_schema_names_the_tool(annotation: Any) -> None:
    with pytest.raises(PublishError, match="'give'"):
        returning(None, annotation)


@every_row(
    ("annotation", "expected"),
    [(REQUIRED, False), (int, False), (Envelope, False), (Any, True), (None, True), (int | None, True)],
)
def test_nothing_is_an_answer_only_where_the_annotation_says_so(annotation: Any, *, expected: bool) -> None:
    assert output_of("give", annotation).may_be_none is expected


@every_row("annotation", [REQUIRED, int, str, Point, Envelope, Image, list[None]], ids=str)
async def test_a_tool_that_answers_nothing_though_it_promised_something_is_at_fault(annotation: Any) -> None:
    answer = await answer_of(None, annotation)

    assert answer.error is not None
    assert (answer.error.code, answer.error.blame, answer.error.may_have_run) == ("invalid_output", "tool", True)


WRONG: list[tuple[Any, Any]] = [
    (int, "1"),
    (int, 1.5),
    (str, 1),
    (list[int], ["a"]),
    (dict[str, int], {"a": "b"}),
    (Point, {"x": "1"}),
    (Point, {}),
    (Window, {"width": 1}),
    (Struct, {"firstName": 5}),
    (Annotated[int, Field(ge=1)], 0),
    (tuple[int, str], [1]),
    (None, 1),
    (int | None, "x"),
    (float, float("nan")),
    (Colour, "green"),
]


@every_row(("annotation", "value"), WRONG, ids=[f"{number}" for number in range(len(WRONG))])
async def test_a_tool_that_answers_what_its_own_schema_forbids_is_at_fault(annotation: Any, value: Any) -> None:
    assert code(await answer_of(value, annotation)) == "invalid_output"


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


UNSERIALISABLE: list[Any] = [
    Odd(),
    {Odd()},
    [1, {"a": Odd()}],
    "\ud800",
    {"a": "\ud800"},
    {"\ud800": 1},
    10**5000,
    [10**5000],
    1j,
    _circle(),
    _deep(),
    Moody(),
    [Moody()],
    {("a", "b"): 1},
    lambda: 1,
    open,
    [Image(b""), Odd()],
]


@every_row("number", range(len(UNSERIALISABLE)))
async def test_a_tool_that_answers_what_cannot_be_written_is_at_fault(number: int) -> None:
    assert code(await answer_of(UNSERIALISABLE[number])) == "invalid_output"


@every_row(
    ("value", "kind", "mime_type"),
    [
        (PNG, Image, "image/png"),
        (bytearray(PNG), Image, "image/png"),
        (memoryview(b"OggS"), Audio, "audio/ogg"),
        (b"%PDF", Blob, "application/octet-stream"),
        (Image(b"x", "image/webp"), Image, "image/webp"),
        (Audio(b"x"), Audio, "audio/wav"),
        (Blob(b"x", "application/pdf"), Blob, "application/pdf"),
    ],
    ids=["bytes", "bytearray", "memoryview", "other bytes", "image", "audio", "blob"],
)
@every_row(
    "annotation", [REQUIRED, Any, bytes, Image, Image | Audio | None], ids=["none", "any", "bytes", "image", "union"]
)
async def test_bytes_pictures_and_sounds_become_blocks(value: Any, kind: Any, mime_type: str, annotation: Any) -> None:
    answer = await answer_of(value, annotation)

    [block] = answer.content
    assert type(block) is kind
    assert answer.data == block.describe()
    assert answer.data["mime_type"] == mime_type


async def test_blocks_may_be_anywhere_in_a_result() -> None:
    answer = await answer_of({"a": Image(b"x"), "b": [Audio(b"y")]}, dict[str, Any])

    assert answer.data == {"a": Image(b"x").describe(), "b": [Audio(b"y").describe()]}
    assert len(answer.content) == 2


async def test_blocks_that_nobody_could_send_are_too_large() -> None:
    answer = await answer_of(Blob(bytes(33 * 1024 * 1024)))

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("too_large", True)


async def test_a_plain_tool_answers_with_its_text_as_a_block() -> None:
    for annotation in (str, Any, REQUIRED):
        answer = await answer_of("hello", annotation, shape="plain")

        [block] = answer.content
        assert isinstance(block, Text)
        assert (block.text, answer.data) == ("hello", {"type": "text", "text": "hello"})


async def test_a_plain_tool_may_answer_with_several_blocks() -> None:
    answer = await answer_of([Text("look"), Image(b"x")], list[Text | Image], shape="plain")

    assert [type(block) for block in answer.content] == [Text, Image]


async def test_a_tool_that_never_returns_can_be_published() -> None:
    @tool
    async def stub() -> NoReturn:
        """Do nothing yet."""
        raise NotImplementedError

    async with Yard(tools=[stub]) as yard:
        answer = await yard.call("stub")

    assert code(answer) == "internal_error"


SCALARS: list[Any] = [str, int, float, bool, None, type(None), Any, object]
PLAIN: list[Any] = [
    *SCALARS,
    list,
    dict,
    list[int],
    list[Any],
    list[object],
    list[list[str]],
    dict[str, int],
    dict[str, Any],
    dict[str, object],
    dict[str, list[bool | None]],
    int | None,
    str | None,
    bool | None,
    float | None,
    int | str,
    str | int,
    int | float,
    bool | int,
    int | bool | str | None,
    None | int,
    list[int] | None,
    list[int] | list[str],
    list[int] | dict[str, int] | str,
    Optional[int],  # noqa: UP045 - as people still write it
    Union[int, None, str],  # noqa: UP007 - the same
    typing.List[int],  # noqa: UP006 - the same
    typing.List,  # noqa: UP006 - the same
    typing.Dict[str, int],  # noqa: UP006 - the same
    typing.Dict,  # noqa: UP006 - the same
    Literal["a"],
    Literal["a", "b"],
    Literal["a", "b"] | None,
    Literal["a"] | int,
    list[Literal["x", "y"]],
]
NOT_PLAIN: list[Any] = [
    bytes,
    set[int],
    tuple[int, str],
    list[bytes],
    dict[int, str],
    dict[str, bytes],
    int | bytes,
    Any | None,
    Literal[1],
    Literal["a", 1],
    typing.Annotated[int, "x"],
    typing.Annotated[int, {"cannot": "be hashed"}],
    typing.Sequence[int],
    typing.Tuple,  # noqa: UP006 - as people still write it
    "int",
    5,
]
_ANNOTATIONS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([str, int, float, bool, type(None), list, dict, Literal["a"], Literal["a", "b"]]),
    lambda inner: st.one_of(
        inner.map(lambda item: list[item]),
        inner.map(lambda value: dict[str, value]),
        st.lists(inner, min_size=2, max_size=4).map(lambda choices: Union[tuple(choices)]),  # noqa: UP007 - made at run time
    ),
    max_leaves=5,
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["a", "b", "c", "1", "1.0", "true", "null", ""])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=8,
)


def _untitled(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _untitled(value) for key, value in cast("dict[str, Any]", schema).items() if key != "title"}
    if isinstance(schema, list):
        return [_untitled(item) for item in cast("list[Any]", schema)]
    return schema


def _outcome(validator: Any, value: object) -> tuple[bool, str]:
    """Return whether a value passes in strict JSON mode, and what comes out; `repr` tells 1 from 1.0 and True."""
    try:
        return True, repr(validator.validate_json(json.dumps(value), strict=True))
    except ValidationError as error:
        return False, repr([(fault["type"], fault["loc"]) for fault in error.errors()])


def _validator(known: SimpleType) -> SchemaValidator:
    return SchemaValidator(cast("CoreSchema", known.core))


@given(_ANNOTATIONS, _VALUES)
def test_a_default_that_plainly_fits_need_not_be_checked(annotation: Any, value: object) -> None:
    known = simple_type(annotation)
    if known is not None and fits_simple_schema(known.schema, value):
        assert _outcome(_validator(known), value)[0]


def _same(annotation: Any, value: object) -> None:
    known = simple_type(annotation)
    assert known is not None
    assert _outcome(_validator(known), value) == _outcome(TypeAdapter(annotation).validator, value)


@every_row("annotation", PLAIN, ids=str)
def test_a_plain_annotation_has_the_schema_that_pydantic_gives(annotation: Any) -> None:
    known = simple_type(annotation)

    assert known is not None
    assert known.schema == _untitled(TypeAdapter(annotation).json_schema())


@every_row("annotation", PLAIN, ids=str)
@every_row(
    "value",
    [
        None,
        True,
        0,
        1,
        2**70,
        1.0,
        1.5,
        "",
        "a",
        "b",
        "1",
        "true",
        [],
        [1],
        ["1"],
        [None],
        [[1]],
        {},
        {"a": 1},
        {"a": "1"},
        {"a": [True]},
    ],
    ids=json.dumps,
)
def test_a_plain_annotation_takes_and_refuses_what_pydantic_does(annotation: Any, value: object) -> None:
    _same(annotation, value)


@given(_ANNOTATIONS, _VALUES)
def test_the_light_way_and_pydantic_agree_for_every_annotation_and_value(annotation: Any, value: object) -> None:
    known = simple_type(annotation)

    assert known is not None
    assert known.schema == _untitled(TypeAdapter(annotation).json_schema())
    _same(annotation, value)


@every_row("annotation", NOT_PLAIN, ids=str)
def test_everything_else_is_left_to_pydantic(annotation: Any) -> None:
    assert simple_type(annotation) is None


def test_schemas_are_not_shared() -> None:
    one, other = simple_type(list[int]), simple_type(list[int])

    assert one is not None
    assert other is not None
    one.schema["items"]["title"] = "changed"
    assert other.schema == {"items": {"type": "integer"}, "type": "array"}
