"""MCP Inspector's command line gets along with a yard, in every era it speaks."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LAUNCHER = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
IS_ERROR = 5


class Outcome(NamedTuple):
    """What a run of the Inspector came to."""

    status: int
    output: Any
    errors: str


Inspect = Callable[..., Outcome]


@pytest.fixture(params=["stdio", "http"])
def inspect(
    request: pytest.FixtureRequest,
    packages: Path,
    node: str,
    *,
    url_of: Callable[..., str],
    yard_command: list[str],
    tmp_path: Path,
) -> Inspect:
    target = yard_command[:-1] if request.param == "stdio" else [url_of()]
    places = {"MCP_CATALOG_PATH": str(tmp_path / "mcp.json"), "MCP_CLIENT_CONFIG_PATH": str(tmp_path / "client.json")}

    def inspected(*words: str) -> Outcome:
        command = [node, str(packages / LAUNCHER), "--cli", *words, "--format", "json", *target]
        done = subprocess.run(  # noqa: S603 - our own
            command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **places}
        )
        return Outcome(done.returncode, json.loads(done.stdout)["result"] if done.stdout else None, done.stderr)

    return inspected


@pytest.mark.parametrize(
    ("era", "version"), [("legacy", "2025-11-25"), ("modern", "2026-07-28"), ("auto", "2026-07-28")]
)
def test_the_inspector_connects_and_calls_in_every_era(inspect: Inspect, era: str, version: str) -> None:
    opened = inspect("--protocol-era", era, "--method", "initialize", "-q")
    called = inspect(
        "--protocol-era",
        era,
        "--method",
        "tools/call",
        "--tool-name",
        "add",
        "--tool-args-json",
        '{"a": 2, "b": 3}',
        "-q",
    )

    assert (opened.status, opened.output["protocolVersion"]) == (0, version)
    assert (called.status, called.output["structuredContent"]["data"]) == (0, 5)


def test_the_inspector_finds_no_fault_with_the_schemas(inspect: Inspect) -> None:
    listed = inspect("--method", "tools/list", "--strict")

    assert listed.status == 0, listed.errors
    assert "warning" not in listed.errors.lower()
    assert all(tool["description"] for tool in listed.output["tools"])


@pytest.mark.parametrize(("name", "arguments"), [("add", '{"a": "two"}'), ("ad", "{}")])
def test_the_inspector_sees_a_failure_as_the_tools(inspect: Inspect, name: str, arguments: str) -> None:
    called = inspect("--method", "tools/call", "--tool-name", name, "--tool-args-json", arguments, "-q")

    assert called.status == IS_ERROR
