"""The yard in Pydantic AI, as a toolset."""

from base64 import b64decode
from typing import Any, Unpack

import msgspec

from callyard.inject.plain import Answer, Conversation, ConversationOptions, import_sdk
from callyard.yard import Yard

__all__ = ["pydantic_ai_toolset"]


def pydantic_ai_toolset(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> Any:
    """Return a toolset for `Agent(toolsets=[…])`, with the yard's instructions.

    It lists the yard's tools anew for each step.
    """
    toolsets, tools = (import_sdk(f"pydantic_ai.{name}", extra="pydantic-ai") for name in ("toolsets", "tools"))
    messages = import_sdk("pydantic_ai.messages", extra="pydantic-ai")
    conversation = Conversation.of(yard, "pydantic-ai", options)

    def tool_from(toolset: Any, spec: Any) -> Any:
        definition = tools.ToolDefinition(
            name=spec.name, description=spec.description, parameters_json_schema=spec.input_schema, strict=False
        )
        return toolsets.ToolsetTool(toolset=toolset, tool_def=definition, max_retries=0, args_validator=_Unchecked())

    def content_of(answer: Answer) -> Any:
        images = [messages.BinaryContent(data=b64decode(data), media_type=kind) for kind, data in answer.images]
        return messages.ToolReturn(return_value=answer.text, content=images) if images else answer.text

    class YardToolset(toolsets.AbstractToolset):
        @property
        def id(self) -> str:
            return conversation.yard.name

        async def get_tools(self, ctx: Any) -> dict[str, Any]:  # noqa: ARG002 - the base class has it
            return {spec.name: tool_from(self, spec) for spec in conversation.specs()}

        async def get_instructions(self, ctx: Any) -> str:  # noqa: ARG002 - the same
            return conversation.instructions()

        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:  # noqa: ARG002 - the same
            arguments = tool_args.text if isinstance(tool_args, _NoArguments) else tool_args
            return content_of(Answer.of(await conversation.call(name, arguments)))

    return YardToolset()


class _NoArguments(dict[str, Any]):
    """A text that the model wrote in place of a JSON object; the SDK passes it on as a dict."""

    text: str | bytes = b""


class _Unchecked:
    """Stands for the SDK's check of arguments, because the yard makes its own and answers with an envelope."""

    def validate_json(self, input: str | bytes, **_: Any) -> dict[str, Any]:  # noqa: A002 - the SDK's name
        try:
            return msgspec.json.decode(input, type=dict[str, Any])
        except msgspec.DecodeError:
            arguments = _NoArguments()
            arguments.text = input
            return arguments

    def validate_python(self, input: Any, **_: Any) -> Any:  # noqa: A002 - the same
        return input
