"""What the tests with real upstreams share: a yard in front of them, and the official client in front of that."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from msgspec.structs import replace
from scripted import until

from callyard import Caller, Envelope, Yard
from callyard.config.settings import Serving
from callyard.providers.upstream.provider import Upstream, make_upstream
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.transports.memory import Memory

__all__ = ["NEW", "OLD", "in_front", "opened", "refusal", "until"]

OLD, NEW = "legacy", "2026-07-28"
"""The eras, as the official client calls them."""


@asynccontextmanager
async def opened(
    state: Path, *, yard: Mapping[str, Any] | None = None, **settings: UpstreamSettings
) -> AsyncGenerator[tuple[Yard, dict[str, Upstream]]]:
    """Return a yard with upstreams of these names, once it is known what each offers; nobody is asked about tools."""
    upstreams = {
        name: make_upstream(name, replace(one, unannotated="allow"), state=state) for name, one in settings.items()
    }
    async with Yard("gate", providers=list(upstreams.values()), metatools=False, **(yard or {})) as opened_yard:
        async with asyncio.timeout(60):
            for upstream in upstreams.values():
                await upstream.wait_ready()
        yield opened_yard, upstreams


@asynccontextmanager
async def in_front(
    yard: Yard, mode: str, *, identity: str = "ada", serving: Serving | None = None, **options: Any
) -> AsyncGenerator[Client]:
    """Return the official client of one caller, which speaks to a yard in this process."""
    with anyio.fail_after(30):
        memory = Memory(serving, caller=Caller(identity=identity))
        async with Client(_streams(yard, memory), mode=mode, read_timeout_seconds=20, **options) as client:
            yield client


@asynccontextmanager
async def _streams(yard: Yard, memory: Memory) -> AsyncGenerator[Any]:
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](1000)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](1000)

    async def hand_in() -> None:
        async for message in from_client:
            memory.send(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def hand_out() -> None:
        while True:
            message = jsonrpc_message_adapter.validate_json(await memory.received.get(), by_name=False)
            with suppress(anyio.BrokenResourceError):  # a client that leaves is told no more
                await to_client.send(SessionMessage(message))

    async with (
        memory.open(yard),
        from_client,
        to_client,
        from_server,
        to_server,
        anyio.create_task_group() as group,
    ):
        group.start_soon(hand_in)
        group.start_soon(hand_out)
        yield from_server, to_server
        group.cancel_scope.cancel()


def refusal(envelope: Envelope) -> Any:
    """Return why a call failed."""
    assert envelope.error is not None, envelope
    return envelope.error
