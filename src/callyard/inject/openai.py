"""The yard in the OpenAI Agents SDK, as function tools."""

from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from callyard.inject.plain import Conversation, ConversationOptions, PlainTool, import_sdk
from callyard.yard import Yard

__all__ = ["openai_tools"]


def openai_tools(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> list[Any]:
    """Return the listed tools as a list of `FunctionTool`, for `Agent(tools=…)`.

    Their schemas are not strict, because strict ones have no optional arguments; the yard checks the arguments itself.
    """
    sdk = import_sdk("agents", extra="openai")
    return [
        sdk.FunctionTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=tool.schema,
            on_invoke_tool=_invoke_with(tool, sdk),
            strict_json_schema=False,
        )
        for tool in Conversation.of(yard, "openai-agents", options).tools()
    ]


def _invoke_with(tool: PlainTool, sdk: Any) -> Callable[[Any, str], Awaitable[Any]]:
    async def invoke(context: Any, arguments: str) -> Any:
        answer = await tool(arguments, meta={"openai/toolCallId": context.tool_call_id})
        images = [sdk.ToolOutputImage(image_url=url) for url in answer.image_urls]
        return [sdk.ToolOutputText(text=answer.text), *images] if images else answer.text

    return invoke
