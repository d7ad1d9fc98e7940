"""The official TypeScript clients, new and old, get along with a yard.

Each goes through a whole visit in one process, because starting one costs more than all it does; the tests look at what
it found.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PIN = {"pin": "2026-07-28"}
VISITS = [
    pytest.param(kind, mode, version, channel, id=f"{kind}-{mode if isinstance(mode, str) else 'pin'}-{channel}")
    for kind, mode, version in [
        ("client", "legacy", "2025-11-25"),
        ("client", "auto", "2026-07-28"),
        ("client", PIN, "2026-07-28"),
        ("sdk", "legacy", "2025-11-25"),
    ]
    for channel in ("stdio", "http")
]
Visit = Callable[[str, Any, str], dict[str, Any]]

pytestmark = pytest.mark.parametrize(("kind", "mode", "version", "channel"), VISITS)


@pytest.fixture(scope="module")
def visit(packages: Path, node: str, url_of: Callable[..., str], yard_command: list[str]) -> Visit:
    found: dict[str, dict[str, Any]] = {}

    def made(kind: str, mode: Any, channel: str) -> dict[str, Any]:
        where = {"url": url_of()} if channel == "http" else {"command": yard_command}
        plan = json.dumps({"packages": str(packages), "kind": kind, "mode": mode, **where})
        if plan not in found:
            done = subprocess.run(  # noqa: S603 - our own
                [node, HERE / "client.mjs", plan], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr
            found[plan] = json.loads(done.stdout)
        return found[plan]

    return made


@pytest.fixture
def found(visit: Visit, kind: str, mode: Any, version: str, channel: str) -> dict[str, Any]:
    visited = visit(kind, mode, channel)
    assert visited["version"] == version
    return visited


TASKS: dict[str, Any] = {"io.modelcontextprotocol/tasks": {}}


def envelope_of(result: dict[str, Any]) -> dict[str, Any]:
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    assert result["isError"] is not result["structuredContent"]["success"]
    return result["structuredContent"]


def test_a_client_gets_the_name_and_version_of_the_server(found: dict[str, Any]) -> None:
    assert found["server"] == {"name": "shed", "version": "1.2.3"}
    assert found["instructions"].startswith("Use 'add' to add.\n\nCall each tool by its name.")
    assert found["capabilities"].keys() - {"extensions"} == {"tools", "prompts", "resources", "completions", "logging"}
    assert found["capabilities"].get("extensions", TASKS) == TASKS  # versions with a handshake do not have extensions


def test_a_client_lists_and_calls(found: dict[str, Any]) -> None:
    (add,) = [tool for tool in found["tools"] if tool["name"] == "add"]
    assert add["inputSchema"]["required"] == ["a"]
    assert envelope_of(found["good"])["data"] == 5
    assert found["plain"]["content"] == [{"type": "text", "text": "as it is"}]
    assert [block["type"] for block in found["picture"]["content"]] == [
        "text",
        "image",
        "text",
        "resource_link",
        "resource",
    ]


def test_a_failure_is_an_answer(found: dict[str, Any]) -> None:
    assert envelope_of(found["wrong"])["error"]["code"] == "invalid_input"
    assert envelope_of(found["unknown"])["error"]["code"] == "tool_not_found"


def test_a_client_reads_resources_and_prompts(found: dict[str, Any]) -> None:
    assert {"notes://all", "notes://pixel"} <= {one["uri"] for one in found["resources"]}
    assert [one["uriTemplate"] for one in found["templates"]] == ["notes://days/{day}"]
    assert found["text"]["contents"][0]["mimeType"] == "text/markdown"
    assert found["blob"]["contents"][0]["mimeType"] == "image/png"
    assert found["missing"]["thrown"] == -32602
    assert {"introduce", "remember", "review"} <= {one["name"] for one in found["prompts"]}
    assert found["filled"]["messages"][0]["content"]["text"] == "Be kind: It rained."
    assert found["completed"]["completion"]["values"] == ["kind", "keen"]


def test_a_client_hears_and_answers_what_a_call_says_and_asks(found: dict[str, Any], version: str) -> None:
    assert found["heard"]["progress"] == ["waiting"]
    assert found["heard"]["logged"] == (["warning", "warning"] if version == "2025-11-25" else [])
    assert found["heard"]["asked"] == ["Who is there?", "Who?"]
    assert envelope_of(found["greeted"])["data"] == "Hello Ada"
    consulted = envelope_of(found["consulted"])["data"]
    assert consulted["what"]["content"]["text"] == "Tea."
    assert consulted["where"]["roots"][0]["uri"] == "file:///home/ada"


def test_a_client_stops_a_call_and_hears_of_changes(found: dict[str, Any]) -> None:
    assert "thrown" in found["stop"]["ended"]
    assert envelope_of(found["stop"]["stopped"])["data"] is True
    assert "tools" in found["heard"]["changed"]
