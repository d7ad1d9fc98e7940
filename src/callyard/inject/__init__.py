"""The yard inside an agent SDK: its tools in the same process, without MCP between them.

Each adapter is a module that imports its SDK when it is used: `claude`, `openai`, `pydantic_ai`, `langchain` and `google_adk`.
`function_calling` is for programs that call a model's API themselves.
"""

from callyard.inject.plain import Answer, Conversation, Elicit, PlainTool, plain_tools

__all__ = ["Answer", "Conversation", "Elicit", "PlainTool", "plain_tools"]
