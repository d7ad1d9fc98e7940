"""FastMCP's server with the measured tools."""

from importlib import import_module

from contract import Start, functions, parse, serve_asgi


def main(start: Start) -> None:
    server = import_module("fastmcp").FastMCP("bench")
    for function in functions(start.tools):
        server.tool(function)
    if start.stdio:
        server.run(transport="stdio", show_banner=False)
    else:
        serve_asgi(
            server.http_app(path="/mcp", stateless_http=start.stateless, json_response=start.stateless), start.port
        )


if __name__ == "__main__":
    main(parse())
