"""What only LangChain has: messages with a status and an artifact, and tools without async."""

from typing import Any

import pytest
from conftest import Shop

from callyard.inject import Conversation
from callyard.inject.langchain import langchain_tools


def tool_named(shop: Shop, name: str) -> Any:
    return next(tool for tool in langchain_tools(Conversation(shop.yard)) if tool.name == name)


def call_of(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "args": arguments, "id": "1", "type": "tool_call"}


async def test_a_message_has_the_envelope_as_its_artifact(shop: Shop) -> None:
    message = await tool_named(shop, "order").ainvoke(call_of("order", item="tea"))

    assert (message.status, message.artifact.data["item"]) == ("success", "tea")


async def test_a_failure_is_a_message_with_the_status_error(shop: Shop) -> None:
    message = await tool_named(shop, "price").ainvoke(call_of("price"))

    assert message.status == "error"
    assert '"state_error"' in message.content


async def test_a_tool_cannot_be_called_without_async(shop: Shop) -> None:
    with pytest.raises(NotImplementedError):
        tool_named(shop, "order").invoke(call_of("order", item="tea"))
