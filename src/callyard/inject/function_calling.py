"""Plain function calling: tool definitions for the APIs of Anthropic and OpenAI, and results of calls.

Definitions and results are dicts, so no SDK is imported. Calls are read from the SDKs' objects or from dicts.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Unpack, cast

from callyard.inject.plain import Answer, Arguments, Conversation, ConversationOptions, PlainTool, plain_tools
from callyard.yard import Yard

__all__ = ["chat_results", "chat_tools", "messages_results", "messages_tools", "responses_results", "responses_tools"]


def messages_tools(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> list[dict[str, Any]]:
    """Return the listed tools for Anthropic's Messages API."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
        for tool in plain_tools(yard, **options)
    ]


async def messages_results(conversation: Conversation, content: Iterable[Any]) -> list[dict[str, Any]]:
    """Run the `tool_use` blocks of a message's content, and return `tool_result` blocks for the next user message."""
    uses = [block for block in content if _get(block, "type") == "tool_use"]
    answers = await _run(conversation, [(_get(use, "name"), _get(use, "input")) for use in uses])
    return [
        {
            "type": "tool_result",
            "tool_use_id": _get(use, "id"),
            "content": _messages_content(answer),
            "is_error": answer.is_error,
        }
        for use, answer in zip(uses, answers, strict=True)
    ]


def responses_tools(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> list[dict[str, Any]]:
    """Return the listed tools for OpenAI's Responses API."""
    return [{"type": "function", **_function(tool)} for tool in plain_tools(yard, **options)]


async def responses_results(conversation: Conversation, output: Iterable[Any]) -> list[dict[str, Any]]:
    """Run the `function_call` items of a response; return `function_call_output` items for the next input."""
    calls = [item for item in output if _get(item, "type") == "function_call"]
    answers = await _run(conversation, [(_get(call, "name"), _get(call, "arguments")) for call in calls])
    return [
        {"type": "function_call_output", "call_id": _get(call, "call_id"), "output": _responses_output(answer)}
        for call, answer in zip(calls, answers, strict=True)
    ]


def chat_tools(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> list[dict[str, Any]]:
    """Return the listed tools for OpenAI's Chat Completions API."""
    return [{"type": "function", "function": _function(tool)} for tool in plain_tools(yard, **options)]


async def chat_results(conversation: Conversation, message: Any) -> list[dict[str, Any]]:
    """Run the `tool_calls` of an assistant's message, and return the messages with the role 'tool' that follow it."""
    calls = list(_get(message, "tool_calls") or ())
    functions = [_get(call, "function") for call in calls]
    answers = await _run(conversation, [(_get(called, "name"), _get(called, "arguments")) for called in functions])
    return [
        {"role": "tool", "tool_call_id": _get(call, "id"), "content": answer.text}
        for call, answer in zip(calls, answers, strict=True)
    ]


async def _run(conversation: Conversation, calls: list[tuple[str, Arguments]]) -> list[Answer]:
    """Run calls at the same time, and return their answers in order; one that is cancelled cancels the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(conversation.call(name, arguments)) for name, arguments in calls]
    return [Answer.of(task.result()) for task in tasks]


def _function(tool: PlainTool) -> dict[str, Any]:
    # not strict: strict schemas have no optional arguments, and the yard checks the arguments itself
    return {"name": tool.name, "description": tool.description, "parameters": tool.schema, "strict": False}


def _messages_content(answer: Answer) -> Any:
    sources = [{"type": "base64", "media_type": media_type, "data": data} for media_type, data in answer.images]
    images = [{"type": "image", "source": source} for source in sources]
    return [{"type": "text", "text": answer.text}, *images] if images else answer.text


def _responses_output(answer: Answer) -> Any:
    images = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in answer.image_urls]
    return [{"type": "input_text", "text": answer.text}, *images] if images else answer.text


def _get(value: Any, key: str) -> Any:
    """Return a field of an SDK's object, or of the same as a dict."""
    return cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else getattr(value, key, None)
