"""The MCP SDK's low-level server, which leaves schemas and checks to its user; here they are as cheap as possible."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from contract import Start, functions, parse, serve_asgi
from pydantic import TypeAdapter
from pydantic_core import ArgsKwargs


class Tools:
    """The functions for the low-level server: a list that is made once, and a checked call of each."""

    def __init__(self, count: int) -> None:
        self._types = import_module("mcp_types")
        self._checks: dict[str, Callable[[Any], Any]] = {}
        self.schemas: dict[str, Any] = {}
        self._listed = self._types.ListToolsResult(tools=[self._add(function) for function in functions(count)])

    def _add(self, function: Callable[..., Any]) -> Any:
        name = function.__name__
        kind: Any = function  # pydantic accepts functions although its annotations say types
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._checks[name] = adapter.validator.validate_python
        self.schemas[name] = adapter.json_schema()
        result = TypeAdapter(inspect.signature(function).return_annotation).json_schema()
        promised = {"type": "object", "properties": {"result": result}, "required": ["result"]}
        return self._types.Tool(
            name=name, description=function.__doc__, input_schema=self.schemas[name], output_schema=promised
        )

    async def list(self, _context: object, _params: object) -> Any:
        """Answer tools/list."""
        return self._listed

    async def call(self, _context: object, params: Any) -> Any:
        """Answer tools/call."""
        answer = self._checks[params.name](ArgsKwargs((), params.arguments or {}))
        if inspect.isawaitable(answer):
            answer = await answer
        content = [self._types.TextContent(type="text", text=str(answer))]
        return self._types.CallToolResult(content=content, structured_content={"result": answer})


async def _serve_stdio(server: Any) -> None:
    async with import_module("mcp.server.stdio").stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def main(start: Start) -> None:
    tools = Tools(start.tools)
    lowlevel = import_module("mcp.server.lowlevel")
    server = lowlevel.Server(
        "bench", on_list_tools=tools.list, on_call_tool=tools.call, get_tool_input_schema=tools.schemas.get
    )
    if start.stdio:
        import_module("anyio").run(_serve_stdio, server, backend_options={"use_uvloop": True})
    else:
        serve_asgi(
            server.streamable_http_app(stateless_http=start.stateless, json_response=start.stateless), start.port
        )


if __name__ == "__main__":
    main(parse())
