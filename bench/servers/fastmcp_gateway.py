"""FastMCP's own proxy in front of another MCP server, with the options of our gateway."""

import argparse
from importlib import import_module

_FAST = {"access_log": False, "log_level": "warning", "loop": "uvloop", "http": "httptools"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stdio", action="store_true")
    parser.add_argument("--http", type=int, default=0)
    parser.add_argument("--mode", choices=["json", "default"], default="json")
    parser.add_argument("--up-http")
    parser.add_argument("--up-stdio", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    target = given.up_http
    if target is None:
        target = import_module("fastmcp.client.transports").StdioTransport(given.up_stdio[0], given.up_stdio[1:])
    proxy = import_module("fastmcp.server").create_proxy(target, name="gateway")
    if given.stdio:
        proxy.run(transport="stdio", show_banner=False)
    else:
        plain = given.mode == "json"
        proxy.run(
            transport="http",
            host="127.0.0.1",
            port=given.http,
            show_banner=False,
            stateless_http=plain,
            json_response=plain,
            uvicorn_config=_FAST,
        )


if __name__ == "__main__":
    main()
