"""A yard or a profile with plain answers: the result alone, with its output schema listed; failures stay envelopes."""

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec
from table_tests import every_row

from callyard import Call, Caller, Confirmation, Image, Limits, Profile, Yard, tool
from callyard.testing import connect

if TYPE_CHECKING:
    from tests.server.conftest import Meet

ERAS = ("2025-11-25", "2026-07-28")


class Order(msgspec.Struct):
    number: int
    note: str = ""


@tool(operation="query")
def order(number: int, length: int = 0) -> Order:
    """Return an order."""
    return Order(number, "x" * length)


@tool(operation="query")
def say() -> str:
    """Return a text."""
    return 'ü"'


@tool(operation="query")
def paint() -> dict[str, Any]:
    """Return a picture and its size."""
    return {"picture": Image(b"1"), "size": 1}


@tool(
    operation="destroy",
    confirmation=Confirmation("Really?", {"type": "object", "properties": {"sure": {"type": "boolean"}}}),
)
def wipe() -> Order:
    """Delete everything."""
    return Order(0)


TOOLS = [order, say, paint, wipe]


async def listed(peer: Any) -> dict[str, Any]:
    return {item["name"]: item for item in (await peer.ask("tools/list"))["result"]["tools"]}


async def call(peer: Any, name: str, **arguments: Any) -> dict[str, Any]:
    return (await peer.ask("tools/call", {"name": name, "arguments": arguments}))["result"]


@every_row("era", ERAS)
@every_row("way", ["yard", "profile"])
async def test_a_success_is_the_result_alone_and_fits_the_listed_schema(meet: "Meet", era: str, way: str) -> None:
    options: dict[str, Any] = {"shape": "plain"} if way == "yard" else {"profile": Profile(name="p", shape="plain")}
    async with meet(tools=TOOLS, era=era, **options) as peer:
        tools = await listed(peer)
        result = await call(peer, "order", number=7)
        text = await call(peer, "say")
        picture = await call(peer, "paint")
        failure = await call(peer, "order", number="many")

    assert result["structuredContent"] == {"number": 7, "note": ""} == msgspec.json.decode(result["content"][0]["text"])
    schema = tools["order"]["outputSchema"]
    assert schema["type"] == "object"
    assert jsonschema_rs.is_valid(schema, result["structuredContent"])
    assert text["content"] == [{"type": "text", "text": 'ü"'}]
    assert "outputSchema" not in tools["say"]
    assert [block["type"] for block in picture["content"]] == ["text", "image"]
    assert failure["isError"]
    assert failure["structuredContent"]["error"]["code"] == "invalid_input"


async def test_a_tool_that_may_be_held_is_listed_without_a_schema(meet: "Meet") -> None:
    async def ask(_: Call) -> None:
        """Allow everything."""

    async with meet(tools=TOOLS, shape="plain") as peer:
        assert "outputSchema" not in (await listed(peer))["wipe"]
    async with meet(tools=TOOLS, shape="plain", policies=[ask]) as peer:
        assert not any("outputSchema" in item for item in (await listed(peer)).values())


async def test_a_result_over_the_cap_of_a_tool_with_a_listed_schema_is_too_large_and_names_the_handle(
    meet: "Meet",
) -> None:
    async def ask(_: Call) -> None:
        """Allow everything."""

    limits = Limits(result_characters=100)
    async with meet(tools=TOOLS, shape="plain", limits=limits) as peer:
        result = await call(peer, "order", number=1, length=500)
        handle = result["structuredContent"]["error"]["details"]["handle"]
        read = await call(peer, "read_result", handle=handle)
    async with meet(tools=TOOLS, shape="plain", limits=limits, policies=[ask]) as peer:
        unlisted = await call(peer, "order", number=1, length=500)

    error = result["structuredContent"]["error"]
    assert (result["isError"], error["code"], error["may_have_run"]) == (True, "too_large", True)
    assert not read["isError"]
    assert (unlisted["isError"], unlisted["structuredContent"]["status"]) == (False, "stored")


async def test_the_profile_decides_and_the_yard_is_for_profiles_that_say_nothing(meet: "Meet") -> None:
    async with meet(tools=TOOLS, shape="plain", profile=Profile(name="p", shape="envelope")) as peer:
        assert (await call(peer, "order", number=7))["structuredContent"]["data"] == {"number": 7, "note": ""}
        assert "outputSchema" not in (await listed(peer))["order"]

    yard = Yard(tools=TOOLS, shape="plain", profiles=[Profile(name="a"), Profile(name="b", shape="envelope")])
    assert [yard.profile_of(name).shape for name in (None, "a", "b")] == ["plain", "plain", "envelope"]
    yard.configure(origins={}, limits={}, shape="envelope")
    assert [yard.profile_of(name).shape for name in (None, "a", "b")] == [None, None, "envelope"]


async def test_the_estimate_counts_what_is_sent() -> None:
    async with connect(Yard(tools=TOOLS, shape="plain")) as client:
        assert (await client.call("order", number=7)).meta.estimated_tokens == -(-len('{"number":7,"note":""}') // 4)
        assert (await client.call("say")).meta.estimated_tokens == 1
    async with connect(Yard(tools=TOOLS), caller=Caller(profile=Profile(name="p"))) as client:
        assert (await client.call("say")).meta.estimated_tokens > 1
