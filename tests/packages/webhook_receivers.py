"""An HTTP server that receives webhooks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Receiver:
    """An HTTP server that answers with a status, and keeps what it is sent."""

    def __init__(self, status: int) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.status = status
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)}
        self.requests.append((headers, await reader.readexactly(int(headers["content-length"]))))
        if self.status:
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % self.status)
        writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Receiver"]:
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        async with server:
            yield self
