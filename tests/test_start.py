"""What a server does not load before its first call: each of these takes long, and only some calls need it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from callyard._internal.project import find_project, project_dir
from callyard.providers.upstream.catalogue import Catalogue, endpoint_hash, folder_of, save
from callyard.providers.upstream.settings import UpstreamSettings

READY = """
from callyard import Operation, Tool, ToolSpec, Yard, serve
from callyard.dispatch.tool import check_by_schema
SCHEMA = {"type": "object", "properties": {"count": {"type": "integer", "default": 1}}, "additionalProperties": False}
SPEC = ToolSpec(name="add", description="Add.", input_schema=SCHEMA, operation=Operation.QUERY)
async def add(call):
    return call.arguments["count"]
yard = Yard(tools=[Tool(spec=SPEC, handler=add, check=check_by_schema(SCHEMA))])
"""
FUNCTION = """
from callyard import Yard, serve, tool
@tool(operation="query")
def add(count: int, word: str = "a", more: list[str] | None = None) -> list[int]:
    "Add."
    return [count]
yard = Yard(tools=[add])
"""
SERVED = """
import sys
before = set(sys.modules)
{yard}
serve(yard)
print("loaded:", *sorted(set(sys.modules) - before), file=sys.stderr)
"""
LINES = [
    {
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
    },
    {"method": "notifications/initialized"},
    {"id": 1, "method": "tools/list"},
]
ELSEWHERE = {
    *("argparse", "email", "httptools", "importlib.metadata", "jsonschema_rs", "jwt", "pydantic", "pydantic_core"),
    *("uvicorn",),
    *("callyard.agents", "callyard.cli.parser", "callyard.console", "callyard.launch.mounts"),
    *("callyard.providers.upstream.provider", "callyard.runtimes.selection", "callyard.transports.auth.jwks"),
    "callyard.transports.http",
}


GATEWAY = """
before = set(sys.modules)
from callyard.cli import main
main(["serve", {file!r}])
print("loaded:", *sorted(set(sys.modules) - before), file=sys.stderr)
"""
GATEWAY_ELSEWHERE = {
    *ELSEWHERE - {"argparse", "callyard.cli.parser", "callyard.providers.upstream.provider"},
    *("callyard.providers.functions", "callyard.providers.upstream.http", "callyard.providers.upstream.stdio"),
    *("callyard.providers.upstream.oauth.signin",),
}
ADD = {"name": "add", "inputSchema": {"type": "object"}}


def loaded_by(yard: str) -> set[str]:
    """Return what a server of the yard has loaded once it has told its tools."""
    return loaded_by_code(SERVED.format(yard=yard))


def loaded_by_code(code: str) -> set[str]:
    """Return what code that serves says it has loaded once it has told its tools."""
    lines = "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in LINES)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert re.search(r'"name":"(\w+__)?add"', done.stdout)
    return set(done.stderr.rpartition("loaded:")[2].split())


def test_a_server_of_ready_made_tools_starts_without_what_its_first_list_does_not_need() -> None:
    assert not (ELSEWHERE | {"callyard.providers.functions"}) & loaded_by(READY)


def test_a_server_of_plain_functions_starts_without_what_its_first_list_does_not_need() -> None:
    assert not ELSEWHERE & loaded_by(FUNCTION)


def test_a_gateway_starts_without_what_its_first_list_does_not_need(tmp_path: Path) -> None:
    state, catalogue = (
        tmp_path / "state",
        Catalogue(endpoint_hash="", seen=time.time() - 10**6, version="2025-11-25", tools=(ADD,)),
    )
    lines = ["metatools = false"]
    for name, settings in {
        "program": UpstreamSettings(command="none"),
        "address": UpstreamSettings(url="http://127.0.0.1:1/mcp"),
    }.items():
        lines += [
            f"[upstreams.{name}]",
            f'command = "{settings.command}"' if settings.command else f'url = "{settings.url}"',
        ]
        there = replace(settings, cwd=str(tmp_path)) if settings.command else settings
        save(
            folder_of(project_dir(state, find_project(tmp_path / "callyard.toml")), name),
            replace(catalogue, endpoint_hash=endpoint_hash(there)),
        )
    (tmp_path / "callyard.toml").write_text("\n".join(lines))
    code = f"import os, sys\nos.environ['CALLYARD_STATE_DIR'] = {str(state)!r}\n" + GATEWAY.format(
        file=str(tmp_path / "callyard.toml")
    )

    loaded_by_code(code)  # the first start of all accepts what is new, which takes more

    assert sorted(GATEWAY_ELSEWHERE & loaded_by_code(code)) == []


VISITED_LATER = """
import asyncio, atexit, os, signal, sys
from contextlib import asynccontextmanager
from callyard import Yard, serve
@asynccontextmanager
async def ends_at_once(yard):
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    yield
atexit.register(lambda: print(*sys.modules))
serve(Yard(lifespan=ends_at_once), transport="http", port=0)
"""


def test_a_server_with_a_console_starts_without_its_pages() -> None:
    done = subprocess.run([sys.executable, "-c", VISITED_LATER], capture_output=True, text=True, check=True)  # noqa: S603 - our own code

    assert "callyard.console.app" in done.stdout.split()
    assert not {"jinja2", "callyard.console.pages", "callyard.runtimes.selection"} & set(done.stdout.split())


COLLECTED = """
import gc
from callyard import Yard, serve, tool
class Node:
    pass
@tool
async def make(count: int) -> int:
    "Make garbage; return how much of it there is."
    for _ in range(count):
        node = Node()
        node.itself = node
    return sum(type(thing) is Node for thing in gc.get_objects())
serve(Yard(tools=[make], metatools=False))
"""


def test_a_server_collects_the_garbage_of_handlers_but_not_because_calls_are_in_flight() -> None:
    calls = [
        {"id": number, "method": "tools/call", "params": {"name": "make", "arguments": {"count": 1000}}}
        for number in range(1, 21)
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in [*LINES[:2], *calls])
    command = [sys.executable, "-c", COLLECTED]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)  # noqa: S603 - our own code

    answers = {message["id"]: message["result"] for message in map(json.loads, done.stdout.splitlines())}
    garbage = [answers[number]["structuredContent"]["data"] for number in range(1, 21)]
    assert 2000 < max(garbage) <= 5000
