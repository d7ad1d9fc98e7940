"""The memory transport: a client in the same process that speaks MCP."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, Caller
from callyard.server import ServerContext
from callyard.server.stream import MessageStream
from callyard.transports import Address
from callyard.yard import Yard

__all__ = ["Memory"]


class Memory:
    """One client: `send` takes its messages, and `received` has those of the server."""

    name = "memory"

    def __init__(self, serving: Serving | None = None, *, caller: Caller = ANYONE) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        """The messages of the server, in order."""
        self._serving = serving or Serving()
        self._caller = caller
        self._stream: MessageStream | None = None
        self._ended = asyncio.Event()
        self._ready = asyncio.Event()

    def info(self) -> Address:
        """Return the address."""
        return Address(self.name, "memory")

    def send(self, message: bytes) -> None:
        """Send a message to the server.

        Raises:
            RuntimeError: The transport serves no yard now.
        """
        if self._stream is None:
            raise RuntimeError("The transport serves no yard now.")
        self._stream.receive(message)

    async def serve(self, yard: Yard) -> None:
        """Serve the open yard until `close` is called."""
        server = ServerContext(yard, self._serving, channel=self.name)
        self._stream = MessageStream(server, self.received.put_nowait, caller=self._caller)
        self._ready.set()
        try:
            await self._ended.wait()
        finally:
            server.end_listeners()
            await self._stream.end(self._serving.shutdown_seconds)
            self._stream = None
            server.close()

    async def close(self) -> None:
        """Stop, as if the client had gone."""
        self._ended.set()

    @asynccontextmanager
    async def open(self, yard: Yard) -> AsyncGenerator["Memory"]:
        """Serve the open yard inside the context."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.serve(yard))
            await self._ready.wait()
            try:
                yield self
            finally:
                await self.close()
