"""The same conversations with every SDK: the model sees the same names, schemas, answers and failures as over MCP."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from conftest import Shop
from drivers import Driver

from callyard.inject import Conversation
from callyard.testing.models import ToolUse
from callyard.transports.memory import Memory
from callyard.yard import Yard

TIMEOUT = 60.0
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


async def test_a_call_that_the_host_cancels_is_answered_and_the_conversation_goes_on(
    shop: Shop, driver: Driver, name_of: NameOf
) -> None:
    conversation = Conversation(shop.yard)

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
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
    async with asyncio.timeout(TIMEOUT):
        await shop.started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await shop.stopped.wait()

    assert (shop.sink.codes[-1], shop.yard.calls_in_flight) == ("cancelled", 0)


@pytest.mark.parametrize(
    ("answer", "expected"), [({"sure": True}, "burnt"), ({"sure": False}, "kept"), (None, "approval_denied")]
)
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


@pytest.mark.parametrize("is_approved", [True, False])
async def test_the_host_asks_its_person_before_a_tool_that_destroys(
    shop: Shop,
    driver: Driver,
    name_of: NameOf,
    is_approved: bool,  # noqa: FBT001 - a parameter of a test
) -> None:
    asked: list[str] = []

    async def elicit(text: str, _: Mapping[str, Any]) -> Mapping[str, Any] | None:
        asked.append(text)
        return {} if is_approved else None

    seen = await driver.converse(
        Conversation(shop.yard, elicit=elicit), [ToolUse(name_of("clear"), {"shelf": "A"}), "Done."]
    )

    [result] = seen.results
    error = result.envelope.error
    assert (len(asked), "'clear'" in asked[0], '"A"' in asked[0]) == (1, True, True)
    if is_approved:
        assert (result.envelope.data, shop.cleared) == ("A is empty", ["A"])
    else:
        assert error is not None
        assert (error.code, error.details["reason"], error.may_have_run, shop.cleared) == (
            "approval_denied",
            "denied",
            False,
            [],
        )
    assert (shop.sink.codes, seen.text) == ([None if is_approved else "approval_denied"], "Done.")


async def test_an_operator_decides_while_the_call_is_held(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    seen_approvals = set[str]()
    uses = [ToolUse(name_of("clear"), {"shelf": shelf}) for shelf in ("A", "B")]

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        running = group.create_task(driver.converse(Conversation(shop.yard), [*uses, "Done."]))
        await shop.decide(await shop.next_approval(seen_approvals), "approve")
        await shop.decide(await shop.next_approval(seen_approvals), "deny", reason="B is full of eggs.")
    approved, denied = [result.envelope for result in running.result().results]

    assert approved.data == "A is empty"
    assert denied.error is not None
    assert (denied.error.code, "B is full of eggs." in denied.error.message) == ("approval_denied", True)
    assert (shop.cleared, shop.sink.codes) == (["A"], [None, "approval_denied"])


@pytest.mark.parametrize("shop", [0.0], indirect=True)
async def test_a_call_that_is_approved_after_its_answer_runs_once_when_it_is_made_again(
    shop: Shop, driver: Driver, name_of: NameOf
) -> None:
    clear = ToolUse(name_of("clear"), {"shelf": "A"})

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        script = [clear, ToolUse(name_of("wait_for_decision")), clear, clear, "Done."]
        running = group.create_task(driver.converse(Conversation(shop.yard), script))
        approval = await shop.next_approval(set())
        await shop.decide(approval, "approve")
        shop.decided.set()
    asked, _, cleared, again = [result.envelope for result in running.result().results]

    assert (asked.data["status"], asked.data["approval_id"]) == ("approval_required", approval.id)
    assert (cleared.data, again.data["status"], shop.cleared) == ("A is empty", "approval_required", ["A"])


async def test_an_approval_of_one_conversation_is_none_for_the_same_call_of_another(
    shop: Shop, driver: Driver, name_of: NameOf
) -> None:
    script = [ToolUse(name_of("clear"), {"shelf": "A"}), "Done."]
    one, other = (Conversation(shop.yard, scope=scope) for scope in ("one", "other"))
    seen_approvals = set[str]()

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        running = [group.create_task(driver.converse(conversation, script)) for conversation in (one, other)]
        for approval in [await shop.next_approval(seen_approvals) for _ in running]:
            await shop.decide(approval, "approve" if approval.binding.owner == one.caller.owner else "deny")
    approved, denied = [task.result().results[0].envelope for task in running]

    assert approved.data == "A is empty"
    assert denied.error is not None
    assert (denied.error.code, shop.cleared) == ("approval_denied", ["A"])


async def test_images_follow_the_envelope_where_the_sdk_takes_them(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    seen = await driver.converse(Conversation(shop.yard), [ToolUse(name_of("paint")), "Done."])

    assert '"painted"' in seen.results[0].text
    assert ("image/png" in seen.request) is driver.sees_images


async def test_a_plain_tool_answers_without_an_envelope(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    seen = await driver.converse(Conversation(shop.yard), [ToolUse(name_of("greet")), "Done."])

    assert seen.results[0].text in {"Hello.", '{"result": "Hello."}'}


async def test_two_conversations_never_see_the_sessions_and_handles_of_each_other(
    shop: Shop, driver: Driver, name_of: NameOf
) -> None:
    meet, count = ToolUse(name_of("meet")), ToolUse(name_of("get_session_count"))
    use_handle = ToolUse(name_of("count"), {"items": {"$ref": "r_1"}})

    async with asyncio.timeout(TIMEOUT):
        one, other = await asyncio.gather(
            driver.converse(
                Conversation(shop.yard),
                [ToolUse(name_of("open_cart")), ToolUse(name_of("archive")), meet, use_handle, count, "Done."],
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


async def test_names_descriptions_and_schemas_are_the_same_as_over_mcp(
    shop: Shop, driver: Driver, name_of: NameOf
) -> None:
    [listed] = await over_mcp(shop.yard, {"method": "tools/list"})
    seen = await driver.converse(Conversation(shop.yard), [ToolUse(name_of("ping")), "Done."])

    offered = {tool.name: (tool.description, tool.schema) for tool in seen.tools.values()}
    assert offered == {name_of(tool["name"]): (tool["description"], tool["inputSchema"]) for tool in listed["tools"]}


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("order", {"item": "tea"}),
    ("order", {"item": 1, "colour": "red"}),
    ("order", {"item": "tea", "count": "2"}),
    ("order", {"item": "tea", "count": "two"}),
    ("price", {}),
    ("archive", {}),
    ("clear", {"shelf": "A"}),
    ("burn", {}),
]


async def test_answers_and_failures_are_the_same_as_over_mcp(shop: Shop, driver: Driver, name_of: NameOf) -> None:
    requests = [{"method": "tools/call", "params": {"name": name, "arguments": arguments}} for name, arguments in CALLS]
    script = [ToolUse(name_of(name), arguments) for name, arguments in CALLS]
    seen_approvals = set[str]()

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        conversing = group.create_task(driver.converse(Conversation(shop.yard), [*script, "Done."]))
        calling = group.create_task(over_mcp(shop.yard, *requests))
        for _ in range(2):
            await shop.decide(await shop.next_approval(seen_approvals), "deny")
    envelopes = [json.loads(result.text) for result in conversing.result().results]
    answered = [result["structuredContent"] for result in calling.result()]

    codes = [None, "invalid_input", None, "invalid_input", "state_error", None, "approval_denied", "not_supported"]
    assert [answer["error"] and answer["error"]["code"] for answer in envelopes] == codes
    assert [_comparable(answer) for answer in envelopes] == [_comparable(answer) for answer in answered]


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope without what differs from call to call: times, and the ids of calls, handles and approvals."""
    facts = sorted(
        answer["_meta"].keys() - {"coerced"}
    )  # the CLI of Claude repairs some arguments before they reach the yard
    return json.loads(re.sub(r"\b[acr]_\w+", "ID", json.dumps({**answer, "_meta": facts})))
