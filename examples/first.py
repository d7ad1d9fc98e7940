"""The example of the README: a function, a yard, and three calls."""

import asyncio

from callyard import Yard, tool


@tool(operation="query")
def long_words(text: str, letters: int = 5) -> list[str]:
    """Find the words that have so many letters or more."""
    return [word for word in text.split() if len(word) >= letters]


async def main() -> None:
    """Call it correctly, with a repairable mistake, and with a mistake."""
    async with Yard(tools=[long_words]) as yard:
        for change in ({}, {"letters": "4"}, {"leters": 4}):
            answer = await yard.call("long_words", {"text": "a yard full of tools", **change})
            print(answer.to_json().decode())


asyncio.run(main())
