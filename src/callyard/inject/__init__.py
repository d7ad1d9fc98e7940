"""The yard inside an agent SDK: its tools in the same process, without MCP between them.

Each adapter is a module that imports its SDK when it is used: `claude`, `openai`, `pydantic_ai`, `langchain` and
`google_adk`. `function_calling` is for programs that call a model's API themselves.

Its files:

- `claude`: the yard in the Claude Agent SDK: in-process MCP servers, made anew for each query
- `function_calling`: tool definitions for the APIs of Anthropic and OpenAI, and results of calls
- `google_adk`: the yard in Google's Agent Development Kit, as a toolset
- `langchain`: the yard in LangChain and LangGraph, as tools
- `openai`: the yard in the OpenAI Agents SDK, as function tools
- `plain`: what every agent SDK accepts: tools as a name, a description, a schema and an async function, for one
  conversation
- `pydantic_ai`: the yard in Pydantic AI, as a toolset
"""

from callyard.inject.plain import Answer, Conversation, Elicit, PlainTool, plain_tools

__all__ = ["Answer", "Conversation", "Elicit", "PlainTool", "plain_tools"]
