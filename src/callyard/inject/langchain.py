"""The yard in LangChain and LangGraph, as tools."""

from typing import Any, Unpack

from callyard.inject.plain import Answer, Conversation, ConversationOptions, PlainTool, import_sdk
from callyard.yard import Yard

__all__ = ["langchain_tools"]


def langchain_tools(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> list[Any]:
    """Return the listed tools as a list of `BaseTool`; they are async, so use `ainvoke` and its like.

    The message of a tool has the text for the model, the envelope as its artifact, and the status 'error' after a
    failure.
    """
    core = import_sdk("langchain_core.tools", extra="langchain")

    class YardTool(core.BaseTool):
        plain: Any

        def _run(self, /, **_: Any) -> Any:
            raise NotImplementedError("The tools of a yard are async: use 'ainvoke'.")

        async def _arun(self, /, **arguments: Any) -> Any:
            answer = await self.plain(arguments)
            if answer.is_error:
                raise core.ToolException(answer)
            return _content_of(answer), answer.envelope

    def make(tool: PlainTool) -> Any:
        return YardTool(
            name=tool.name,
            description=tool.description,
            args_schema=tool.schema,
            plain=tool,
            response_format="content_and_artifact",
            handle_tool_error=_content_of_error,  # LangChain's way to an error that is a result
        )

    return [make(tool) for tool in Conversation.of(yard, "langchain", options).tools()]


def _content_of_error(error: Exception) -> Any:
    return _content_of(error.args[0])


def _content_of(answer: Answer) -> Any:
    images = [{"type": "image", "base64": data, "mime_type": media_type} for media_type, data in answer.images]
    return [{"type": "text", "text": answer.text}, *images] if images else answer.text
