"""The same conversations with every SDK: the model sees the same names, schemas, answers and failures as over MCP."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from conftest import Shop
from drivers import Driver

from toolyard.inject import Conversation
from toolyard.testing.models import ToolUse
from toolyard.transports.memory import Memory
from toolyard.yard import Yard

PATIENCE = 60.0
NameOf = Callable[[str], str]


async def test_the_model_sees_the_envelope_of_each_call(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    script = [
        ToolUse(name_of("ping")),
        ToolUse(name_of("order"), {"item": "tea", "count": 2}),
        ToolUse(name_of("price")),
        ToolUse(name_of("order"), {"count": "many"}),
        "Done.",
    ]

    seen = await driver.converse(Conversation(shop.yard), script)

    ping, order, price, wrong = [result.envelope for result in seen.results]
    assert ping.data["status"] == "pong"
    assert order.data == {"item": "tea", "count": 2, "size": "small"}
    assert price.error is not None
    assert (price.error.code, price.error.details["reason"]) == ("state_error", "sold_out")
    assert wrong.error is not None
    assert (wrong.error.code, wrong.error.tool_id) == ("invalid_input", "order")
    assert seen.text == "Done."


async def test_calls_of_one_turn_are_all_answered(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    uses = [ToolUse(name_of("order"), {"item": item}) for item in ("tea", "milk", "salt")]

    seen = await driver.converse(Conversation(shop.yard), [["Three at once.", *uses], "Done."])

    assert sorted(result.envelope.data["item"] for result in seen.results) == ["milk", "salt", "tea"]


async def test_a_call_that_the_host_cancels_is_answered_and_the_conversation_goes_on(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    conversation = Conversation(shop.yard)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        running = group.create_task(driver.converse(conversation, [ToolUse(name_of("wait")), "Done."]))
        await shop.started.wait()
        assert conversation.cancel() == 1
    seen = running.result()

    [result] = seen.results
    assert result.envelope.error is not None
    assert result.envelope.error.code == "cancelled"
    assert (seen.text, shop.stopped.is_set(), shop.yard.calls_in_flight) == ("Done.", True, 0)


async def test_cancelling_the_run_cancels_its_call(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    running = asyncio.create_task(driver.converse(Conversation(shop.yard), [ToolUse(name_of("wait")), "Done."]))
    async with asyncio.timeout(PATIENCE):
        await shop.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await shop.stopped.wait()

    assert (shop.sink.codes[-1], shop.yard.calls_in_flight) == ("cancelled", 0)


@pytest.mark.parametrize(("answer", "expected"), [({"sure": True}, "burnt"), ({"sure": False}, "kept"), (None, "approval_denied")])
async def test_a_tool_asks_its_person_by_way_of_the_host(
    shop: Shop, driver: Driver, name_of: NameOf, answer: Mapping[str, Any] | None, expected: str
) -> None:
    asked: list[str] = []

    async def elicit(text: str, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        asked.append(text)
        assert schema["required"] == ["sure"]
        return answer

    seen = await driver.converse(Conversation(shop.yard, elicit=elicit), [ToolUse(name_of("burn")), "Done."])

    envelope = seen.results[0].envelope
    assert (envelope.error.code if envelope.error else envelope.data) == expected
    assert asked == ["Really burn it?"]


async def test_a_tool_cannot_ask_a_host_that_has_no_way_to(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    seen = await driver.converse(Conversation(shop.yard), [ToolUse(name_of("burn")), "Done."])

    error = seen.results[0].envelope.error
    assert error is not None
    assert (error.code, error.may_have_run) == ("not_supported", True)


async def test_images_follow_the_envelope_where_the_sdk_takes_them(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    seen = await driver.converse(Conversation(shop.yard), [ToolUse(name_of("paint")), "Done."])

    assert '"painted"' in seen.results[0].text
    assert ("image/png" in seen.request) is driver.sees_images


async def test_a_plain_tool_answers_without_an_envelope(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    seen = await driver.converse(Conversation(shop.yard), [ToolUse(name_of("greet")), "Done."])

    assert seen.results[0].text in {"Hello.", '{"result": "Hello."}'}


async def test_two_conversations_never_see_the_sessions_and_handles_of_each_other(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    meet, count = ToolUse(name_of("meet")), ToolUse(name_of("get_session_count"))
    use_handle = ToolUse(name_of("count"), {"items": {"$ref": "r_1"}})

    async with asyncio.timeout(PATIENCE):
        one, other = await asyncio.gather(
            driver.converse(
                Conversation(shop.yard), [ToolUse(name_of("open_cart")), ToolUse(name_of("archive")), meet, use_handle, count, "Done."]
            ),
            driver.converse(Conversation(shop.yard), [meet, use_handle, count, "Done."]),
        )

    assert [result.envelope.data for result in one.results[-2:]] == [500, 1]
    denied, sessions = [result.envelope for result in other.results[-2:]]
    assert denied.error is not None
    assert (denied.error.code, sessions.data) == ("invalid_input", 0)


async def over_mcp(yard: Yard, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of requests over MCP."""
    memory = Memory()
    start = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    requests = [{"method": "initialize", "params": start}, *messages]
    results: list[dict[str, Any]] = []
    async with memory.open(yard):
        for number, message in enumerate(requests):
            memory.send(json.dumps({"jsonrpc": "2.0", "id": number, **message}).encode())
            results.append(json.loads(await memory.received.get())["result"])
            if not number:
                memory.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode())
    return results[1:]


async def test_names_descriptions_and_schemas_are_the_same_as_over_mcp(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    [listed] = await over_mcp(shop.yard, {"method": "tools/list"})
    seen = await driver.converse(Conversation(shop.yard), [ToolUse(name_of("ping")), "Done."])

    offered = {tool.name: (tool.description, tool.schema) for tool in seen.tools.values()}
    assert offered == {name_of(tool["name"]): (tool["description"], tool["inputSchema"]) for tool in listed["tools"]}


@pytest.mark.parametrize("arguments", [{"item": 1, "colour": "red"}, {"item": "tea", "count": "two"}, {}])
async def test_failures_are_the_same_as_over_mcp(shop: Shop, driver: Driver, name_of: NameOf, arguments: dict[str, Any]) -> None:
    [answered] = await over_mcp(shop.yard, {"method": "tools/call", "params": {"name": "order", "arguments": arguments}})
    seen = await driver.converse(Conversation(shop.yard), [ToolUse(name_of("order"), arguments), "Done."])

    told = json.loads(seen.results[0].text)
    assert told["error"] == answered["structuredContent"]["error"]
    assert told["data"] == answered["structuredContent"]["data"]
