"""Three public servers of MCP Apps, directly and behind a yard, with the official client of both eras."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fronts import NEW, OLD, in_front, opened
from mcp import Client, StdioServerParameters
from mcp.client import advertise
from pinned_packages import NODE, installed

from callyard import Rule
from callyard.config.settings import Serving
from callyard.model.apps import APP_EXTENSION, APP_MIME_TYPE
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.testing import FakeSink

HOST = [advertise(APP_EXTENSION, {"mimeTypes": [APP_MIME_TYPE]})]
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "budget-allocator": [("get-budget-data", {})],
    "map": [("show-map", {"west": 1, "label": "Bree"})],
    "system-monitor": [("get-system-info", {}), ("poll-system-stats", {})],
}
"""What a host calls."""
CHANGING = {"poll-system-stats"}
SERVER = "io.modelcontextprotocol/serverInfo"
both_eras = pytest.mark.parametrize("mode", [OLD, NEW])


@pytest.fixture(scope="session")
def servers() -> Path:
    return installed(Path(__file__).parent / "apps", "app-servers", what="set of App servers")


def settings(servers: Path, name: str) -> UpstreamSettings:
    program = str(servers / f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js")
    return UpstreamSettings(command=str(servers / NODE), args=(program, "--stdio"))


@asynccontextmanager
async def directly(servers: Path, name: str) -> AsyncGenerator[Client]:
    """Return the client of a server, which speaks the older era alone on stdio."""
    command = settings(servers, name)
    server = StdioServerParameters(command=str(command.command), args=list(command.args))
    async with Client(server, mode=OLD, extensions=HOST, read_timeout_seconds=20) as client:
        yield client


async def conversation(client: Any, calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return what a host sees of a server: its lists, the page of each tool, and the answers of calls."""
    tools = {tool.name: plain(tool) for tool in (await client.list_tools()).tools}
    pages = [tool["_meta"]["ui"]["resourceUri"] for tool in tools.values() if "resourceUri" in ui_of(tool)]
    said: dict[str, Any] = {
        "tools": tools,
        "resources": [plain(resource) for resource in (await client.list_resources()).resources],
        "pages": [plain(await client.read_resource(page)) for page in pages],
    }
    for name, arguments in calls:
        result = plain(await client.call_tool(name, arguments))
        said[f"call {name} {arguments}"] = sorted(result) if name.removeprefix("up__") in CHANGING else result
    return said


def ui_of(tool: dict[str, Any]) -> dict[str, Any]:
    return tool.get("_meta", {}).get("ui", {})


def plain(model: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    for key in ("ttlMs", "cacheScope", "resultType", "annotations"):  # of the era, and hints that we make explicit
        dumped.pop(key, None)
    meta = {key: value for key, value in dumped.pop("_meta", {}).items() if key != SERVER}
    if "viewUUID" in meta:
        meta["viewUUID"] = "new for each call"
    return {**dumped, "_meta": meta} if meta else dumped


@both_eras
@pytest.mark.parametrize("name", CALLS)
async def test_a_conversation_differs_only_in_names(tmp_path: Path, servers: Path, name: str, mode: str) -> None:
    async with directly(servers, name) as client:
        direct = await conversation(client, CALLS[name])
    async with (
        opened(tmp_path, up=settings(servers, name)) as (yard, _),
        in_front(yard, mode, serving=Serving(output_schemas=True), extensions=HOST) as client,
    ):
        through = await conversation(client, [(f"up__{tool}", arguments) for tool, arguments in CALLS[name]])

    renamed = json.loads(json.dumps(through).replace("up__", "").replace("ui://up+", "ui://"))
    assert direct["pages"]
    assert renamed == direct


async def test_an_app_reads_and_calls_by_the_names_of_its_server_and_rules_see_ours(
    tmp_path: Path, servers: Path
) -> None:
    sink = FakeSink()
    deny = Rule(decision="deny", tools=("up__get-system-info",))
    rules = {"rules": [deny], "sinks": [sink]}
    async with opened(tmp_path, yard=rules, up=settings(servers, "system-monitor")) as (yard, _):
        async with in_front(yard, NEW, extensions=HOST) as client:
            polled: Any = await client.call_tool("poll-system-stats", {})
            denied: Any = await client.call_tool("get-system-info", {})
            page: Any = await client.read_resource("ui://system-monitor/mcp-app.html")
        async with in_front(yard, NEW) as client:
            unknown: Any = await client.call_tool("poll-system-stats", {})

    assert polled.is_error is False
    assert denied.structured_content["error"]["code"] == "permission_denied"
    assert page.contents[0].uri == "ui://up+system-monitor/mcp-app.html"
    assert unknown.structured_content["error"]["code"] == "tool_not_found"
    assert [record.tool for record in sink.records][:2] == ["up__poll-system-stats", "up__get-system-info"]
