"""The worker for FastMCP: calls in the same process, publishing, and its BM25 search."""

import os
from importlib import import_module
from itertools import cycle
from typing import Any

from clock import memory_kb
from search_data import make_questions, make_tools
from tools import ARGUMENTS, BASE, some
from worker import Bench, has_three, work


def _server() -> Any:
    return import_module("fastmcp").FastMCP("bench")


async def _calls(bench: Bench, _: int) -> None:
    server = _server()
    for function in BASE:
        server.tool(function)
    await bench("FastMCP.call_tool", lambda: server.call_tool("add", ARGUMENTS), has_three)
    await bench("FastMCP.call_tool (sync tool)", lambda: server.call_tool("add_sync", ARGUMENTS), has_three)


async def _publish(bench: Bench, tools: int) -> None:
    async def publish() -> None:
        server = _server()
        for function in some(tools):
            server.tool(function)

    await bench("FastMCP.tool", publish)


def _searched(tools: int) -> list[Any]:
    tool = import_module("fastmcp.tools").Tool
    return [tool(name=one.name, description=one.description, parameters=one.input_schema) for one in make_tools(tools)]


def _indexed(searched: list[Any]) -> Any:
    """Return its index, made as its search does."""
    text_of = import_module("fastmcp.server.transforms.search.base")._extract_searchable_text  # noqa: SLF001 - it has no other
    index = import_module("fastmcp.server.transforms.search.bm25")._BM25Index()  # noqa: SLF001 - it has no other
    index.build([text_of(tool) for tool in searched])
    return index


async def _search(bench: Bench, tools: int) -> None:
    index, turns = _indexed(_searched(tools)), cycle(make_questions(make_tools(tools)))

    async def ask() -> Any:
        return index.query(next(turns), 5)

    await bench("FastMCP, its index alone", ask)


async def _search_tools(bench: Bench, tools: int) -> None:
    server, turns = _server(), cycle(make_questions(make_tools(tools)))
    for tool in _searched(tools):
        server.add_tool(tool)
    server.add_transform(import_module("fastmcp.server.transforms.search").BM25SearchTransform())
    await bench("FastMCP.call_tool of search_tools", lambda: server.call_tool("search_tools", {"query": next(turns)}))


async def _make_index(bench: Bench, tools: int) -> None:
    searched = _searched(tools)

    async def make() -> None:
        _indexed(searched)

    await bench("FastMCP, the index made", make)


def measure_memory(tools: int) -> float:
    """Return the kilobytes of the index for each tool, without the tool itself."""
    searched = _searched(tools)
    _indexed(searched[:10])
    before = memory_kb(os.getpid())
    index = _indexed(searched)
    after = memory_kb(os.getpid())
    del index
    return (after - before) / tools


if __name__ == "__main__":
    work(
        {
            "calls": _calls,
            "publish": _publish,
            "search": _search,
            "search_tools": _search_tools,
            "make_index": _make_index,
        }
    )
