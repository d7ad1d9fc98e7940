"""Callyard in front of another MCP server, whose tools keep their names.

It takes `--http PORT` or `--stdio`, then `--up-http URL` or `--up-stdio COMMAND ARGUMENT...`.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import callyard
from callyard import Limits, Profile, Surface, Yard
from callyard.providers.upstream.http import HttpLink
from callyard.providers.upstream.link import Link
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.stdio import StdioLink

_ROOM = 16 * 1024 * 1024
"""Characters an answer may have, as for the server that is measured without a gateway."""
_NAME = "up"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--stdio", action="store_true", help="serve on stdin and stdout")
    way.add_argument("--http", type=int, default=0, metavar="PORT", help="serve POST /mcp on this port")
    parser.add_argument(
        "--mode", choices=["json", "default"], default="json", help="stateless and JSON, or as it comes"
    )
    up = parser.add_mutually_exclusive_group(required=True)
    up.add_argument("--up-http", metavar="URL", help="the upstream's address")
    up.add_argument(
        "--up-stdio", nargs=argparse.REMAINDER, metavar="COMMAND", help="the upstream's command, to the end of the line"
    )
    return parser.parse_args()


def _upstream(given: argparse.Namespace, folder: Path) -> Upstream:
    if given.up_http is not None:
        settings = UpstreamSettings(url=given.up_http, prefix="", in_flight=512)
    else:
        command, *arguments = given.up_stdio
        settings = UpstreamSettings(command=command, args=tuple(arguments), prefix="", in_flight=512)

    def link() -> Link:
        return (
            StdioLink(_NAME, settings, log=folder / "stderr.log")
            if given.up_http is None
            else HttpLink(_NAME, settings)
        )

    return Upstream(_NAME, settings, link=link, folder=folder)


def main() -> None:
    given = _parse()
    logging.getLogger("callyard.calls").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        yard = Yard(
            "gateway",
            providers=[_upstream(given, Path(folder))],
            profile=Profile(name="everything", surface=Surface.DIRECT),
            limits=Limits(result_characters=_ROOM),
        )
        if given.stdio:
            callyard.serve(yard, transport="stdio")
        elif given.mode == "json":
            callyard.serve(
                yard, transport="http", host="127.0.0.1", port=given.http, stateless=True, json_response=True
            )
        else:
            callyard.serve(yard, transport="http", host="127.0.0.1", port=given.http)


if __name__ == "__main__":
    main()
