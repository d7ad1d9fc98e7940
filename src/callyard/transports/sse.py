"""The SSE transport: HTTP as it was before streamable HTTP; deprecated, and for old clients alone.

A client opens a stream, which names the URL to post messages to; every answer comes on the stream. Both together carry
messages in both directions, so the session is the same as on a pipe.
"""

import asyncio
import logging
import re
import secrets
from typing import Any, Final
from urllib.parse import urlsplit

from callyard.config.settings import Serving
from callyard.dispatch.call import Caller
from callyard.server import ServerContext
from callyard.server.stream import MessageHeaders, MessageStream
from callyard.transports.auth import Authenticator
from callyard.transports.http.app import App, Mount
from callyard.transports.http.request import RefusedError, Request, select_headers
from callyard.transports.http.response import EventStream, ResponseWriter
from callyard.transports.http.server import Http
from callyard.yard import Yard

__all__ = ["Sse"]

_STREAM_PATH: Final = "/sse"
_POST_PATH: Final = "/messages"
_log = logging.getLogger(__name__)


class _Client:
    def __init__(self, server: ServerContext, caller: Caller, events: EventStream) -> None:
        self.identity = caller.identity
        self.events = events
        self._max_bytes = server.serving.message_bytes
        self.stream = MessageStream(server, self.push, caller=caller, is_scope=True)

    def push(self, message: bytes) -> None:
        """Add a message; a client that reads nothing of very many is disconnected."""
        if self.events.is_over:
            return
        if self.events.is_writing and self.events.size > self._max_bytes:
            self.events.end()
            self.stream.close()
        else:
            self.events.push(message)


class _App(App):
    endpoint_path = _STREAM_PATH
    endpoint_paths = re.compile(_STREAM_PATH)
    not_found = "There is nothing here. The stream is at '/sse'."

    def __init__(self, yard: Yard, serving: Serving, authenticator: Authenticator | None, *, host: str | None) -> None:
        super().__init__(yard, serving, authenticator, host=host)
        self._server = ServerContext(yard, serving, channel="sse")
        self._clients: dict[str, _Client] = {}

    def own_mounts(self) -> dict[str, Mount]:
        return {_STREAM_PATH: Mount(handle=self._open_stream), _POST_PATH: Mount(handle=self._post)}

    def resource_path(self, request: Request) -> str:  # noqa: ARG002 - both endpoints are one resource
        return _STREAM_PATH

    def end_listeners(self) -> None:
        """Answer open subscriptions; their streams carry other answers, too, so they stay open."""
        self.is_ready = False
        self._server.end_listeners()

    async def finish(self, seconds: float) -> None:
        await self._server.finish(seconds)

    def answer_unfinished(self, request: Request) -> None:
        """Return None: answers go out by the streams, which `close` ends."""

    def close(self) -> None:
        """Answer the calls that do not end, and end every stream."""
        for client in self._clients.values():
            client.stream.give_up()
            client.events.end()
        self._server.close()

    async def _open_stream(self, request: Request, writer: ResponseWriter) -> None:
        if request.method != "GET":
            raise RefusedError(404, self.not_found)
        if len(self._clients) >= self.serving.sessions:
            raise RefusedError(503, "There are too many streams.")
        key = secrets.token_hex(16)
        events = EventStream(writer, keep_alive=self.serving.keep_alive)
        client = self._clients[key] = _Client(self._server, request.caller, events)
        public = self.serving.public_url
        root = request.root if public is None else urlsplit(public).path.rstrip("/")
        events.push(f"{root}{_POST_PATH}?session_id={key}".encode(), kind="endpoint")
        disconnected = asyncio.ensure_future(writer.wait_for_disconnect())
        disconnected.add_done_callback(lambda _: events.end())
        try:
            await events.run()
        finally:
            disconnected.cancel()
            del self._clients[key]
            client.stream.close()

    async def _post(self, request: Request, writer: ResponseWriter) -> None:
        if request.method != "POST":
            raise RefusedError(404, self.not_found)
        client = self._clients.get(request.query.decode("latin-1").removeprefix("session_id="))
        if client is None or client.identity != request.caller.identity:
            raise RefusedError(404, "There is no such stream; open one at '/sse'.")
        if client.stream.is_full:
            raise RefusedError(503, "This client has too many requests in flight.", ((b"retry-after", b"1"),))
        headers = select_headers(request.headers, self._server.header_names())
        client.stream.receive(request.body or b"", MessageHeaders(headers, request.trace()))
        await writer.respond(202, b"Accepted\n", ())


class Sse(Http):
    """HTTP as it was before streamable HTTP."""

    name = "sse"
    endpoint = _STREAM_PATH

    def make_app(self, yard: Yard) -> Any:
        """Return the application."""
        _log.warning("transport_deprecated name=sse instead=http")
        return _App(yard, self.serving, self.authenticator, host=self.host)
