"""The worker for the MCP SDK: calls in the same process, and publishing."""

from importlib import import_module
from typing import Any

from tools import ARGUMENTS, BASE, some
from worker import Bench, has_three, work


def _server() -> Any:
    return import_module("mcp.server").MCPServer("bench", log_level="WARNING")


async def _calls(bench: Bench, _: int) -> None:
    server = _server()
    for function in BASE:
        server.add_tool(function)
    await bench("MCPServer.call_tool", lambda: server.call_tool("add", ARGUMENTS), has_three)
    await bench("MCPServer.call_tool (sync tool)", lambda: server.call_tool("add_sync", ARGUMENTS), has_three)


async def _publish(bench: Bench, tools: int) -> None:
    async def publish() -> None:
        server = _server()
        for function in some(tools):
            server.add_tool(function)

    await bench("MCPServer.add_tool", publish)


if __name__ == "__main__":
    work({"calls": _calls, "publish": _publish})
