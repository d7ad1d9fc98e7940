"""What only Pydantic AI has: instructions of a toolset, and tools that are listed anew."""

import json

import pytest
from conftest import Shop
from drivers import import_module

from callyard.inject.pydantic_ai import pydantic_ai_toolset
from callyard.testing import FakeProvider
from callyard.testing.models import ScriptedOpenAI, ToolUse
from callyard.yard import Yard


async def test_the_toolset_tells_the_model_what_the_yard_offers(shop: Shop) -> None:
    with ScriptedOpenAI([ToolUse("ping"), "Done."]) as model:
        await _run(shop.yard, model)

    assert "You have the tools of 'shop'" in json.dumps(model.requests[0])


async def test_a_tool_that_appears_during_a_run_is_offered_in_the_next_step() -> None:
    async def grow() -> str:
        """Publish another tool."""
        provider.change([grow, later])
        return "grown"

    async def later() -> str:
        """Come later."""
        return "here"

    provider = FakeProvider("garden", [grow])
    async with Yard("garden yard", providers=[provider]) as yard:
        with ScriptedOpenAI([ToolUse("grow"), ToolUse("later"), "Done."]) as model:
            await _run(yard, model)

    assert [result.envelope.data for result in model.results] == ["grown", "here"]


@pytest.mark.parametrize("arguments", ['{"item": ', "[]", "tea"])
async def test_arguments_that_are_no_object_are_answered_with_an_envelope(shop: Shop, arguments: str) -> None:
    with ScriptedOpenAI([ToolUse("order", arguments), "Done."]) as model:
        await _run(shop.yard, model)

    error = model.results[0].envelope.error
    assert error is not None
    assert error.code == "invalid_input"


async def _run(yard: Yard, model: ScriptedOpenAI) -> None:
    sdk, models = import_module("pydantic_ai"), import_module("pydantic_ai.models.openai")
    openai, providers = import_module("openai"), import_module("pydantic_ai.providers.openai")
    async with openai.AsyncOpenAI(base_url=model.url, api_key="none") as client:
        chat = models.OpenAIChatModel("scripted", provider=providers.OpenAIProvider(openai_client=client))
        await sdk.Agent(chat, toolsets=[pydantic_ai_toolset(yard)]).run("Go.")
