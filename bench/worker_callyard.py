"""The worker for Callyard: calls in the same process, growth with the number of tools, publishing, and search."""

import os
import random
from itertools import cycle
from typing import Final

from clock import memory_kb
from search_data import make_questions, make_tools
from servers.callyard_inproc import callyard
from tools import ARGUMENTS, BASE, add, some
from worker import Bench, has_three, work

from callyard import Yard
from callyard.dispatch.tool import Tool, check_by_schema
from callyard.model.spec import Operation, ToolSpec
from callyard.monitor import Ring
from callyard.providers.provider_set import StaticProvider
from callyard.search import Found, Index, make_index

_QUERY: Final = {"query": "x"}
_SEED: Final = 7
_CALLED: Final = 1000


async def _calls(bench: Bench, _: int) -> None:
    await callyard(bench)


async def _bare(bench: Bench, _: int) -> None:
    await bench("await add(1, 2)", lambda: add(**ARGUMENTS), has_three)


async def _growth(bench: Bench, tools: int) -> None:
    functions = some(tools)
    names = [function.__name__ for function in functions[len(BASE) :]]
    called = random.Random(_SEED).sample(names, min(len(names), _CALLED))  # noqa: S311 - an order, not a secret
    turns = cycle(called)
    async with Yard(tools=functions, sinks=[Ring()]) as yard:
        for name in called:  # the first call of a tool fills its caches
            await yard.call(name, _QUERY)
        await bench("the same tool", lambda: yard.call("add", ARGUMENTS), lambda answer: answer.data == 3)
        await bench("another tool each time", lambda: yard.call(next(turns), _QUERY), lambda answer: answer.success)
        await bench("a name that is none", lambda: yard.call("tool_none", _QUERY), lambda answer: not answer.success)


async def _publish(bench: Bench, tools: int) -> None:
    async def publish() -> None:
        async with Yard(tools=some(tools)):
            pass

    await bench("Yard(tools=…), opened and closed", publish)


def _specs(tools: int) -> list[ToolSpec]:
    return [
        ToolSpec(
            name=tool.name,
            source=tool.namespace,
            description=tool.description,
            input_schema=tool.input_schema,
            operation=Operation.QUERY,
        )
        for tool in make_tools(tools)
    ]


def _indexed(specs: list[ToolSpec]) -> Index:
    index = make_index()
    for spec in specs:
        index.add(spec)
    index.prepare()
    return index


async def _search(bench: Bench, tools: int) -> None:
    index, turns = _indexed(_specs(tools)), cycle(make_questions(make_tools(tools)))

    async def ask() -> Found:
        return index.search(next(turns), allows=lambda _: True)

    await bench("Index.search", ask)


async def _search_tools(bench: Bench, tools: int) -> None:
    async def handler(_: object) -> None:
        """Do nothing: it is found and never called."""

    published: dict[str, list[Tool]] = {}
    for spec in _specs(tools):
        published.setdefault(spec.source, []).append(
            Tool(spec=spec, handler=handler, check=check_by_schema(spec.input_schema))
        )
    turns = cycle(make_questions(make_tools(tools)))
    async with Yard(
        providers=[StaticProvider(name, several, resources=(), prompts=()) for name, several in published.items()]
    ) as yard:
        await bench(
            "Yard.call of search_tools",
            lambda: yard.call("search_tools", {"query": next(turns)}),
            lambda answer: answer.success,
        )


async def _make_index(bench: Bench, tools: int) -> None:
    specs = _specs(tools)

    async def make() -> None:
        _indexed(specs)

    await bench("the index made", make)


async def _add_tool(bench: Bench, tools: int) -> None:
    specs = _specs(tools)
    index, turns = _indexed(specs), cycle(specs)

    async def add() -> None:
        index.add(next(turns))
        index.prepare()

    await bench("one more tool", add)


def measure_memory(tools: int) -> float:
    """Return the kilobytes of the index for each tool, without the tool itself."""
    _indexed(_specs(10))  # loads the modules, which are not part of the index
    specs = _specs(tools)
    before = memory_kb(os.getpid())
    index = _indexed(specs)
    after = memory_kb(os.getpid())
    del index
    return (after - before) / tools


if __name__ == "__main__":
    jobs = {"calls": _calls, "bare": _bare, "growth": _growth, "publish": _publish}
    work(jobs | {"search": _search, "search_tools": _search_tools, "make_index": _make_index, "add_tool": _add_tool})
