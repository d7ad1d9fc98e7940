"""HTTP with SSE, as it was before streamable HTTP: a stream that says where to post, and on which every answer comes."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from toolyard.providers.upstream.http.client import join, read_address
from toolyard.providers.upstream.http.exchange import OTHERS, Exchange, Sender, messages_in, trouble_of
from toolyard.providers.upstream.link import NO_CREDENTIALS, Credentials, LinkError, Listener
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.messages import Id
from toolyard.wire.sse import Event

__all__ = ["SseLink"]

_CLIENT: Final = 400
_log = logging.getLogger(__name__)


class SseLink:
    """A link over the legacy pair of a stream and an address to post to."""

    def __init__(self, name: str, settings: UpstreamSettings, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._name = name
        self._settings = settings
        self._credentials = credentials
        self._listener: Listener
        self._courier: Sender
        self._loop: asyncio.AbstractEventLoop
        self._stream: Exchange | None = None
        self._opening: asyncio.Future[None] | None = None
        self._posts: dict[Exchange, None] = {}
        self._is_open = False

    async def open(self, listener: Listener) -> None:
        """Open the stream, and wait until it says where to post.

        Raises:
            LinkError: It does not, or cannot be reached.
        """
        address = read_address(self._name, self._settings.url or "")
        self._loop = asyncio.get_running_loop()
        self._courier = Sender(self._name, address, settings=self._settings, credentials=self._credentials)
        self._listener = listener
        self._opening = self._loop.create_future()
        self._stream = Exchange(self, self._courier, method="GET", headers={})
        self._courier.send(self._stream)
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                await self._opening
        except TimeoutError:
            sentence = f"'{self._name}' did not say within {self._settings.connect_seconds:g} seconds where to post."
            raise LinkError("unavailable", sentence) from None
        finally:
            if not self._is_open:
                await self.close()

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Post a message, soon; the answer to a request comes on the stream."""
        if not self._is_open:
            if request_id is not None:
                self._loop.call_soon(self._listener.lose, request_id, LinkError("lost", f"The link to '{self._name}' is closed."))
            return
        if request_id is None and sum(post.request_id is None for post in self._posts) >= OTHERS:
            _log.debug("upstream_takes_no_more upstream=%s", self._name)
            return  # such as answers to pings without end
        exchange = Exchange(self, self._courier, headers=headers, message=message, request_id=request_id)
        exchange.timer = self._loop.call_later(self._settings.connect_seconds, self._expire, exchange)
        self._posts[exchange] = None
        self._courier.send_in_turn(exchange)

    def drop(self, request_id: Id) -> None:
        """Do nothing: what the answer is to come on is for all."""

    def listen(self) -> None:
        """Do nothing: all that the upstream says comes on the stream."""

    async def close(self) -> None:
        """Let go of everything; an upstream that loses the stream forgets us."""
        self._is_open = False
        if self._stream is None:
            return
        for exchange in (self._stream, *self._posts):
            self._courier.drop(exchange)
        self._posts.clear()
        await self._courier.close()

    def begun(self, exchange: Exchange) -> None:
        """Do nothing."""

    def heard(self, exchange: Exchange, event: Event) -> None:
        """Take an event of the stream: first where to post, then messages."""
        if not self._is_open:
            self._begin(exchange, event)
        elif event.kind == "message" and event.data:
            for message in messages_in(event.data):
                self._listener.receive(message, None)

    def ended(self, exchange: Exchange) -> None:
        """Take note that a message was taken or refused, or that the stream is over."""
        if exchange is self._stream:
            over = LinkError("lost", f"'{self._name}' ended the stream.", sent=True)
            self._end(over if exchange.events is not None else trouble_of(exchange))
        else:
            self._end_post(exchange, None if exchange.status < _CLIENT else trouble_of(exchange))

    def failed(self, exchange: Exchange, error: LinkError) -> None:
        """Take note that a message was not taken, or that the stream is gone."""
        if exchange is self._stream:
            self._end(error)
        else:
            self._end_post(exchange, error)

    def _begin(self, exchange: Exchange, event: Event) -> None:
        if event.kind != "endpoint" or self._opening is None or self._opening.done():
            return
        head = self._courier.head
        here = msgspec.structs.replace(self._courier.address, target=exchange.target or head.target)
        place = join(self._name, here, event.data.decode("utf-8", "replace"))
        if place is None:
            sentence = f"'{self._name}' wants its messages posted to another server, which is not done."
            self._opening.set_exception(LinkError("refused", sentence, text=event.data[:200].decode("utf-8", "replace")))
            return
        head.target = place.target
        self._is_open = True
        self._opening.set_result(None)

    def _end(self, error: LinkError) -> None:
        """Tell that the stream is gone, and with it every answer."""
        if self._is_open:
            self._is_open = False
            self._listener.end(error)
        elif self._opening is not None and not self._opening.done():
            self._opening.set_exception(error)

    def _end_post(self, exchange: Exchange, error: LinkError | None) -> None:
        exchange.end()
        self._posts.pop(exchange, None)
        self._courier.let_next(exchange)
        if error is not None and exchange.request_id is not None:
            self._listener.lose(exchange.request_id, error)
        elif error is not None:
            _log.info("upstream_took_no_note upstream=%s trouble=%s status=%s", self._name, error.kind, error.status)

    def _expire(self, exchange: Exchange) -> None:
        self._courier.drop(exchange)
        self._end_post(exchange, LinkError("unavailable", f"'{self._name}' takes too long to take a message.", sent=True))
