"""Servers on bare sockets with any behaviour, and a listener that records its calls."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from callyard.providers.upstream.link import LinkError, Received
from callyard.wire.messages import Id

__all__ = [
    "TIMEOUT_S",
    "Behaviour",
    "Connect",
    "RawServer",
    "RecordingListener",
    "Request",
    "Serve",
    "answers",
    "failed_call",
    "notification",
    "request_message",
    "result_message",
    "until",
]

TIMEOUT_S = 60.0


def request_message(number: int, method: str = "tools/call", **params: Any) -> bytes:
    """Return a request message."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def result_message(number: object, value: object = "done") -> bytes:
    """Return a response message."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": {"value": value}}).encode()


def notification(method: str = "notifications/message", **params: Any) -> bytes:
    """Return a notification."""
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that has no event."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)  # one loop iteration, not a wait


class RecordingListener:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[tuple[str, Any, Any]] = asyncio.Queue()

    def receive(self, data: bytes, about: Id | None) -> Received:
        """Record a message; one that is nested too deep stays bytes."""
        try:
            message = json.loads(data)
        except RecursionError:
            message = data
        self.calls.put_nowait(("message", message, about))
        return "awaited"

    def lose(self, request_id: Id, error: LinkError) -> None:
        """Record a loss."""
        self.calls.put_nowait(("lost", error, request_id))

    def end(self, error: LinkError) -> None:
        """Record the end."""
        self.calls.put_nowait(("ended", error, None))

    async def next(self) -> tuple[str, Any, Any]:
        """Return the next call."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.calls.get()

    async def message(self, about: Id | None = None) -> Any:
        """Return the next message, which must be about that request."""
        kind, message, request_id = await self.next()
        assert (kind, request_id) == ("message", about), message
        return message

    async def loss(self, request_id: Id) -> LinkError:
        """Return the loss of that request, which must be the next call."""
        kind, error, lost = await self.next()
        assert (kind, lost) == ("lost", request_id), error
        return error


async def failed_call(link: Any, listener: RecordingListener, number: int = 1) -> LinkError:
    """Send a request, and return how it is lost."""
    link.send(request_message(number), number, {})
    return await listener.loss(number)


class Request:
    """One request that a server received."""

    def __init__(self, server: "RawServer", writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
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


Behaviour = Callable[[Request], Awaitable[None]]


class RawServer:
    """A server on a bare socket that handles each request with one behaviour."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[Request] = []
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
                length = next(
                    (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
                )
                body = await reader.readexactly(int(length.partition(b":")[2]))
                request = Request(self, writer, head, body)
                self.requests.append(request)
                task = asyncio.ensure_future(self._behave(request))
                busy.add(task)
                task.add_done_callback(busy.discard)
        self.ends[writer].set()
        for task in busy:
            task.cancel()
        writer.close()

    async def left(self) -> None:
        """Wait until all clients have gone."""
        async with asyncio.timeout(TIMEOUT_S):
            for end in self.ends.values():
                await end.wait()

    async def _behave(self, request: Request) -> None:
        with suppress(ConnectionError):
            await self.behaviour(request)


Serve = Callable[[Behaviour], Awaitable[RawServer]]
Connect = Callable[..., Awaitable[tuple[Any, RecordingListener]]]


def answers(body: Callable[[Request], bytes] | bytes | None = None, status: int = 200, **headers: str) -> Behaviour:
    """Return a behaviour that gives every request the same answer, or its result."""

    async def behave(request: Request) -> None:
        content = body(request) if callable(body) else result_message(request.id) if body is None else body
        await request.reply(status, content, **headers)

    return behave
