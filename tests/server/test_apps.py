"""The extension for MCP Apps: offered where there is an App, told to handlers, and its addresses found."""

from typing import TYPE_CHECKING, Any

import pytest

from callyard import Call, Yard, resource, tool

if TYPE_CHECKING:
    from tests.server.conftest import Meet

MODERN = "2026-07-28"
APPS = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}


@resource("ui://chart/view")
def view() -> str:
    """Return the page of the chart."""
    return "<p>chart</p>"


@tool(operation="query", shape="plain")
def shows(call: Call) -> str:
    """Tell whether the client shows Apps."""
    return str("apps" in call.channel.capabilities)


async def offered(meet: "Meet", era: str, capabilities: dict[str, Any], **given: Any) -> dict[str, Any]:
    async with meet(Yard(tools=[shows], **given), era=era, capabilities=capabilities) as peer:
        if era == MODERN:
            said = (await peer.ask("server/discover"))["result"]
        else:
            said = await peer.shake_hands()
        shown = await peer.ask("tools/call", {"name": "shows", "arguments": {}})
        assert shown["result"]["content"][0]["text"] == str(capabilities == APPS)
        return said["capabilities"].get("extensions", {})


@pytest.mark.parametrize("era", ["2025-11-25", MODERN])
async def test_apps_are_offered_where_there_is_one_to_clients_that_may_know_them(meet: "Meet", era: str) -> None:
    name = "io.modelcontextprotocol/ui"

    assert name in await offered(meet, era, APPS, resources=[view])
    assert (name in await offered(meet, era, {}, resources=[view])) is (era == MODERN)
    assert name not in await offered(meet, era, APPS)


async def test_an_unknown_address_of_an_app_is_not_found(meet: "Meet") -> None:
    async with meet(Yard(tools=[shows], resources=[view]), era=MODERN, capabilities=APPS) as peer:
        found = await peer.ask("resources/read", {"uri": "ui://chart/view"})
        missing = await peer.ask("resources/read", {"uri": "ui://chart/other"})

    assert found["result"]["contents"][0]["text"] == "<p>chart</p>"
    assert missing["error"]["code"] == -32602
