"""An HTTP API for tests: it answers with what a function returns, and keeps every request that it got."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from callyard import Yard
from callyard._internal.tasks import close_server
from callyard.providers.openapi.provider import Api
from callyard.providers.openapi.settings import ApiSettings
from callyard.providers.upstream.pins import Pins

__all__ = ["ApiServer", "Received", "Reply", "basic", "document_of", "opened", "serving", "write"]


class Received(NamedTuple):
    """One request as the API got it."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Reply(NamedTuple):
    """What the API answers."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = {}
    type: str = "application/json"


Respond = Callable[[Received], Reply | None]
"""Returns the answer to a request; None closes the connection without one."""


class ApiServer:
    """A running API."""

    def __init__(self, respond: Respond) -> None:
        self.respond = respond
        self.received: list[Received] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> Received:
        return self.received[-1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await self._read(reader)
                self.received.append(request)
                reply = self.respond(request)
                if reply is None:
                    break
                headers = {"Content-Type": reply.type, "Content-Length": str(len(reply.body)), **reply.headers}
                head = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
                is_empty = request.method == "HEAD" or reply.status in {204, 304}
                writer.write(f"HTTP/1.1 {reply.status} X\r\n{head}\r\n".encode() + (b"" if is_empty else reply.body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Received:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Received(method, target, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@asynccontextmanager
async def serving(respond: Respond = lambda _: Reply()) -> AsyncGenerator[ApiServer]:
    """Serve an API on a free port."""
    api = ApiServer(respond)
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0)
    api.port = server.sockets[0].getsockname()[1]
    try:
        yield api
    finally:
        await close_server(server)


def document_of(paths: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a document with these paths."""
    return {"openapi": "3.1.0", "info": {"title": "Test", "version": "1"}, "paths": paths, **fields}


def write(folder: Path, document: Any, name: str = "api.json") -> str:
    """Write a document, and return its path."""
    file = folder / name
    file.write_bytes(document if isinstance(document, bytes) else msgspec.json.encode(document))
    return str(file)


@asynccontextmanager
async def opened(tmp_path: Path, content: Any = None, **settings: Any) -> AsyncGenerator[Yard]:
    """Open a yard with an API named 'api'."""
    fields: dict[str, Any] = {"pin": "off", **settings}
    if content is not None:
        fields["document"] = write(tmp_path, content)
    state = tmp_path / "state"
    pins = Pins(tmp_path / "callyard.lock", state=state)
    api = Api("api", ApiSettings(**fields), folder=state / "upstreams" / "api", pins=pins, interval=0.02)
    async with Yard(providers=[api], state_dir=str(state)) as yard:
        await api.wait_ready()
        yield yard


def basic(pair: str) -> str:
    """Return the header of basic authentication."""
    return f"Basic {b64encode(pair.encode()).decode()}"
