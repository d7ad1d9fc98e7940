"""What only the OpenAI Agents SDK has: conversations in the yard's store, and no folder."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Any

import pytest
from conftest import Host, approve, back, of_type

from callyard import tool
from callyard.agents.openai import OpenAIRuntime, StoredItems, explain_error
from callyard.model.content import Image
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.providers.functions.provider import Functions
from callyard.state.memory import MemoryStore
from callyard.testing.models import ToolUse

Hosting = Callable[..., AbstractAsyncContextManager[Host]]


async def test_an_agent_has_no_folder_and_no_servers_of_the_host(hosting: Hosting) -> None:
    async with hosting(["Done."]) as host:
        with pytest.raises(ToolError) as refused:
            await host.send(cwd="/tmp")  # noqa: S108 - it is refused
        with pytest.raises(ValueError, match="upstreams"):
            host.manager.set_mcp_servers({"other": {}})

    assert refused.value.code == "not_supported"


async def test_a_call_that_was_never_answered_is_left_out_when_the_session_goes_on(hosting: Hosting) -> None:
    async with hosting([ToolUse("burn", {"what": "tea"}), "Never.", "Never."]) as host:
        asked = asyncio.Event()
        turn = asyncio.create_task(host.send(decide=lambda _, __: asked.set()))
        await asked.wait()
        [session] = await host.manager.sessions.all()
        await host.manager.cancel(session)
        await turn
        host.model.script_for = back
        events = await host.send("Again.")
        items = host.model.requests[-1]["input"]

    assert [event.text for event in of_type(events, "text_delta")] == ["Back."]
    calls = {item["call_id"] for item in items if item.get("type") == "function_call"}
    assert calls == {item["call_id"] for item in items if item.get("type") == "function_call_output"}


async def test_reasoning_before_a_call_that_was_never_answered_is_left_out_too(hosting: Hosting) -> None:
    store = MemoryStore()
    async with hosting(["Done."], store=store) as host:
        await host.send()
        [session] = await host.manager.sessions.all()
        items: Any = StoredItems(store, host.manager.sessions.items_key(session))
        reasoning: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}
        await items.add_items(
            [reasoning, {"type": "function_call", "call_id": "c_1", "name": "look", "arguments": "{}"}]
        )
        host.model.script_for = back
        await host.send("Again.")
        sent = host.model.requests[-1]["input"]

    assert [item for item in sent if item.get("type") in {"reasoning", "function_call"}] == []


@tool(operation="query")
def picture() -> Image:
    """Return a picture."""
    return Image(b"png", "image/png")


async def test_a_result_with_an_image_is_its_text_and_a_word_for_the_image(hosting: Hosting) -> None:
    async with hosting([ToolUse("picture"), "Done."], yard={"providers": [Functions("pictures", [picture])]}) as host:
        events = await host.send(decide=approve)

    [result] = of_type(events, "tool_result")
    envelope, _, image = result.text.rpartition("\n")
    assert (Envelope.from_json(envelope).success, image, result.is_error) == (True, "[image]", False)


async def test_a_deleted_session_leaves_nothing_in_the_store(hosting: Hosting) -> None:
    async with hosting([ToolUse("look"), "Done."]) as host:
        await host.send("Remember heliotrope.", decide=approve)
        store = host.manager.yard.store
        [session] = await host.manager.sessions.all()
        assert await store.keys("agent_items/")
        await host.manager.delete(session)

        assert (await store.keys("agent_items/"), await store.keys("agent_session/")) == ([], [])


async def test_a_model_that_cannot_be_reached_is_an_error(hosting: Hosting) -> None:
    async with hosting(["Never."]) as host:
        host.model.__exit__()
        events = await host.send()
        host.model.__enter__()

    [error] = of_type(events, "error")
    assert (error.code, error.retryable, events[-1].status) == ("upstream_unavailable", False, "failed")


def test_a_refusal_of_the_model_is_explained() -> None:
    sdk, openai, httpx = import_module("agents"), import_module("openai"), import_module("httpx")
    response = httpx.Response(401, request=httpx.Request("POST", "http://127.0.0.1"))

    key: Any = explain_error(openai.AuthenticationError("No such key.", response=response, body=None), sdk, openai)
    often: Any = explain_error(
        openai.RateLimitError("Slow down.", response=httpx.Response(429, request=response.request), body=None),
        sdk,
        openai,
    )
    missing: Any = explain_error(openai.OpenAIError("The api_key client option must be set."), sdk, openai)
    bad = httpx.Response(400, request=response.request)
    length: Any = explain_error(
        openai.BadRequestError(
            "Too long.", response=bad, body={"code": "context_length_exceeded", "message": "Too long."}
        ),
        sdk,
        openai,
    )
    quota: Any = explain_error(
        openai.RateLimitError("Pay.", response=bad, body={"code": "insufficient_quota"}), sdk, openai
    )
    steps: Any = explain_error(sdk.MaxTurnsExceeded("Too many."), sdk, openai)
    other: Any = explain_error(sdk.ModelBehaviorError("x" * 1000), sdk, openai)

    assert (key.code, often.code, steps.code, other.code) == (
        "unauthenticated",
        "rate_limited",
        "limit_exceeded",
        "upstream_error",
    )
    assert (missing.code, length.code, quota.code) == ("unauthenticated", "too_large", "budget_exceeded")
    assert (
        "OPENAI_API_KEY" in key.hint,
        "OPENAI_API_KEY" in missing.hint,
        "later" in often.hint,
        "shorter" in length.hint,
    ) == (True,) * 4
    assert len(other.message) < 600
    assert isinstance(explain_error(KeyError("x"), sdk, openai), KeyError)


async def test_items_are_kept_as_the_sdks_protocol_says() -> None:
    items: Any = StoredItems(MemoryStore(), "key")
    await items.add_items([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    await items.add_items([{"type": "function_call", "call_id": "1", "name": "x", "arguments": "{}"}])

    assert [item.get("content") for item in await items.get_items()] == ["a", "b", None]
    assert [item.get("content") for item in await items.get_items(2)] == ["b", None]
    assert (await items.pop_item())["call_id"] == "1"
    await items.clear_session()
    assert (await items.get_items(), await items.pop_item()) == ([], None)


def test_the_runtime_checks_that_its_sdk_is_there() -> None:
    OpenAIRuntime().check()
