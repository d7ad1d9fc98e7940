"""The yard in Pydantic AI, as a toolset."""

from base64 import b64decode
from typing import Any, Unpack

from toolyard.inject.plain import Answer, Conversation, ConversationOptions, import_sdk
from toolyard.yard import Yard

__all__ = ["pydantic_ai_toolset"]


def pydantic_ai_toolset(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> Any:
    """Return a toolset for `Agent(toolsets=[…])`; it lists the yard's tools anew for each step, and adds its instructions."""
    toolsets, tools = (import_sdk(f"pydantic_ai.{name}", extra="pydantic-ai") for name in ("toolsets", "tools"))
    messages, core = import_sdk("pydantic_ai.messages", extra="pydantic-ai"), import_sdk("pydantic_core", extra="pydantic-ai")
    conversation = Conversation.of(yard, "pydantic-ai", options)
    anything = core.SchemaValidator(core.core_schema.any_schema())  # the yard checks the arguments itself

    def tool_from(toolset: Any, spec: Any) -> Any:
        definition = tools.ToolDefinition(
            name=spec.name, description=spec.description, parameters_json_schema=spec.input_schema, strict=False
        )
        return toolsets.ToolsetTool(toolset=toolset, tool_def=definition, max_retries=0, args_validator=anything)

    def content_of(answer: Answer) -> Any:
        binaries = [messages.BinaryContent(data=b64decode(data), media_type=media_type) for media_type, data in answer.images]
        return messages.ToolReturn(return_value=answer.text, content=binaries) if binaries else answer.text

    class YardToolset(toolsets.AbstractToolset):
        """The listed tools of a yard, for one conversation."""

        @property
        def id(self) -> str:
            return conversation.yard.name

        async def get_tools(self, ctx: Any) -> dict[str, Any]:  # noqa: ARG002 - the base class has it
            return {spec.name: tool_from(self, spec) for spec in conversation.specs()}

        async def get_instructions(self, ctx: Any) -> str:  # noqa: ARG002 - the same
            return conversation.instructions()

        async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:  # noqa: ARG002 - the same
            return content_of(Answer.of(await conversation.call(name, tool_args)))

    return YardToolset()
