"""One driver for each SDK: it runs a scripted conversation with the yard's tools and returns what the model saw.

The SDKs are not in our own environment, so they are imported by name and have no types here.
"""

import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from callyard.inject import Conversation
from callyard.inject.claude import claude_options, claude_tool_name
from callyard.inject.function_calling import (
    chat_results,
    chat_tools,
    messages_results,
    messages_tools,
    responses_results,
    responses_tools,
)
from callyard.inject.google_adk import google_adk_toolset
from callyard.inject.langchain import langchain_tools
from callyard.inject.openai import openai_tools
from callyard.inject.pydantic_ai import pydantic_ai_toolset
from callyard.testing.models import (
    Fault,
    OfferedTool,
    ScriptedAnthropic,
    ScriptedModel,
    ScriptedOpenAI,
    ToolResult,
    ToolUse,
    Turn,
)

__all__ = [
    "DRIVERS",
    "Driver",
    "GeminiScript",
    "Transcript",
    "claude_query",
    "gemini_model",
    "import_module",
    "user_prompt",
]

Script = Sequence[Turn]


@dataclass(frozen=True, slots=True)
class Transcript:
    """What the model saw, and the text that it ended with."""

    results: list[ToolResult]
    tools: dict[str, OfferedTool]
    text: str
    request: str = ""
    """The last request to the model, as JSON."""


@dataclass(frozen=True, slots=True)
class Driver:
    """How to run a conversation with one SDK."""

    module: str
    """The module that the SDK's environment has."""
    converse: Callable[[Conversation, Script], Coroutine[Any, Any, Transcript]]
    name_of: Callable[[str], str] = str
    sees_images: bool = True

    @property
    def installed(self) -> bool:
        return find_spec(self.module.partition(".")[0]) is not None and find_spec(self.module) is not None


def _transcript(model: ScriptedModel, text: object) -> Transcript:
    return Transcript(model.results, model.tools, str(text), json.dumps(model.requests[-1]))


async def user_prompt(text: str) -> AsyncGenerator[dict[str, Any]]:
    """Return a prompt as the SDK takes it beside in-process servers."""
    yield {
        "type": "user",
        "message": {"role": "user", "content": text},
        "parent_tool_use_id": None,
        "session_id": "default",
    }


async def claude_query(
    options: Any, model: ScriptedModel, *, home: str, prompt: str = "Go.", sources: Sequence[str] = ()
) -> list[Any]:
    """Run one query of the Claude Agent SDK with the real CLI, and return its messages."""
    sdk = import_module("claude_agent_sdk")
    environment = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": str(Path(home) / "config"),
        "XDG_CACHE_HOME": str(Path(home) / "cache"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    options.env = {**environment, **options.env}
    options.cwd, options.setting_sources = home, list(sources)
    return [message async for message in sdk.query(prompt=user_prompt(prompt), options=options)]


async def _claude(conversation: Conversation, script: Script) -> Transcript:
    sdk = import_module("claude_agent_sdk")

    async def allow(_: str, arguments: dict[str, Any], __: Any) -> Any:
        return sdk.PermissionResultAllow(updated_input=arguments)

    with TemporaryDirectory() as home, ScriptedAnthropic(script) as model:
        options = claude_options(sdk.ClaudeAgentOptions(tools=[], can_use_tool=allow), conversation, most_tools=100)
        messages = await claude_query(options, model, home=home)
        seen = _transcript(model, messages[-1].result)
    # the CLI adds a placeholder of its own
    return replace(seen, tools={name: tool for name, tool in seen.tools.items() if name.startswith("mcp__")})


def _openai_agents(kind: str) -> Callable[[Conversation, Script], Coroutine[Any, Any, Transcript]]:
    async def converse(conversation: Conversation, script: Script) -> Transcript:
        sdk, openai = import_module("agents"), import_module("openai")
        sdk.set_tracing_disabled(disabled=True)
        with ScriptedOpenAI(script) as model:
            async with openai.AsyncOpenAI(base_url=model.url, api_key="none") as client:
                agent = sdk.Agent(
                    name="tester", tools=openai_tools(conversation), model=getattr(sdk, kind)("scripted", client)
                )
                run = sdk.Runner.run_streamed(agent, "Go.")
                async for _ in run.stream_events():
                    pass
            return _transcript(model, run.final_output)

    return converse


async def _pydantic_ai(conversation: Conversation, script: Script) -> Transcript:
    sdk, models = import_module("pydantic_ai"), import_module("pydantic_ai.models.openai")
    openai, providers = import_module("openai"), import_module("pydantic_ai.providers.openai")
    with ScriptedOpenAI(script) as model:
        async with openai.AsyncOpenAI(base_url=model.url, api_key="none") as client:
            chat = models.OpenAIChatModel("scripted", provider=providers.OpenAIProvider(openai_client=client))
            agent = sdk.Agent(chat, toolsets=[pydantic_ai_toolset(conversation)])
            return _transcript(model, (await agent.run("Go.")).output)


async def _langchain(conversation: Conversation, script: Script) -> Transcript:
    agents, models = import_module("langchain.agents"), import_module("langchain_openai")
    with ScriptedOpenAI(script) as model:
        chat = models.ChatOpenAI(model="scripted", base_url=model.url, api_key="none")
        agent = agents.create_agent(chat, langchain_tools(conversation))
        done = await agent.ainvoke({"messages": [{"role": "user", "content": "Go."}]})
        return _transcript(model, done["messages"][-1].content)


async def _langgraph(conversation: Conversation, script: Script) -> Transcript:
    graphs, prebuilt, models = (
        import_module(name) for name in ("langgraph.graph", "langgraph.prebuilt", "langchain_openai")
    )
    tools = langchain_tools(conversation)
    with ScriptedOpenAI(script) as model:
        chat = models.ChatOpenAI(
            model="scripted", base_url=model.url, api_key="none", use_responses_api=True
        ).bind_tools(tools)

        async def ask_model(state: dict[str, Any]) -> dict[str, Any]:
            return {"messages": [await chat.ainvoke(state["messages"])]}

        graph = (
            graphs.StateGraph(graphs.MessagesState)
            .add_node("model", ask_model)
            .add_node("tools", prebuilt.ToolNode(tools))
        )
        graph.add_edge(graphs.START, "model").add_conditional_edges("model", prebuilt.tools_condition).add_edge(
            "tools", "model"
        )
        done = await graph.compile().ainvoke({"messages": [{"role": "user", "content": "Go."}]})
        return _transcript(model, done["messages"][-1].text)


async def _messages(conversation: Conversation, script: Script) -> Transcript:
    anthropic = import_module("anthropic")
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    with ScriptedAnthropic(script) as model:
        async with anthropic.AsyncAnthropic(base_url=model.url, api_key="none") as client:
            while True:
                request = {
                    "model": "scripted",
                    "max_tokens": 100,
                    "messages": messages,
                    "tools": messages_tools(conversation),
                }
                async with client.messages.stream(**request) as stream:
                    reply = await stream.get_final_message()
                results = await messages_results(conversation, reply.content)
                if not results:
                    return _transcript(model, reply.content[0].text)
                messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]


async def _responses(conversation: Conversation, script: Script) -> Transcript:
    openai = import_module("openai")
    items: list[Any] = [{"role": "user", "content": "Go."}]
    with ScriptedOpenAI(script) as model:
        async with openai.AsyncOpenAI(base_url=model.url, api_key="none") as client:
            while True:
                reply = await client.responses.create(
                    model="scripted", input=items, tools=responses_tools(conversation)
                )
                results = await responses_results(conversation, reply.output)
                if not results:
                    return _transcript(model, reply.output_text)
                items += [*reply.output, *results]


async def _chat(conversation: Conversation, script: Script) -> Transcript:
    openai = import_module("openai")
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    with ScriptedOpenAI(script) as model:
        async with openai.AsyncOpenAI(base_url=model.url, api_key="none") as client:
            while True:
                reply = await client.chat.completions.create(
                    model="scripted", messages=messages, tools=chat_tools(conversation)
                )
                message = reply.choices[0].message
                results = await chat_results(conversation, message)
                if not results:
                    return _transcript(model, message.content)
                messages += [message, *results]


async def _google_adk(conversation: Conversation, script: Script) -> Transcript:
    agents = import_module("google.adk.agents")
    gemini, model = gemini_model(script)
    text = await gemini.run(agents.LlmAgent(name="tester", model=model, tools=[google_adk_toolset(conversation)]))
    return Transcript(gemini.results, gemini.tools, text)


def gemini_model(script: Script) -> "tuple[GeminiScript, Any]":
    """Return a script, and the model class that follows it: Google's SDK speaks no API that a scripted model has."""
    base, response = import_module("google.adk.models.base_llm"), import_module("google.adk.models.llm_response")
    gemini = GeminiScript(script)

    class Scripted(base.BaseLlm):
        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[Any]:  # noqa: FBT001, FBT002 - the base class has it
            yield response.LlmResponse(content=gemini.answer(llm_request))

    return gemini, Scripted(model="scripted")


class GeminiScript:
    """A script in the words of Gemini's API, and what the model saw."""

    def __init__(self, script: Script) -> None:
        self._script = list(script)
        self._types = import_module("google.genai.types")
        self.results: list[ToolResult] = []
        self.tools: dict[str, OfferedTool] = {}

    async def run(self, agent: Any) -> str:
        """Run an agent, and return its last text."""
        runner = import_module("google.adk.runners").InMemoryRunner(agent=agent, app_name="tests")
        session = await runner.session_service.create_session(app_name="tests", user_id="tester")
        prompt = self._types.Content(role="user", parts=[self._types.Part(text="Go.")])
        text = ""
        async for event in runner.run_async(user_id="tester", session_id=session.id, new_message=prompt):
            text = "".join(part.text or "" for part in event.content.parts) if event.content else text
        return text

    def answer(self, request: Any) -> Any:
        """Return the turn that answers a request."""
        declared = [declaration for tool in request.config.tools for declaration in tool.function_declarations]
        self.tools = {
            tool.name: OfferedTool(tool.name, tool.description, tool.parameters_json_schema) for tool in declared
        }
        parts = [part for content in request.contents for part in content.parts]
        answers = [part.function_response for part in parts if part.function_response]
        self.results = [
            ToolResult(answer.name, json.dumps(answer.response), content=answer.response) for answer in answers
        ]
        turn = self._script[sum(content.role == "model" for content in request.contents)]
        assert not isinstance(turn, Fault)
        said = [turn] if isinstance(turn, str | ToolUse) else turn
        return self._types.Content(role="model", parts=[self._part(part) for part in said])

    def _part(self, part: str | ToolUse) -> Any:
        if isinstance(part, str):
            return self._types.Part(text=part)
        return self._types.Part(function_call=self._types.FunctionCall(name=part.name, args=part.arguments))


DRIVERS = {
    "claude": Driver("claude_agent_sdk", _claude, claude_tool_name),
    "openai-responses": Driver("agents", _openai_agents("OpenAIResponsesModel")),
    "openai-chat": Driver("agents", _openai_agents("OpenAIChatCompletionsModel"), sees_images=False),
    "pydantic-ai": Driver("pydantic_ai", _pydantic_ai),
    "langchain": Driver("langchain", _langchain),
    "langchain-langgraph": Driver("langgraph.prebuilt", _langgraph),
    "function-calling-messages": Driver("anthropic", _messages),
    "function-calling-responses": Driver("openai", _responses),
    "function-calling-chat": Driver("openai", _chat, sees_images=False),
    "google-adk": Driver("google.adk", _google_adk, sees_images=False),
}
