"""Subscriptions reach the upstream, and its notifications reach the subscribers: in both eras, on both sides."""

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from fronts import NEW, OLD, in_front, opened, until
from mcp.client.subscriptions import ResourceUpdated

from callyard import Yard

pytestmark = pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")  # what only the older era has

every_mode = pytest.mark.parametrize("mode", [OLD, NEW])
DYNAMIC = "every+demo://resource/dynamic/text/1"
NOTES = "shed+notes://all"


class Subscriber:
    """A client that is told of resources, in whatever way its era has."""

    def __init__(self) -> None:
        self.client: Any = None
        self.updates: list[str] = []

    async def __call__(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            self.updates.append(str(message.params.uri))

    async def listen(self, changes: Any) -> None:
        """Take what is told on a request that stays open."""
        async for change in changes:
            assert isinstance(change, ResourceUpdated)
            self.updates.append(str(change.uri))


@asynccontextmanager
async def subscribed(yard: Yard, mode: str, *uris: str) -> AsyncGenerator[Subscriber]:
    """Return a client that is subscribed to these resources."""
    subscriber = Subscriber()
    async with in_front(yard, mode, message_handler=subscriber) as subscriber.client:
        if mode == OLD:
            for uri in uris:
                await subscriber.client.subscribe_resource(uri)
            yield subscriber
            return
        async with subscriber.client.listen(resource_subscriptions=uris) as changes, anyio.create_task_group() as group:
            group.start_soon(subscriber.listen, changes)
            yield subscriber
            group.cancel_scope.cancel()


@pytest.mark.parametrize("carrier", ["stdio", "http", "sse"])
@every_mode
async def test_an_upstream_of_the_older_era_notifies_subscribers(
    tmp_path: Path, everything: Any, carrier: str, mode: str
) -> None:
    async with opened(tmp_path, every=everything(carrier)) as (yard, _), in_front(yard, OLD) as other:
        async with subscribed(yard, mode, DYNAMIC) as subscriber, subscribed(yard, mode, f"{DYNAMIC}0") as elsewhere:
            await other.call_tool("every__toggle-subscriber-updates")
            await until(lambda: subscriber.updates and elsewhere.updates)

        assert (set(subscriber.updates), set(elsewhere.updates)) == ({DYNAMIC}, {f"{DYNAMIC}0"})


@pytest.mark.parametrize("carrier", ["stdio", "http"])
@every_mode
async def test_an_upstream_of_the_newer_era_notifies_current_subscribers_only(
    tmp_path: Path, sdk: Any, carrier: str, mode: str
) -> None:
    async def touch() -> None:
        assert (await yard.call("shed__touch", {"uri": "notes://all"})).success

    async with (
        opened(tmp_path, shed=sdk(carrier, era="2026")) as (yard, _),
        subscribed(yard, mode, "shed+notes://tuesday") as stays,
    ):
        async with subscribed(yard, mode, NOTES) as leaves:
            await until_notified(touch, leaves)
        updates = len(leaves.updates)
        await touch()
        await until_notified(lambda: yard.call("shed__touch", {"uri": "notes://tuesday"}), stays)

        assert (len(leaves.updates), set(stays.updates)) == (updates, {"shed+notes://tuesday"})


async def until_notified(touch: Any, subscriber: Subscriber) -> None:
    """Change a resource until that is told: the upstream may still be on its way to know who wants to hear of it."""
    with anyio.fail_after(20):
        while not subscriber.updates:
            await touch()


@every_mode
async def test_a_killed_upstream_restarts_for_its_subscribers_and_notifies_them(
    tmp_path: Path, sdk: Any, mode: str
) -> None:
    async with (
        opened(tmp_path, shed=sdk("stdio", era="2026")) as (yard, upstreams),
        subscribed(yard, mode, NOTES) as subscriber,
    ):
        await until_notified(lambda: yard.call("shed__touch", {"uri": "notes://all"}), subscriber)
        pid: Any = (await yard.call("shed__pid")).data
        subscriber.updates.clear()
        os.kill(pid["result"], signal.SIGKILL)
        await until(lambda: upstreams["shed"].status().state != "ready")
        await until(lambda: subscriber.updates)
        assert upstreams["shed"].status().state == "ready"
        subscriber.updates.clear()
        await until_notified(lambda: yard.call("shed__touch", {"uri": "notes://all"}), subscriber)

        assert set(subscriber.updates) == {NOTES}
