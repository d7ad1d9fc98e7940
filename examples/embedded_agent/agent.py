"""The agent: a loop around Anthropic's Messages API, with the tools of a yard."""

import asyncio
import json
import os
from typing import Any
from urllib.request import Request, urlopen

from callyard.inject import Conversation
from callyard.inject.function_calling import messages_results, messages_tools

__all__ = ["run_agent"]

MODEL = "claude-sonnet-4-5"


async def run_agent(conversation: Conversation, url: str, prompt: str, *, most_turns: int = 20) -> str:
    """Let the model call tools until it answers with a text alone, and return that."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for _ in range(most_turns):
        content = await asyncio.to_thread(_ask_model, url, messages, conversation)
        results = await messages_results(conversation, content)
        if not results:
            return "".join(block["text"] for block in content if block["type"] == "text")
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    return f"The agent was stopped after {most_turns} turns."


def _ask_model(url: str, messages: list[dict[str, Any]], conversation: Conversation) -> list[dict[str, Any]]:
    """Send the conversation to the model, and return the content of its answer."""
    body = {"model": MODEL, "max_tokens": 2000, "messages": messages}
    body |= {"system": conversation.instructions(), "tools": messages_tools(conversation)}
    headers = {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": os.environ.get("ANTHROPIC_API_KEY", ""),
    }
    with urlopen(Request(f"{url}/v1/messages", json.dumps(body).encode(), headers), timeout=120) as response:  # noqa: S310 - the URL is the operator's
        return json.load(response)["content"]
