"""Servers on bare sockets that do as they are told, and a listener that remembers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from toolyard.providers.upstream.link import LinkError
from toolyard.wire.messages import Id

__all__ = ["PATIENCE", "Asked", "Behaviour", "Connect", "Listening", "Raw", "Serve", "note", "plain", "request", "result"]

PATIENCE = 10.0


def request(number: int, method: str = "tools/call", **params: Any) -> bytes:
    """Return a request."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def result(number: object, value: object = "done") -> bytes:
    """Return an answer."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": {"value": value}}).encode()


def note(method: str = "notifications/message", **params: Any) -> bytes:
    """Return a notification."""
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


class Listening:
    """A listener that remembers all it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[str, Any, Any]] = asyncio.Queue()

    def receive(self, data: bytes, about: Id | None) -> None:
        """Remember a message."""
        self.told.put_nowait(("message", json.loads(data), about))

    def lose(self, request_id: Id, error: LinkError) -> None:
        """Remember a loss."""
        self.told.put_nowait(("lost", error, request_id))

    def end(self, error: LinkError) -> None:
        """Remember the end."""
        self.told.put_nowait(("ended", error, None))

    async def next(self) -> tuple[str, Any, Any]:
        """Return what is told next."""
        async with asyncio.timeout(PATIENCE):
            return await self.told.get()

    async def message(self, about: Id | None = None) -> Any:
        """Return the next message, which must be about that request."""
        kind, message, told_about = await self.next()
        assert (kind, told_about) == ("message", about), message
        return message

    async def loss(self, request_id: Id) -> LinkError:
        """Return how that request was lost, which must be what is told next."""
        kind, error, lost = await self.next()
        assert (kind, lost) == ("lost", request_id), error
        return error


class Asked:
    """One request as a server got it."""

    def __init__(self, server: "Raw", writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
        first, *rest = head.decode().rstrip().split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.pairs = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in rest)]
        self.headers = dict(self.pairs)
        self.body = body
        self.writer = writer
        self._server = server

    @property
    def id(self) -> Any:
        """Return the id of the message."""
        return json.loads(self.body).get("id")

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        """Answer; in the names of headers '_' stands for '-'."""
        named = {"content-type": "application/json", "content-length": str(len(body))}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        await self.write(f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode() + body)

    async def stream(self, **headers: str) -> None:
        """Begin a stream of events."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{lines}transfer-encoding: chunked\r\n\r\n"
        await self.write(head.encode())

    async def event(self, data: bytes, *, event_id: str = "", retry: int | None = None) -> None:
        """Send an event on the stream."""
        lines = f"id: {event_id}\n" if event_id else ""
        lines += "" if retry is None else f"retry: {retry}\n"
        event = lines.encode() + b"data: " + data + b"\n\n"
        await self.write(b"%x\r\n%b\r\n" % (len(event), event))

    async def end(self) -> None:
        """End the stream as it should."""
        await self.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """Close the connection."""
        self.writer.close()

    async def gone(self) -> None:
        """Wait until the client closes the connection."""
        await self._server.ends[self.writer].wait()


Behaviour = Callable[[Asked], Awaitable[None]]


class Raw:
    """A server on a bare socket, which does with each request what it was told."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.asked: list[Asked] = []
        self.connections = 0
        self.ends: dict[asyncio.StreamWriter, asyncio.Event] = {}
        self.server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Return its address."""
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/mcp"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        self.ends[writer] = asyncio.Event()
        busy: set[asyncio.Task[None]] = set()
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
                body = await reader.readexactly(int(length.partition(b":")[2]))
                asked = Asked(self, writer, head, body)
                self.asked.append(asked)
                task = asyncio.ensure_future(self._behave(asked))
                busy.add(task)
                task.add_done_callback(busy.discard)
        self.ends[writer].set()
        for task in busy:
            task.cancel()
        writer.close()

    async def left(self) -> None:
        """Wait until all clients have gone."""
        async with asyncio.timeout(PATIENCE):
            for end in self.ends.values():
                await end.wait()

    async def _behave(self, asked: Asked) -> None:
        with suppress(ConnectionError):
            await self.behaviour(asked)


Serve = Callable[[Behaviour], Awaitable[Raw]]
Connect = Callable[..., Awaitable[tuple[Any, Listening]]]


def plain(body: Callable[[Asked], bytes] | bytes | None = None, status: int = 200, **headers: str) -> Behaviour:
    """Return a behaviour: every request gets the same answer, or the good one."""

    async def behave(asked: Asked) -> None:
        said = body(asked) if callable(body) else result(asked.id) if body is None else body
        await asked.reply(status, said, **headers)

    return behave
