"""What a server does not load before its first call: each of these takes long, and only some calls need it."""

import json
import subprocess
import sys

READY = """
from toolyard import Operation, Tool, ToolSpec, Yard, serve
from toolyard.tools import check_by_schema
SCHEMA = {"type": "object", "properties": {"count": {"type": "integer", "default": 1}}, "additionalProperties": False}
SPEC = ToolSpec(name="add", description="Add.", input_schema=SCHEMA, operation=Operation.QUERY)
async def add(call):
    return call.arguments["count"]
yard = Yard(tools=[Tool(spec=SPEC, handler=add, check=check_by_schema(SCHEMA))])
"""
FUNCTION = """
from toolyard import Yard, serve, tool
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
    *(
        "argparse",
        "difflib",
        "email",
        "httptools",
        "importlib.metadata",
        "json",
        "jsonschema_rs",
        "jwt",
        "pydantic",
        "pydantic_core",
        "random",
        "secrets",
    ),
    *("shlex", "shutil", "sysconfig", "tomllib", "uvicorn"),
    *("toolyard.cli.hint", "toolyard.cli.parser", "toolyard.search", "toolyard.transports.auth", "toolyard.transports.http"),
}


def loaded_by(yard: str) -> set[str]:
    """Return what a server of the yard has loaded once it has told its tools."""
    lines = "".join(json.dumps({"jsonrpc": "2.0", **line}) + "\n" for line in LINES)
    command = [sys.executable, "-c", SERVED.format(yard=yard)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    assert '"name":"add"' in done.stdout
    return set(done.stderr.rpartition("loaded:")[2].split())


def test_a_server_of_ready_made_tools_starts_without_what_its_first_list_does_not_need() -> None:
    assert not (ELSEWHERE | {"toolyard.providers.functions"}) & loaded_by(READY)


def test_a_server_of_plain_functions_starts_without_what_its_first_list_does_not_need() -> None:
    assert not ELSEWHERE & loaded_by(FUNCTION)
