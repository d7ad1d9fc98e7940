"""The worker for agent SDKs: what their adapters call, without the SDK's own work around it."""

from types import SimpleNamespace
from typing import Any, Final

from tools import ARGUMENTS, BASE
from worker import Bench, work

from callyard import Yard
from callyard.inject import Conversation, plain_tools
from callyard.inject.claude import SERVER_NAME, claude_servers
from callyard.inject.function_calling import messages_results
from callyard.inject.langchain import langchain_tools
from callyard.inject.openai import openai_tools
from callyard.inject.pydantic_ai import pydantic_ai_toolset
from callyard.monitor import Ring

_JSON: Final = '{"a": 1, "b": 2}'


async def _yard(bench: Bench, _: int) -> None:
    async with Yard(tools=BASE, sinks=[Ring()]) as yard:
        await bench("Yard.call", lambda: yard.call("add", ARGUMENTS), lambda answer: answer.data == 3)


async def _inject(bench: Bench, _: int) -> None:
    async with Yard(tools=BASE, sinks=[Ring()]) as yard:
        conversation = Conversation(yard)
        plain = _add(plain_tools(conversation))
        await bench("plain tool", lambda: plain(ARGUMENTS), lambda answer: answer.envelope.data == 3)
        openai, langchain = _add(openai_tools(conversation)), _add(langchain_tools(conversation))
        context = SimpleNamespace(tool_call_id="call_1")
        await bench("OpenAI Agents SDK", lambda: openai.on_invoke_tool(context, _JSON), _has_data)
        await bench("LangChain", lambda: langchain._arun(**ARGUMENTS), _has_data)  # noqa: SLF001 - the part that is ours
        toolset = pydantic_ai_toolset(conversation)
        await bench("Pydantic AI", lambda: toolset.call_tool("add", ARGUMENTS, None, None), _has_data)
        server = claude_servers(conversation)[SERVER_NAME]["instance"]
        call = server.get_request_handler("tools/call").handler
        params = SimpleNamespace(
            name="add", arguments=ARGUMENTS, meta={"claudecode/toolUseId": "toolu_1", "progressToken": 1}
        )  # as the CLI
        await bench("Claude Agent SDK", lambda: call(None, params), _has_data)
        content = [{"type": "tool_use", "id": "1", "name": "add", "input": ARGUMENTS}]
        await bench("function calling", lambda: messages_results(conversation, content), _has_data)


def _add(tools: list[Any]) -> Any:
    return next(tool for tool in tools if tool.name == "add")


def _has_data(answer: object) -> bool:
    return '"data":3' in str(answer) or "'data': 3" in str(answer)


if __name__ == "__main__":
    work({"yard": _yard, "inject": _inject})
