"""The examples of the guide that need an SDK run as they are shown."""

import ast
import inspect
import json
import re
from collections.abc import AsyncGenerator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from drivers import gemini_model, import_module

from callyard import Yard, tool
from callyard.inject.claude import claude_tool_name
from callyard.testing.models import ScriptedAnthropic, ScriptedOpenAI, ToolUse

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "inject.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
ARGUMENTS = {"name": "Ada"}
HAS_GOOGLE_ADK = find_spec("google") is not None
OPENAI = [] if HAS_GOOGLE_ADK else ["agents", "pydantic_ai", "langchain.agents"]


@tool(operation="command")
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}."


@pytest.fixture
async def yard() -> AsyncGenerator[Yard]:
    async with Yard("hall", tools=[greet]) as yard:
        yield yard


async def run(code: str, **names: Any) -> dict[str, Any]:
    compiled = compile(code, str(GUIDE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    namespace: dict[str, Any] = {**names}
    result = eval(compiled, namespace)  # noqa: S307 - our own page
    if compiled.co_flags & inspect.CO_COROUTINE:
        await result
    return namespace


def block_of(module: str) -> str:
    [block] = [block for block in BLOCKS if block.startswith(f"from {module}")]
    return block


def test_every_example_is_tested() -> None:
    imported = {block.split()[1] for block in BLOCKS}

    assert imported == {"claude_agent_sdk", "agents", "pydantic_ai", "langchain.agents", "google.adk.agents"}


@pytest.mark.parametrize("module", OPENAI)
async def test_the_example_of_an_sdk_works(module: str, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    import_module("agents").set_tracing_disabled(disabled=True)
    with ScriptedOpenAI([ToolUse("greet", ARGUMENTS), "Done."]) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        await run(block_of(module), yard=yard)

    assert model.results[0].envelope.data == "Hello, Ada."


@pytest.mark.skipif(HAS_GOOGLE_ADK, reason="The environment of Google ADK has no other SDK.")
async def test_the_example_of_claude_works(yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def can_use_tool(_: str, arguments: dict[str, Any], __: Any) -> Any:
        return import_module("claude_agent_sdk").PermissionResultAllow(updated_input=arguments)

    monkeypatch.chdir(tmp_path)
    for name, value in {
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": str(tmp_path),
        "ENABLE_TOOL_SEARCH": "false",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ScriptedAnthropic([ToolUse(claude_tool_name("greet"), ARGUMENTS), "Done."]) as model:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", model.url)
        await run(block_of("claude_agent_sdk"), yard=yard, can_use_tool=can_use_tool)

    assert model.results[0].envelope.data == "Hello, Ada."


@pytest.mark.skipif(not HAS_GOOGLE_ADK, reason="Only the environment of Google ADK has it.")
async def test_the_example_of_google_adk_works(yard: Yard) -> None:
    script, model = gemini_model([ToolUse("greet", ARGUMENTS), "Done."])
    names = await run(block_of("google.adk.agents"), yard=yard, model=model)
    await script.run(names["agent"])

    assert json.loads(script.results[0].text)["data"] == "Hello, Ada."
