"""The contract of every server here: its options, and the functions it serves.

It imports no framework. The functions come from a module `bench_tools` if there is one, or else from `tools.py` one
folder up.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

__all__ = ["Start", "functions", "parse", "serve_asgi"]


class Start(NamedTuple):
    """The options of a server."""

    stdio: bool
    port: int
    stateless: bool
    tools: int
    shape: Literal["envelope", "plain"]
    page: int
    reply: str
    monitor: bool = False


def parse() -> Start:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--stdio", action="store_true", help="serve on stdin and stdout")
    way.add_argument("--http", type=int, default=0, metavar="PORT", help="serve POST /mcp on this port")
    parser.add_argument(
        "--mode", choices=["json", "default"], default="json", help="stateless and JSON, or as it comes"
    )
    parser.add_argument("--tools", type=int, default=5, help="how many tools to serve")
    parser.add_argument(
        "--shape", choices=["envelope", "plain"], default="plain", help="how Callyard answers: plain is as the peers do"
    )
    parser.add_argument("--page", type=int, default=0, help="tools in a page of Callyard's list; 0 is all of them")
    parser.add_argument("--reply", default="", help="a file with what a limit answers to tools/list")
    parser.add_argument(
        "--monitor", action="store_true", help="let Callyard keep metrics, audit and access log, with an open console"
    )
    given = parser.parse_args()
    return Start(
        stdio=given.stdio,
        port=given.http,
        stateless=given.mode == "json",
        tools=given.tools,
        shape=given.shape,
        page=given.page,
        reply=given.reply,
        monitor=given.monitor,
    )


def functions(count: int) -> Sequence[Callable[..., Any]]:
    """Return so many functions: the base, then fillers."""
    if find_spec("bench_tools") is not None:
        return import_module("bench_tools").tools(count)
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    return import_module("tools").some(count)


def serve_asgi(app: object, port: int, **options: Any) -> None:
    """Serve an ASGI application with uvicorn's fastest parts, the same for all."""
    run = import_module("uvicorn").run
    run(
        app,
        host="127.0.0.1",
        port=port,
        access_log=False,
        log_level="warning",
        loop="uvloop",
        http="httptools",
        **options,
    )
