"""What the tests of links over HTTP share: how a server is started, and how a link to it is opened."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from raw_servers import Behaviour, Connect, Listening, Raw, Serve

from toolyard.providers.upstream.http import HttpLink
from toolyard.providers.upstream.link import NO_CREDENTIALS, Credentials, Link
from toolyard.providers.upstream.settings import UpstreamSettings


@pytest.fixture
async def raw() -> AsyncGenerator[Serve]:
    """Return how a server is started that does as it is told."""
    servers: list[Raw] = []

    async def start(behaviour: Behaviour) -> Raw:
        server = Raw(behaviour)
        server.server = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        servers.append(server)
        return server

    yield start
    for server in servers:
        assert server.server is not None
        server.server.close()
        for writer in server.ends:
            writer.close()
        await server.server.wait_closed()


@pytest.fixture
async def link() -> AsyncGenerator[Connect]:
    """Return how a link is opened, with the listener that it speaks to."""
    links: list[Link] = []

    async def connect(
        url: str, *, kind: Callable[..., Any] = HttpLink, credentials: Credentials = NO_CREDENTIALS, **settings: Any
    ) -> tuple[Any, Listening]:
        made = kind("there", UpstreamSettings(url=url, **settings), credentials)
        links.append(made)
        listening = Listening()
        await made.open(listening)
        return made, listening

    yield connect
    for one in links:
        await one.close()
