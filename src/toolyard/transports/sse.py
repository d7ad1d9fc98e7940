"""The sse transport: HTTP as clients spoke it before there was one endpoint; deprecated, and for those alone.

A client opens a stream and is told where to post its messages; every answer comes on the stream. A stream is a line both ways, so
it is the same conversation as on a pipe.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable
from typing import Any, Final

from toolyard.config.settings import Serving
from toolyard.dispatch.call import Caller
from toolyard.model.envelope import encode
from toolyard.server import ServerContext
from toolyard.server.stream import MessageStream, Said
from toolyard.transports.auth import Authenticator
from toolyard.transports.http.asgi import (
    PREFLIGHT,
    Headers,
    Receive,
    Send,
    Target,
    respond,
    respond_text,
    share,
    shown_of,
    trace_of,
    wait_until_gone,
)
from toolyard.transports.http.host_check import EndpointUrl, HostCheck, RefusedError, check_once, endpoint_asked_about, endpoint_url_of
from toolyard.transports.http.response import STREAM
from toolyard.transports.http.server import Http
from toolyard.wire.sse import KEEP_ALIVE, encode_event
from toolyard.yard import Yard

__all__ = ["Sse"]

_STREAM_PATH: Final = "/sse"
_POST_PATH: Final = "/messages"
_log = logging.getLogger(__name__)


class _Client:
    """One stream: the conversation on it, and what waits to be written."""

    def __init__(self, front: ServerContext, caller: Caller) -> None:
        self.identity = caller.identity
        self.waiting: deque[bytes] = deque()
        self.wake = asyncio.Event()
        self.is_over = False
        self.is_stuck = False
        """Whether what was sent last is not read yet."""
        self.size = 0
        self._room = front.serving.message_bytes
        self.duplex = MessageStream(front, self.push, caller=caller)

    def push(self, message: bytes) -> None:
        """Write a message, however long it is; a client that reads none of very many is let go."""
        if self.is_over:
            return
        if self.is_stuck and self.size > self._room:
            self.end()
            self.duplex.close()
            return
        self.waiting.append(encode_event(message))
        self.size += len(message)
        self.wake.set()

    def end(self) -> None:
        """Let the client go."""
        self.is_over = True
        self.wake.set()


class _App:
    """The two endpoints."""

    def __init__(self, yard: Yard, serving: Serving, authenticator: Authenticator | None, *, host: str | None) -> None:
        self._yard = yard
        self._serving = serving
        self._gate = HostCheck(serving, authenticator, host=host)
        self._front = ServerContext(yard, serving, channel="sse")
        self._clients: dict[str, _Client] = {}
        self._shown = tuple(name.lower().encode() for name in serving.request_headers)

    async def respond(self, target: Target, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers: Headers = target.headers
        try:
            if len(headers) != len(target.pairs):
                check_once(target.pairs)
            self._gate.check(headers)
            if b"origin" in headers:
                send = share(send, headers[b"origin"])
                if target.method == "OPTIONS":
                    await respond(send, 200, b"", PREFLIGHT)
                    return
            place = endpoint_url_of(target, _STREAM_PATH, self._serving)
            if (target.method, target.path) == ("GET", _STREAM_PATH):
                await self._stream(target, await self._gate.caller(self._yard, headers, None, place), receive, send)
            elif (target.method, target.path) == ("POST", _POST_PATH):
                await self._post(target, await self._gate.caller(self._yard, headers, None, place), send)
            else:
                await self._tell_other(target, place, send)
        except RefusedError as refused:
            await respond_text(send, refused.status, refused.message, refused.headers)

    async def _tell_other(self, target: Target, place: EndpointUrl, send: Send) -> None:
        """Tell how to get credentials, where that is asked, or that there is nothing."""
        asked = endpoint_asked_about(target, _STREAM_PATH)
        known = self._gate.protected_resource(place) if asked == _STREAM_PATH else None
        if known is None:
            raise RefusedError(404, "There is nothing here. The stream is at '/sse'.")
        await respond(send, 200, encode(known))

    def end_listeners(self) -> None:
        """Answer those who listen, whose streams carry other answers, too, and so last until these are written."""
        self._front.end_listeners()

    def finish(self, seconds: float) -> Awaitable[None]:
        """Let calls finish for so long, then interrupt them, so that each is answered."""
        return self._front.finish(seconds)

    def answer_unended(self, target: Target) -> None:
        """Return nothing: answers go by the streams, and are given up with those."""

    def close(self) -> None:
        """Let every client go, once those of its calls are answered that do not end."""
        for client in self._clients.values():
            client.duplex.give_up()
            client.end()
        self._front.close()

    async def _stream(self, target: Target, caller: Caller, receive: Receive, send: Send) -> None:
        if len(self._clients) >= self._serving.sessions:
            raise RefusedError(503, "There are too many streams.")
        key = secrets.token_hex(16)
        client = self._clients[key] = _Client(self._front, caller)
        place = f"{target.root}{_POST_PATH}?session_id={key}"
        client.waiting.append(encode_event(place.encode(), kind="endpoint"))
        gone = asyncio.ensure_future(_gone(receive, client))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(STREAM)})
            await self._write(client, send)
        finally:
            gone.cancel()
            del self._clients[key]
            client.duplex.close()

    async def _write(self, client: _Client, send: Send) -> None:
        while True:
            client.wake.clear()
            body = b"".join(client.waiting)
            client.waiting.clear()
            client.size = 0
            last = client.is_over
            if body or last:
                client.is_stuck = True
                await send({"type": "http.response.body", "body": body, "more_body": not last})
                client.is_stuck = False
            if last:
                return
            try:
                async with asyncio.timeout(self._serving.keep_alive or None):
                    await client.wake.wait()
            except TimeoutError:
                client.waiting.append(KEEP_ALIVE)

    async def _post(self, target: Target, caller: Caller, send: Send) -> None:
        client = self._clients.get(target.query.decode("latin-1").removeprefix("session_id="))
        if client is None or client.identity != caller.identity:
            raise RefusedError(404, "There is no such stream; open one at '/sse'.")
        if client.duplex.is_full:
            raise RefusedError(503, "This client has too many requests in flight.", ((b"retry-after", b"1"),))
        named = (*self._shown, *(name.encode() for name in self._yard.providers.forward_headers))
        client.duplex.receive_with(Said(shown_of(target.headers, named), trace_of(target.headers)), target.body or b"")
        await respond(send, 202, b"Accepted\n", ())


class Sse(Http):
    """HTTP as it was before streamable HTTP."""

    name = "sse"
    endpoint = _STREAM_PATH

    def make_app(self, yard: Yard) -> Any:
        """Return the application."""
        _log.warning("transport_deprecated name=sse instead=http")
        return _App(yard, self.serving, self.authenticator, host=self.host)


async def _gone(receive: Receive, client: _Client) -> None:
    await wait_until_gone(receive)
    client.end()
