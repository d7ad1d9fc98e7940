"""The official Python client is told that something changed."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
import pytest
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged

NEW = "2026-07-28"
ALL = {"notifications/tools/list_changed", "notifications/resources/list_changed", "notifications/prompts/list_changed"}

pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")  # what only the older era has


class Heard:
    """What came without being asked for, and whoever waits for some of it."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.uris: list[str] = []
        self._new = anyio.Event()

    async def __call__(self, message: Any) -> None:
        self.methods.append(getattr(message, "method", ""))
        if self.methods[-1] == "notifications/resources/updated":
            self.uris.append(str(message.params.uri))
        self._new.set()

    async def until(self, done: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not done():
                await self._new.wait()
                self._new = anyio.Event()


@pytest.mark.parametrize("channel", ["stdio", "memory", "http"])
async def test_an_older_client_gets_list_changed_notifications(connect: Any, channel: str) -> None:
    heard = Heard()
    name = f"t{uuid4().hex[:8]}"
    async with connect(channel, "legacy", message_handler=heard) as client:
        await client.list_tools()
        await client.call_tool("learn", {"name": name})
        await heard.until(lambda: set(heard.methods) >= ALL)
        listed = await client.list_tools()
        assert client.server_capabilities.tools.list_changed

    assert name in {tool.name for tool in listed.tools}


@pytest.mark.parametrize("channel", ["stdio", "memory", "http", "http-json", "http-stateless"])
async def test_a_newer_client_that_listens_gets_list_changed_notifications(connect: Any, channel: str) -> None:
    name = f"t{uuid4().hex[:8]}"
    wanted = {"tools_list_changed": True, "prompts_list_changed": True, "resources_list_changed": True}
    async with connect(channel, "auto") as client, client.listen(**wanted) as changes:
        await client.list_tools()
        await client.call_tool("learn", {"name": name})
        events = [await anext(changes) for _ in range(3)]
        listed = await client.list_tools()

    assert {type(event) for event in events} == {ToolsListChanged, PromptsListChanged, ResourcesListChanged}
    assert name in {tool.name for tool in listed.tools}


@pytest.mark.parametrize("channel", ["stdio", "http"])
async def test_a_newer_client_gets_only_the_notifications_that_it_wants(connect: Any, channel: str) -> None:
    async with connect(channel, NEW) as client, client.listen(prompts_list_changed=True) as changes:
        assert changes.honored.model_dump(exclude_none=True, by_alias=True) == {"promptsListChanged": True}
        await client.call_tool("learn", {"name": f"t{uuid4().hex[:8]}"})
        assert isinstance(await anext(changes), PromptsListChanged)


@pytest.mark.parametrize("channel", ["stdio", "memory", "http"])
async def test_an_older_client_subscribes_to_a_resource_and_leaves_it(connect: Any, channel: str) -> None:
    heard = Heard()
    async with connect(channel, "legacy", message_handler=heard) as client:
        await client.subscribe_resource("notes://all")
        await client.subscribe_resource("notes://pixel")
        await client.call_tool("touch", {"uri": "notes://all"})
        await heard.until(lambda: heard.uris == ["notes://all"])

        await client.unsubscribe_resource("notes://all")
        await client.call_tool("touch", {"uri": "notes://all"})
        await client.call_tool("touch", {"uri": "notes://pixel"})
        await heard.until(lambda: heard.uris == ["notes://all", "notes://pixel"])


@pytest.mark.parametrize("channel", ["stdio", "memory", "http"])
async def test_a_newer_client_listens_to_a_resource(connect: Any, channel: str) -> None:
    async with connect(channel, NEW) as client, client.listen(resource_subscriptions=["notes://all"]) as changes:
        await client.call_tool("touch", {"uri": "notes://pixel"})
        await client.call_tool("touch", {"uri": "notes://all"})
        assert await anext(changes) == ResourceUpdated(uri="notes://all")


@pytest.mark.parametrize("channel", ["stdio", "memory", "http"])
async def test_a_server_that_does_not_tell_says_so(connect: Any, channel: str) -> None:
    quiet = {"notify_changes": False}
    for mode in ("legacy", "auto"):
        async with connect(channel, mode, settings=quiet) as client:
            capabilities = client.server_capabilities
            promised = [capabilities.tools, capabilities.prompts, capabilities.resources]
            assert [one.list_changed for one in promised] == [None, None, None]
