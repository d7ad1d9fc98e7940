"""The yard in Google's Agent Development Kit, as a toolset."""

from typing import Any, Unpack

import msgspec

from callyard.inject.plain import Answer, Conversation, ConversationOptions, PlainTool, import_sdk
from callyard.yard import Yard

__all__ = ["google_adk_toolset"]


def google_adk_toolset(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> Any:
    """Return a toolset for `LlmAgent(tools=[…])`; it lists the yard's tools anew for each invocation."""
    base_tool, base_toolset = (
        import_sdk(f"google.adk.tools.{name}", extra="google-adk") for name in ("base_tool", "base_toolset")
    )
    types = import_sdk("google.genai.types", extra="google-adk")
    conversation = Conversation.of(yard, "google-adk", options)

    class YardTool(base_tool.BaseTool):
        plain: PlainTool

        def _get_declaration(self) -> Any:
            return types.FunctionDeclaration(
                name=self.name, description=self.description, parameters_json_schema=self.plain.schema
            )

        async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> dict[str, Any]:  # noqa: ARG002 - the base class has it
            return _response(await self.plain(args))

    def make(plain: PlainTool) -> Any:
        tool = YardTool(name=plain.name, description=plain.description)
        tool.plain = plain
        return tool

    class YardToolset(base_toolset.BaseToolset):
        async def get_tools(self, readonly_context: Any = None) -> list[Any]:  # noqa: ARG002 - the same
            return [make(tool) for tool in conversation.tools()]

        async def close(self) -> None:
            """Keep the yard open: it is the host's."""

    return YardToolset()


def _response(answer: Answer) -> dict[str, Any]:
    """Return an answer as an object, which the function responses of Gemini's API must be."""
    if answer.envelope.has_plain_shape and not answer.is_error:
        return {"result": answer.text}
    return msgspec.to_builtins(answer.envelope)
