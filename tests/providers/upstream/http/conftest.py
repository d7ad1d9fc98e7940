"""Fixtures for links over HTTP: start a raw server, and open a link to it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from raw_servers import Behaviour, Connect, RawServer, RecordingListener, Serve

from callyard._internal.tasks import close_server
from callyard.providers.upstream.http import HttpLink
from callyard.providers.upstream.link import NO_CREDENTIALS, Credentials, Link
from callyard.providers.upstream.settings import UpstreamSettings


@pytest.fixture
async def serve() -> AsyncGenerator[Serve]:
    """Return a function that starts a server with a behaviour."""
    servers: list[RawServer] = []

    async def start(behaviour: Behaviour) -> RawServer:
        server = RawServer(behaviour)
        server.server = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        servers.append(server)
        return server

    yield start
    for server in servers:
        assert server.server is not None
        await close_server(server.server)
        for writer in server.ends:
            writer.close()
        await server.server.wait_closed()


@pytest.fixture
async def connect() -> AsyncGenerator[Connect]:
    """Return a function that opens a link, with a listener that records."""
    links: list[Link] = []

    async def open_link(
        url: str, *, kind: Callable[..., Any] = HttpLink, credentials: Credentials = NO_CREDENTIALS, **settings: Any
    ) -> tuple[Any, RecordingListener]:
        link = kind("there", UpstreamSettings(url=url, **settings), credentials)
        links.append(link)
        listener = RecordingListener()
        await link.open(listener)
        return link, listener

    yield open_link
    for link in links:
        await link.close()
