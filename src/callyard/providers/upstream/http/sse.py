"""A link over HTTP with SSE, the transport before streamable HTTP: one stream names a URL to post to and carries every response."""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from callyard.providers.upstream.http.client import parse_address, resolve
from callyard.providers.upstream.http.exchange import MAX_ONE_WAY, Exchange, Sender, error_from_response, split_messages
from callyard.providers.upstream.link import NO_CREDENTIALS, Credentials, LinkError, Listener
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.wire.messages import Id
from callyard.wire.sse import Event

__all__ = ["SseLink"]

_log = logging.getLogger(__name__)


class SseLink:
    """A link over HTTP with SSE."""

    def __init__(self, name: str, settings: UpstreamSettings, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._name = name
        self._settings = settings
        self._credentials = credentials
        self._listener: Listener
        self._sender: Sender
        self._loop: asyncio.AbstractEventLoop
        self._stream: Exchange | None = None
        self._endpoint: asyncio.Future[str] | None = None
        self._posts: dict[Exchange, None] = {}
        self._is_open = False

    async def open(self, listener: Listener) -> None:
        """Open the stream, and wait for its `endpoint` event.

        Raises:
            LinkError: The upstream cannot be reached, or sends no usable endpoint.
        """
        address = parse_address(self._name, self._settings.url or "")
        self._loop = asyncio.get_running_loop()
        self._sender = Sender(self._name, address, settings=self._settings, credentials=self._credentials)
        self._listener = listener
        self._endpoint = self._loop.create_future()
        self._stream = Exchange(self, self._sender, method="GET", headers={})
        self._sender.send(self._stream)
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                await self._endpoint
        except TimeoutError:
            sentence = f"'{self._name}' named no endpoint within {self._settings.connect_seconds:g} seconds."
            raise LinkError("unavailable", sentence) from None
        finally:
            if not self._is_open:
                await self.close()

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Post a message soon; the response to a request comes on the stream."""
        if not self._is_open:
            if request_id is not None:
                self._loop.call_soon(self._listener.lose, request_id, LinkError("lost", f"The link to '{self._name}' is closed."))
            return
        if request_id is None and sum(post.request_id is None for post in self._posts) >= MAX_ONE_WAY:
            _log.debug("upstream_takes_no_more upstream=%s", self._name)
            return  # such as the answers to an endless series of pings
        exchange = Exchange(self, self._sender, headers=headers, message=message, request_id=request_id)
        exchange.timer = self._loop.call_later(self._settings.connect_seconds, self._expire, exchange)
        self._posts[exchange] = None
        self._sender.send_after_handshake(exchange)

    def drop(self, request_id: Id) -> None:
        """Do nothing: all responses share the stream."""

    def listen(self) -> None:
        """Do nothing: the stream carries all messages."""

    async def close(self) -> None:
        """Close the stream, which ends the session, and all connections."""
        self._is_open = False
        if self._stream is None:
            return
        for exchange in (self._stream, *self._posts):
            self._sender.drop(exchange)
        self._posts.clear()
        await self._sender.close()

    def on_start(self, exchange: Exchange) -> None:
        """Do nothing."""

    def on_event(self, exchange: Exchange, event: Event) -> None:
        """Handle an event of the stream: first the endpoint, then messages."""
        if not self._is_open:
            self._set_endpoint(exchange, event)
        elif event.kind == "message" and event.data:
            for message in split_messages(event.data):
                self._listener.receive(message, None)

    def on_end(self, exchange: Exchange) -> None:
        """Handle the end of the stream, or the answer to a post."""
        if exchange is not self._stream:
            self._end_post(exchange, error_from_response(exchange) if exchange.is_refused else None)
        elif exchange.events is None:
            self._end(error_from_response(exchange))
        else:
            self._end(LinkError("lost", f"'{self._name}' ended the stream.", sent=True))

    def on_error(self, exchange: Exchange, error: LinkError) -> None:
        """Handle the loss of the stream or of a post."""
        if exchange is self._stream:
            self._end(error)
        else:
            self._end_post(exchange, error)

    def _set_endpoint(self, exchange: Exchange, event: Event) -> None:
        if event.kind != "endpoint" or self._endpoint is None or self._endpoint.done():
            return
        head = self._sender.head
        base = msgspec.structs.replace(self._sender.address, target=exchange.target or head.target)
        endpoint = resolve(self._name, base, event.data.decode("utf-8", "replace"))
        if endpoint is None:
            sentence = f"'{self._name}' names an endpoint on another server, which is not allowed."
            self._endpoint.set_exception(LinkError("refused", sentence, text=event.data[:200].decode("utf-8", "replace")))
            return
        head.target = endpoint.target
        self._is_open = True
        self._endpoint.set_result(endpoint.target)

    def _end(self, error: LinkError) -> None:
        """Report the end of the stream, and with it of all pending requests."""
        if self._is_open:
            self._is_open = False
            self._listener.end(error)
        elif self._endpoint is not None and not self._endpoint.done():
            self._endpoint.set_exception(error)

    def _end_post(self, exchange: Exchange, error: LinkError | None) -> None:
        exchange.close()
        self._posts.pop(exchange, None)
        self._sender.release_queued(exchange)
        if error is not None and exchange.request_id is not None:
            self._listener.lose(exchange.request_id, error)
        elif error is not None:
            _log.info("upstream_took_no_note upstream=%s trouble=%s status=%s", self._name, error.kind, error.status)

    def _expire(self, exchange: Exchange) -> None:
        self._sender.drop(exchange)
        self._end_post(exchange, LinkError("unavailable", f"'{self._name}' did not accept a message in time.", sent=True))
