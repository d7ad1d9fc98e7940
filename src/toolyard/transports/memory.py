"""The memory transport: a client in the same process, which speaks the protocol all the same."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE, Caller
from toolyard.server import ServerContext
from toolyard.server.stream import MessageStream
from toolyard.transports import Address
from toolyard.yard import Yard

__all__ = ["Memory"]


class Memory:
    """One client, which hands in messages and takes those that come back."""

    name = "memory"

    def __init__(self, serving: Serving | None = None, *, caller: Caller = ANYONE) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()
        """The messages of the server, in order."""
        self._serving = serving or Serving()
        self._caller = caller
        self._duplex: MessageStream | None = None
        self._ended = asyncio.Event()
        self._ready = asyncio.Event()

    def info(self) -> Address:
        """Return where it listens."""
        return Address(self.name, "memory")

    def send(self, message: bytes) -> None:
        """Hand in a message.

        Raises:
            RuntimeError: Nobody serves.
        """
        if self._duplex is None:
            raise RuntimeError("Nobody serves here.")
        self._duplex.receive(message)

    async def serve(self, yard: Yard) -> None:
        """Serve the open yard until it is closed."""
        front = ServerContext(yard, self._serving, channel=self.name)
        self._duplex = MessageStream(front, self.received.put_nowait, caller=self._caller)
        self._ready.set()
        try:
            await self._ended.wait()
        finally:
            front.end_listeners()
            await self._duplex.end(self._serving.shutdown_seconds)
            self._duplex = None
            front.close()

    async def close(self) -> None:
        """End as if the client had gone."""
        self._ended.set()

    @asynccontextmanager
    async def open(self, yard: Yard) -> AsyncGenerator["Memory"]:
        """Serve the open yard meanwhile."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.serve(yard))
            await self._ready.wait()
            try:
                yield self
            finally:
                await self.close()
