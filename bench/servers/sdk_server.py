"""The MCP SDK's high-level server with the measured tools."""

from importlib import import_module

from contract import Start, functions, parse, serve_asgi


def main(start: Start) -> None:
    server = import_module("mcp.server").MCPServer("bench", log_level="WARNING")
    for function in functions(start.tools):
        server.add_tool(function)
    if start.stdio:
        server.run(transport="stdio")
    else:
        serve_asgi(
            server.streamable_http_app(stateless_http=start.stateless, json_response=start.stateless), start.port
        )


if __name__ == "__main__":
    main(parse())
