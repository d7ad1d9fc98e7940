"""The measured tools: plain functions, so that every framework gets the same signatures."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

__all__ = ["ARGUMENTS", "BASE", "Function", "add", "add_sync", "blob", "filler", "measure", "slow", "some"]

Function = Callable[..., Any]

ARGUMENTS: Final = {"a": 1, "b": 2}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def add_sync(a: int, b: int) -> int:
    """Add two numbers, in a function that blocks."""
    return a + b


async def blob(size: int) -> str:
    """Return a text of so many characters."""
    return "." * size


async def measure(text: str) -> int:
    """Return how long a text is."""
    return len(text)


async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)  # the purpose of the tool
    return "awake"


BASE: Final[tuple[Function, ...]] = (add, add_sync, blob, measure, slow)


def filler(number: int) -> Function:
    """Return one more function with a different name."""

    async def fill(query: str, limit: int = 10, *, exact: bool = False) -> str:
        return f"{query} {limit} {exact}"

    fill.__name__ = fill.__qualname__ = f"tool_{number:05d}"
    fill.__doc__ = f"Look for a query in shelf {number} and return what fits it best."
    return fill


def some(count: int) -> list[Function]:
    """Return so many functions: the base, then fillers."""
    return [*BASE[:count], *(filler(number) for number in range(len(BASE), count))]
