"""Plain function calling, with the messages of a model as dicts."""

import json
from typing import Any

import pytest

from callyard import Envelope, Image, Yard, tool
from callyard.inject import Conversation
from callyard.inject.function_calling import (
    chat_results,
    chat_tools,
    messages_results,
    messages_tools,
    responses_results,
    responses_tools,
)


@tool(operation="query")
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(operation="query")
def paint() -> Envelope:
    """Paint."""
    return Envelope.ok("painted", content=[Image(b"1")])


@pytest.fixture
async def conversation() -> Any:
    async with Yard(tools=[add, paint]) as yard:
        yield Conversation(yard)


async def test_definitions_have_the_form_of_each_api(conversation: Conversation) -> None:
    plain = conversation.tools()[0]
    described = {"name": "add", "description": plain.description}
    function = {**described, "parameters": plain.schema, "strict": False}

    assert messages_tools(conversation)[0] == {**described, "input_schema": plain.schema}
    assert responses_tools(conversation)[0] == {"type": "function", **function}
    assert chat_tools(conversation)[0] == {"type": "function", "function": function}


async def test_tool_use_blocks_become_tool_result_blocks(conversation: Conversation) -> None:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "2", "name": "ad", "input": {}},
        {"type": "tool_use", "id": "3", "name": "paint", "input": {}},
    ]

    one, two, three = await messages_results(conversation, content)

    assert (one["type"], one["tool_use_id"], one["is_error"]) == ("tool_result", "1", False)
    assert json.loads(one["content"])["data"] == 3
    assert (two["is_error"], json.loads(two["content"])["error"]["code"]) == (True, "tool_not_found")
    assert [block["type"] for block in three["content"]] == ["text", "image"]
    assert three["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": "MQ=="}


async def test_function_calls_become_outputs(conversation: Conversation) -> None:
    output: list[dict[str, Any]] = [
        {"type": "message", "content": []},
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "2", "name": "add", "arguments": '{"a": '},
        {"type": "function_call", "call_id": "3", "name": "paint", "arguments": ""},
    ]

    one, two, three = await responses_results(conversation, output)

    assert (one["type"], one["call_id"], json.loads(one["output"])["data"]) == ("function_call_output", "1", 3)
    assert json.loads(two["output"])["error"]["code"] == "invalid_input"
    assert [part["type"] for part in three["output"]] == ["input_text", "input_image"]


async def test_tool_calls_become_messages(conversation: Conversation) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

    [message] = await chat_results(conversation, {"role": "assistant", "content": None, "tool_calls": [call]})

    assert (message["role"], message["tool_call_id"], json.loads(message["content"])["data"]) == ("tool", "1", 3)
    assert await chat_results(conversation, {"role": "assistant", "content": "Hello."}) == []
