from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field
from table_tests import every_row

from callyard import Call, Caller, Envelope, Image, Limits, Operation, Profile, Tool, ToolError, ToolSpec, Yard, tool
from callyard.dispatch.results import Results, at_pointer, shape_of
from callyard.dispatch.tool import check_by_schema
from callyard.model.envelope import encode_data
from callyard.model.profile import EVERYTHING
from callyard.state.memory import MemoryStore
from callyard.testing import FakeClock

SMALL = Limits(result_characters=100, stored_results=3, stored_seconds=60, stored_bytes=5000)


@tool(operation="query")
async def make(rows: int = 50, fill: str = "x") -> dict[str, Any]:
    """Make a large result."""
    return {"items": [{"n": number, "fill": fill} for number in range(rows)], "total": rows, "a/b": {"~": True}}


@tool(operation="query")
async def show(value: Any = None, *, also: Any = None) -> Any:
    """Show what was given."""
    return {"kind": type(value).__name__, "value": value if len(str(value)) < 50 else len(value), "also": also}


TOOLS = [make, show]


def no_suggestions(_handle: str, _profile: Profile) -> list[str]:
    return []


def failure(answer: Envelope) -> tuple[str, dict[str, Any]]:
    assert answer.error is not None
    return answer.error.code, answer.error.details


async def test_a_large_result_is_stored_and_answered_with_its_handle_and_shape() -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        answer = await yard.call("make")

    assert answer.success
    assert answer.data["status"] == "stored"
    assert answer.data["handle"] == "r_1"
    assert answer.data["characters"] > 100
    assert answer.data["expires_in_s"] == 60
    assert answer.data["shape"]["properties"]["items"]["length"] == 50
    assert len(answer.to_json()) < 1200


async def test_the_size_of_a_result_is_counted_in_characters() -> None:
    async with Yard(tools=TOOLS, limits=Limits(result_characters=60)) as yard:
        exact = await yard.call("show", {"value": "é" * (60 - len('{"kind":"str","value":"","also":null}'))})
        over = await yard.call("show", {"value": "é" * (61 - len('{"kind":"str","value":"","also":null}'))})

    assert exact.data["kind"] == "str"
    assert over.data["status"] == "stored"


async def test_a_later_call_can_refer_to_a_result_or_a_part_of_it_anywhere_in_its_arguments() -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make")
        whole = await yard.call("show", {"value": {"$ref": "r_1", "path": "/items"}})
        part = await yard.call("show", {"value": {"$ref": "r_1", "path": "/items/7/n"}})
        nested = await yard.call(
            "show",
            {"value": [{"deep": [{"$ref": "r_1", "path": "/total"}]}, 1], "also": {"$ref": "r_1", "path": "/a~1b/~0"}},
        )
        empty_path = await yard.call("show", {"value": {"$ref": "r_1", "path": ""}})
        no_path = await yard.call("show", {"value": {"$ref": "r_1"}})

    assert (whole.data["kind"], whole.data["value"]) == ("list", 50)
    assert part.data["value"] == 7
    assert (nested.data["value"], nested.data["also"]) == ([{"deep": [50]}, 1], True)
    assert empty_path.data["kind"] == no_path.data["kind"] == "dict"


async def test_a_resolved_reference_is_checked_like_any_argument() -> None:
    @tool
    async def need(number: int) -> int:
        """Need a number."""
        return number

    async with Yard(tools=[make, need], limits=SMALL) as yard:
        await yard.call("make")
        good = await yard.call("need", {"number": {"$ref": "r_1", "path": "/total"}})
        bad = await yard.call("need", {"number": {"$ref": "r_1", "path": "/items"}})

    assert good.data == 50
    assert failure(bad)[0] == "invalid_input"


@pytest.mark.parametrize("key", [r"$ref", r"\u0024ref", r"$\u0072\u0065\u0066"])
async def test_a_reference_is_found_even_if_its_key_is_escaped(key: str) -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make")
        text = b'{"value":{"%b":"r_1","path":"/total"},"also":"caf\\u00e9 \\u0041"}' % key.encode()
        answer = await yard.call("show", msgspec.Raw(text))

    assert answer.data == {"kind": "int", "value": 50, "also": "café A"}


async def test_the_arguments_as_a_whole_may_be_a_result() -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make")
        answer = await yard.call("make", {"$ref": "r_1", "path": "/items/3"})

    code, details = failure(answer)
    assert code == "invalid_input"
    assert {issue["field"] for issue in details["issues"]} == {"n"}


@every_row(
    ("reference", "code"),
    [
        ({"$ref": "r_2"}, "unknown_handle"),
        ({"$ref": "r_999999999999999999"}, "unknown_handle"),
        ({"$ref": "r_1", "path": "/nothing"}, "unknown_path"),
        ({"$ref": "r_1", "path": "/items/50"}, "unknown_path"),
        ({"$ref": "r_1", "path": "/items/-1"}, "unknown_path"),
        ({"$ref": "r_1", "path": "/items/01"}, "unknown_path"),
        ({"$ref": "r_1", "path": "/items/٣"}, "unknown_path"),
        ({"$ref": "r_1", "path": "/items/" + "9" * 5000}, "unknown_path"),
        ({"$ref": "r_1", "path": "/items/n"}, "unknown_path"),
        ({"$ref": "r_1", "path": "/total/0"}, "unknown_path"),
        ({"$ref": "r_1", "path": "items"}, "unknown_path"),
        ({"$ref": "r_1", "path": "#/items"}, "unknown_path"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_reference_to_nothing_is_an_issue_with_its_field(reference: dict[str, str], code: str) -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make")
        answer = await yard.call("show", {"value": [0, {"a": reference}]})

    found, details = failure(answer)
    assert found == "invalid_input"
    assert [(issue["field"], issue["code"]) for issue in details["issues"]] == [("value.1.a", code)]


@every_row(
    "value",
    [
        {"$ref": "r_1", "path": "/total", "more": 1},
        {"$ref": "r_1", "pth": "/total"},
        {"$ref": "r_1", "path": 5},
        {"$ref": "R_1"},
        {"$ref": "r_"},
        {"$ref": "r_1 "},
        {"$ref": "r_1\n"},
        {"$ref": "r_\u0661"},
        {"$ref": "#/total"},
        {"$ref": 1},
        {"$ref": {"$ref": 5}},
        {"path": "/total"},
        {"$Ref": "r_1"},
        "r_1",
        '{"$ref": "r_1"}',
    ],
    ids=str,
)
async def test_only_exactly_that_shape_is_a_reference(value: Any) -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make")
        answer = await yard.call("show", {"value": value})

    assert answer.data["value"] == value


async def test_a_reference_inside_something_like_a_reference_is_followed() -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make")
        answer = await yard.call("show", {"value": {"$ref": {"$ref": "r_1", "path": "/total"}}})

    assert answer.data["value"] == {"$ref": 50}


class Pointer(BaseModel):
    ref: str = Field(alias="$ref")
    path: str = ""


class Holder(BaseModel):
    pointers: list[Pointer]


async def test_a_property_named_ref_in_the_schema_is_not_resolved() -> None:
    @tool
    async def follow(plain: Pointer, maybe: Pointer | None = None, holder: Holder | None = None) -> list[str]:
        """Follow pointers."""
        inner = holder.pointers if holder else []
        return [pointer.ref for pointer in [plain, *([maybe] if maybe else []), *inner]]

    reference = {"$ref": "r_1", "path": "/total"}
    async with Yard(tools=[*TOOLS, follow], limits=SMALL) as yard:
        await yard.call("make")
        answer = await yard.call(
            "follow", {"plain": reference, "maybe": reference, "holder": {"pointers": [reference]}}
        )

    assert answer.data == ["r_1"] * 3


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
async def test_a_property_named_ref_in_any_branch_is_not_resolved(keyword: str) -> None:
    inner: dict[str, Any] = {"type": "object", "properties": {"$ref": {"type": "string"}}}
    other: dict[str, Any] = {"type": "object"} if keyword == "allOf" else {"type": "null"}
    schema: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"x": {keyword: [other, inner]}},
    }

    async def handler(call: Call) -> object:
        return call.arguments["x"]

    spec = ToolSpec(name="take", description="Take.", input_schema=schema, operation=Operation.QUERY)
    take = Tool(spec=spec, handler=handler, check=check_by_schema(schema))
    async with Yard(tools=[make, take], limits=SMALL) as yard:
        await yard.call("make")
        answer = await yard.call("take", {"x": {"$ref": "r_1"}})

    assert answer.data == {"$ref": "r_1"}


async def test_references_very_deep_inside_the_arguments_are_not_resolved() -> None:
    value: Any = {"$ref": "r_1", "path": "/total"}
    for _ in range(140):
        value = [value]

    async with Yard(tools=TOOLS, limits=Limits(result_characters=1000)) as yard:
        handle = (await yard.call("make")).data["handle"]
        answer = await yard.call("show", {"also": value})

    assert handle == "r_1"
    assert answer.data["also"] == value


async def test_a_handle_belongs_to_the_caller_who_got_it() -> None:
    me, other_scope, you = Caller(identity="me"), Caller(identity="me", scope="x"), Caller(identity="you")
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make", caller=me)
        for stranger in (other_scope, you):
            code, details = failure(await yard.call("show", {"value": {"$ref": "r_1"}}, caller=stranger))
            assert (code, details["issues"][0]["code"]) == ("invalid_input", "unknown_handle")
        theirs = await yard.call("make", {"fill": "you"}, caller=you)
        mine = await yard.call("show", {"value": {"$ref": "r_1", "path": "/items/0/fill"}}, caller=me)

    assert theirs.data["handle"] == "r_1"
    assert mine.data["value"] == "x"


async def test_a_handle_expires() -> None:
    clock = FakeClock()
    async with Yard(tools=TOOLS, limits=SMALL, clock=clock) as yard:
        await yard.call("make")
        clock.advance(59)
        good = await yard.call("show", {"value": {"$ref": "r_1", "path": "/total"}})
        clock.advance(1)
        late = await yard.call("show", {"value": {"$ref": "r_1", "path": "/total"}})

    assert good.data["value"] == 50
    assert failure(late)[1]["issues"][0]["code"] == "unknown_handle"


async def test_the_number_of_stored_results_per_caller_is_limited_and_the_oldest_is_deleted() -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make", caller=Caller(identity="you"))
        handles = [(await yard.call("make")).data["handle"] for _ in range(4)]
        answers = [await yard.call("show", {"value": {"$ref": handle, "path": "/total"}}) for handle in handles]
        theirs = await yard.call("show", {"value": {"$ref": "r_1", "path": "/total"}}, caller=Caller(identity="you"))

    assert handles == ["r_1", "r_2", "r_3", "r_4"]
    assert [answer.success for answer in answers] == [False, True, True, True]
    assert theirs.success


async def test_a_result_too_large_to_store_is_a_failure_that_may_have_run() -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        answer = await yard.call("make", {"rows": 1000})

    code, details = failure(answer)
    assert (code, details["limit"]) == ("too_large", 5000)
    assert details["bytes"] > 5000
    assert answer.error is not None
    assert answer.error.may_have_run


async def test_large_partial_results_of_a_failure_are_stored() -> None:
    @tool
    async def raises() -> int:
        """Fail."""
        raise ToolError("state_error", "…", data=["x"] * 100)

    @tool
    async def returns() -> Envelope:
        """Fail."""
        return Envelope.fail(ToolError("state_error", "…", data=["x"] * 100))

    async with Yard(tools=[raises, returns], limits=SMALL) as yard:
        answers = [await yard.call("raises"), await yard.call("returns")]

    assert [answer.data["status"] for answer in answers] == ["stored", "stored"]
    assert [failure(answer)[0] for answer in answers] == ["state_error", "state_error"]


async def test_a_handle_is_never_reused_for_another_result() -> None:
    results = Results(MemoryStore(max_bytes=600), Limits(stored_seconds=60), suggest_read=no_suggestions)
    large = encode_data("x" * 500)

    first = await results.store(encode_data("mine"), "me", EVERYTHING)
    await results.store(large, "you", EVERYTHING)
    second = await results.store(encode_data("other"), "me", EVERYTHING)

    assert first["handle"] != second["handle"]


async def test_references_to_results_that_are_too_large_together_are_refused() -> None:
    async with Yard(tools=TOOLS, limits=SMALL) as yard:
        await yard.call("make", {"rows": 150})
        one = await yard.call("show", {"value": [{"$ref": "r_1"}]})
        three = await yard.call("show", {"value": [{"$ref": "r_1"}] * 3})

    assert one.success
    assert failure(three)[0] == "too_large"


async def test_a_call_inside_a_call_gets_the_whole_result() -> None:
    @tool
    async def outer(call: Call) -> int:
        """Call inside."""
        inner = await call.invoke("make")
        return len(inner.data["items"])

    async with Yard(tools=[*TOOLS, outer], limits=SMALL) as yard:
        answer = await yard.call("outer")

    assert answer.data == 50


async def test_content_blocks_are_answered_beside_a_stored_result() -> None:
    @tool
    async def draw() -> Any:
        """Draw."""
        return {"picture": Image(b"x"), "text": "y" * 200}

    async with Yard(tools=[draw], limits=SMALL) as yard:
        answer = await yard.call("draw")

    assert answer.data["status"] == "stored"
    assert [block.describe()["type"] for block in answer.content] == ["image"]


async def test_reading_a_handle_returns_the_result_or_fails_with_not_found() -> None:
    results = Results(MemoryStore(), Limits(), suggest_read=no_suggestions)
    stored = await results.store(encode_data({"a": [1, 2]}), "me", EVERYTHING)

    assert await results.read(stored["handle"], "me") == {"a": [1, 2]}
    for handle, owner in ((stored["handle"], "you"), ("r_9", "me"), ("../r_1", "me"), ("", "me")):
        with pytest.raises(ToolError) as caught:
            await results.read(handle, owner)
        assert (caught.value.code, caught.value.may_have_run) == ("not_found", False)


@every_row(
    ("pointer", "found"),
    [("", {"a": [1, {"": 2}], "0": 3}), ("/a", [1, {"": 2}]), ("/a/1/", 2), ("/0", 3), ("/a/0", 1)],
)
def test_a_pointer_finds_a_part(pointer: str, found: object) -> None:
    assert at_pointer({"a": [1, {"": 2}], "0": 3}, pointer) == found


@every_row("pointer", ["a", "/b", "/a/2", "/a/0/0", "/a/x", "/"])
def test_a_pointer_to_nothing_raises(pointer: str) -> None:
    with pytest.raises(LookupError) as caught:
        at_pointer({"a": [1, {"": 2}], "0": 3}, pointer)

    assert caught.value.args == (pointer,)


@every_row(
    ("value", "shape"),
    [
        (None, {"type": "null"}),
        (True, {"type": "boolean"}),
        (1, {"type": "integer"}),
        (1.5, {"type": "number"}),
        ("secret", {"type": "string", "length": 6}),
        ([], {"type": "array", "length": 0}),
        (
            [{"a": [[1]]}],
            {
                "type": "array",
                "length": 1,
                "items": {"type": "object", "properties": {"a": {"type": "array", "length": 1}}},
            },
        ),
        (
            {"a": {"b": {"c": 1}}},
            {
                "type": "object",
                "properties": {"a": {"type": "object", "properties": {"b": {"type": "object", "keys": 1}}}},
            },
        ),
    ],
    ids=str,
)
def test_a_shape_has_types_and_no_contents(value: object, shape: object) -> None:
    assert shape_of(value) == shape


def test_a_shape_stays_small_however_many_keys_there_are() -> None:
    shape = shape_of({str(number): number for number in range(100)})

    assert len(shape["properties"]) == 20
    assert shape["more_keys"] == 80
