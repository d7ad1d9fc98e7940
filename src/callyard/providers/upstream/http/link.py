"""Links over HTTP: streamable HTTP of both eras, and the older HTTP with SSE.

Over streamable HTTP each message is posted, and answered by a message or an event stream. Over HTTP with SSE one stream
names a URL to post to and carries every response.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec

from callyard.providers.upstream.http.client import parse_address, resolve
from callyard.providers.upstream.http.exchange import (
    MAX_ONE_WAY,
    Exchange,
    ExchangeListener,
    Sender,
    error_from_response,
    split_messages,
)
from callyard.providers.upstream.link import (
    NO_CREDENTIALS,
    Credentials,
    Link,
    LinkError,
    LinkErrorReason,
    Listener,
    without_mcp_headers,
)
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.wire.messages import Id, id_of
from callyard.wire.sse import Event

__all__ = ["EventStream", "HttpLink", "SseLink", "delay_before"]

_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 60.0
_DOUBLINGS: Final = 6
_TRANSIENT: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_log = logging.getLogger(__name__)


def delay_before(retries: int, retry_ms: int) -> float:
    """Return the seconds before a stream is opened again: exponential with jitter, at least what the upstream asks."""
    asked = min(retry_ms / 1000, _LONGEST_SECONDS)
    if retries == 0:
        return asked or _FIRST_SECONDS
    longest = min(_FIRST_SECONDS * 2 ** min(retries, _DOUBLINGS), _LONGEST_SECONDS)
    return max(random.uniform(longest / 2, longest), asked)  # noqa: S311 - spreads load, hides nothing


class EventStream:
    """The stream of messages that belong to no request; reopens until it is stopped or the upstream offers none."""

    def __init__(self, sender: Sender, listener: Listener, *, headers: Callable[[], Mapping[str, str]]) -> None:
        self._sender = sender
        self._listener = listener
        self._headers = headers
        self._was_open = False
        self._exchange = Exchange(self, sender, method="GET", headers={})

    def start(self) -> None:
        """Open the stream, after the last event if there was one."""
        exchange = self._exchange
        exchange.headers = self._headers()
        exchange.challenges = ()
        exchange.redirects = 0
        exchange.reset()
        self._sender.send(exchange)

    def stop(self) -> None:
        """Close the stream for good."""
        self._sender.drop(self._exchange)

    def on_start(self, exchange: Exchange) -> None:
        """Remember that the upstream offers the stream."""
        self._was_open = self._was_open or exchange.events is not None

    def on_event(self, exchange: Exchange, event: Event) -> None:  # noqa: ARG002 - the protocol's name
        """Pass the messages of an event on."""
        if event.data and event.kind == "message":
            for message in split_messages(event.data):
                self._listener.receive(message, None)

    def on_end(self, exchange: Exchange) -> None:
        """Reopen the stream unless the upstream offers none; one that is not found any more ended with the session."""
        if exchange.events is not None or exchange.status in _TRANSIENT:
            self._reopen_later((exchange.retry_after if exchange.status != HTTPStatus.OK else None) or 0.0)
            return
        exchange.close()
        _log.debug("upstream_has_no_stream upstream=%s status=%d", self._sender.name, exchange.status)
        if exchange.status == HTTPStatus.NOT_FOUND and self._was_open:
            sentence = f"'{self._sender.name}' does not know the session any more."
            self._listener.end(LinkError("lost", sentence, sent=True))

    def on_error(self, exchange: Exchange, error: LinkError) -> None:
        """Reopen the stream unless the upstream refuses it."""
        if error.kind in {"unavailable", "lost"}:
            self._reopen_later(0.0)
        else:
            exchange.close()
            _log.info("upstream_stream_ended upstream=%s trouble=%s", self._sender.name, error.kind)

    def _reopen_later(self, wait: float) -> None:
        exchange = self._exchange
        delay = max(delay_before(exchange.retries, exchange.retry_ms), min(wait, 10 * _LONGEST_SECONDS))
        exchange.retries += 1
        exchange.timer = asyncio.get_running_loop().call_later(delay, self.start)


class _Frame(msgspec.Struct, gc=False):
    id: Any = None
    method: Any = None


_decode_frame: Final = msgspec.json.Decoder(_Frame).decode


def _peek_response_id(data: bytes) -> tuple[bool, Any]:
    """Return whether the bytes are a message, and the id of the request that it answers, if it is a response."""
    try:
        frame = _decode_frame(data)
    except RecursionError:
        return True, id_of(data)  # nested too deep: its request must fail, and not wait for its timeout
    except msgspec.DecodeError:
        return False, None
    return True, frame.id if frame.method is None else None


def _jsonrpc_error_in(body: bytes, request_id: Id) -> bytes | None:
    """Return a JSON-RPC error in a body as the response to a request, whichever id the body has."""
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    error = cast("dict[str, Any]", document).get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict) or not isinstance(cast("dict[str, Any]", error).get("code"), int):
        return None
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})


_VERSION: Final = "MCP-Protocol-Version"
_GOODBYE_SECONDS: Final = 1.0
_LINGER_SECONDS: Final = 1.0
_MAX_RESUMES: Final = 5


class _PostingLink(Link, ExchangeListener):
    """The part that both links share: messages that are posted, each in an exchange."""

    _answers_posts: bool
    """Whether the response to a request comes on its own post."""

    def __init__(self, name: str, settings: UpstreamSettings, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._name = name
        self._settings = settings
        self._credentials = credentials
        self._requests: dict[Id, Exchange] = {}
        self._one_way: set[Exchange] = set()
        self._is_open = False

    def _prepare(self, listener: Listener) -> None:
        address = parse_address(self._name, self._settings.url or "")
        self._loop = asyncio.get_running_loop()
        self._sender = Sender(self._name, address, settings=self._settings, credentials=self._credentials)
        self._listener = listener

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Post a message soon; the listener gets the response to a request, or its loss."""
        if not self._is_open:
            if request_id is not None:
                error = LinkError("lost", f"The link to '{self._name}' is closed.")
                self._loop.call_soon(self._listener.lose, request_id, error)
            return
        if request_id is None and len(self._one_way) >= MAX_ONE_WAY:
            _log.debug("upstream_takes_no_more upstream=%s", self._name)
            return  # such as the answers to an endless series of pings
        exchange = Exchange(self, self._sender, headers=headers, message=message, request_id=request_id)
        if request_id is None:
            self._one_way.add(exchange)
        else:
            self._requests[request_id] = exchange
        if request_id is None or not self._answers_posts:
            exchange.timer = self._loop.call_later(self._settings.connect_seconds, self._expire, exchange)
        self._sender.send_after_handshake(exchange)

    def _drop_all(self) -> None:
        for exchange in (*self._requests.values(), *self._one_way):
            self._sender.drop(exchange)
        self._requests.clear()
        self._one_way.clear()

    def _settle(self, exchange: Exchange) -> None:
        exchange.close()
        self._one_way.discard(exchange)
        request_id = exchange.request_id
        if request_id is not None and self._requests.get(request_id) is exchange:
            del self._requests[request_id]

    def _end_post(self, exchange: Exchange, error: LinkError | None) -> None:
        """Finish a post that brings no response; a failed notification is only logged, because nobody waits for it."""
        self._settle(exchange)
        self._sender.release_queued(exchange)
        if error is not None and exchange.request_id is not None:
            self._listener.lose(exchange.request_id, error)
        elif error is not None:
            _log.info("upstream_took_no_note upstream=%s trouble=%s status=%s", self._name, error.kind, error.status)

    def _expire(self, exchange: Exchange) -> None:
        self._sender.drop(exchange)
        sentence = f"'{self._name}' did not accept a message in time."
        self._end_post(exchange, LinkError("unavailable", sentence, sent=True))


class HttpLink(_PostingLink):
    """A link over streamable HTTP."""

    _answers_posts = True

    def __init__(self, name: str, settings: UpstreamSettings, credentials: Credentials = NO_CREDENTIALS) -> None:
        super().__init__(name, settings, credentials)
        self._version: str | None = None
        self._stream: EventStream | None = None
        self._was_opened = False
        self._session_deleted = asyncio.Event()

    async def open(self, listener: Listener) -> None:
        """Get ready to send; the first message connects.

        Raises:
            LinkError: The URL is invalid.
        """
        self._prepare(listener)
        self._is_open = self._was_opened = True

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Post a message soon, and remember the version that it names."""
        self._version = headers.get(_VERSION, self._version)
        super().send(message, request_id, headers)

    def drop(self, request_id: Id) -> None:
        """Stop waiting for the response to a request, and close its connection."""
        exchange = self._requests.pop(request_id, None)
        if exchange is not None:
            self._sender.drop(exchange)

    def listen(self) -> None:
        """Open the stream of messages that belong to no request."""
        self._stream = EventStream(self._sender, self._listener, headers=self._version_header)
        self._stream.start()

    async def close(self) -> None:
        """Delete the session, and close all connections."""
        if not self._was_opened:
            return
        was_open, self._is_open = self._is_open, False
        if self._stream is not None:
            self._stream.stop()
        self._drop_all()
        try:
            if was_open and self._sender.head.session is not None and self._credentials.ready() is not None:
                await self._delete_session()
        finally:
            await self._sender.close()

    def on_start(self, exchange: Exchange) -> None:
        """Remember the session that the first response names."""
        session = exchange.response_headers.get(b"mcp-session-id")
        if session is not None and exchange.session is None and exchange.status == HTTPStatus.OK:
            self._sender.head.session = session.decode("latin-1")

    def on_event(self, exchange: Exchange, event: Event) -> None:
        """Pass the messages of an event on."""
        if event.data and event.kind == "message" and not exchange.is_answered:
            self._deliver(exchange, event.data)
            if exchange.is_answered and exchange.connection is not None:
                # The stream should end now; if it does, its connection can be reused.
                exchange.timer = self._loop.call_later(_LINGER_SECONDS, self._sender.drop, exchange)

    def on_end(self, exchange: Exchange) -> None:
        """Handle a complete response: an answer, the end of a stream, or an error."""
        if exchange.request_id is None:
            is_refused = exchange.is_refused and exchange.method != "DELETE"
            self._end_post(exchange, error_from_response(exchange) if is_refused else None)
        elif exchange.events is not None:
            self.on_error(
                exchange, LinkError("lost", f"'{self._name}' ended the stream before the response.", sent=True)
            )
        elif exchange.status == HTTPStatus.OK and exchange.method == "POST":
            self._deliver(exchange, exchange.body)
            if not exchange.is_answered:
                why = f"'{self._name}' answered with something other than the response to the request."
                reason: LinkErrorReason = "protocol" if _peek_response_id(exchange.body)[0] else "not_mcp"
                self._lose(
                    exchange,
                    LinkError("refused", why, sent=True, status=exchange.status, text=exchange.text, reason=reason),
                )
        else:
            self._handle_error_status(exchange)

    def on_error(self, exchange: Exchange, error: LinkError) -> None:
        """Handle a response that failed or broke off, or a stream that ended."""
        if exchange.request_id is None:
            self._end_post(exchange, error)
        elif exchange.is_answered:
            exchange.close()
        elif exchange.last_event_id and error.kind in {"lost", "unavailable"}:
            self._resume(exchange)
        else:
            self._lose(exchange, error)

    def _version_header(self) -> Mapping[str, str]:
        return {} if self._version is None else {_VERSION: self._version}

    def _deliver(self, exchange: Exchange, data: bytes) -> None:
        """Pass on the messages of an exchange, and notice the response among them."""
        for message in split_messages(data):
            is_message, answered_id = _peek_response_id(message)
            if answered_id == exchange.request_id:
                exchange.is_answered = True
                self._settle(exchange)
            if is_message and self._listener.receive(message, exchange.request_id) == "awaited":
                exchange.forgive()

    def _lose(self, exchange: Exchange, error: LinkError) -> None:
        if exchange.method != "POST":
            error.sent = True  # a stream is only resumed for a request that had been sent
        self._end_post(exchange, error)

    def _handle_error_status(self, exchange: Exchange) -> None:
        """Handle an error status; a JSON-RPC error in its body is a response after all."""
        error = error_from_response(exchange)
        if error.kind == "session_lost" and self._sender.head.session == exchange.session:
            self._sender.head.session = None
        if exchange.method == "POST" and error.kind == "refused" and exchange.request_id is not None:
            response = _jsonrpc_error_in(exchange.body, exchange.request_id)
            if response is not None:
                self._settle(exchange)
                self._listener.receive(response, exchange.request_id)
                return
        self._lose(exchange, error)

    def _resume(self, exchange: Exchange) -> None:
        if exchange.retries == _MAX_RESUMES:
            broken = f"'{self._name}' broke off the stream of a response"
            self._lose(
                exchange, LinkError("lost", f"{broken}, and resuming it failed {_MAX_RESUMES} times.", sent=True)
            )
            return
        exchange.method = "GET"
        exchange.headers = {**without_mcp_headers(exchange.headers), **self._version_header()}
        exchange.message = b""
        exchange.reset()
        delay = delay_before(exchange.retries, exchange.retry_ms)
        exchange.timer = self._loop.call_later(delay, self._sender.send, exchange)
        exchange.retries += 1

    def _end_post(self, exchange: Exchange, error: LinkError | None) -> None:
        if exchange.method == "DELETE":
            self._session_deleted.set()
        super()._end_post(exchange, error)

    async def _delete_session(self) -> None:
        exchange = Exchange(self, self._sender, method="DELETE", headers=self._version_header())
        self._sender.send(exchange)
        try:
            await asyncio.wait_for(self._session_deleted.wait(), _GOODBYE_SECONDS)
        except TimeoutError:
            self._sender.drop(exchange)


class SseLink(_PostingLink):
    """A link over HTTP with SSE: all messages of the upstream come on one stream."""

    _answers_posts = False

    def __init__(self, name: str, settings: UpstreamSettings, credentials: Credentials = NO_CREDENTIALS) -> None:
        super().__init__(name, settings, credentials)
        self._stream: Exchange | None = None
        self._endpoint: asyncio.Future[None] | None = None

    async def open(self, listener: Listener) -> None:
        """Open the stream, and wait for its `endpoint` event.

        Raises:
            LinkError: The upstream cannot be reached, or sends no usable endpoint.
        """
        self._prepare(listener)
        self._endpoint = self._loop.create_future()
        self._stream = Exchange(self, self._sender, method="GET", headers={})
        self._sender.send(self._stream)
        try:
            await asyncio.wait_for(self._endpoint, self._settings.connect_seconds)
        except TimeoutError:
            sentence = f"'{self._name}' named no endpoint within {self._settings.connect_seconds:g} seconds."
            raise LinkError("unavailable", sentence) from None
        finally:
            if not self._is_open:
                await self.close()

    async def close(self) -> None:
        """Close the stream, which ends the session, and all connections."""
        self._is_open = False
        if self._stream is not None:
            self._sender.drop(self._stream)
            self._drop_all()
            await self._sender.close()

    def on_event(self, exchange: Exchange, event: Event) -> None:
        """Handle an event of the stream: first the endpoint, then messages."""
        if not self._is_open:
            self._set_endpoint(exchange, event)
        elif event.kind == "message" and event.data:
            for message in split_messages(event.data):
                if self._listener.receive(message, None) == "awaited":
                    exchange.forgive()

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
        named = event.data.decode("utf-8", "replace")
        endpoint = resolve(self._name, base, named)
        if endpoint is None:
            sentence = f"'{self._name}' names an endpoint on another server, which is not allowed."
            self._endpoint.set_exception(LinkError("refused", sentence, text=named[:200]))
            return
        head.target = endpoint.target
        self._is_open = True
        self._endpoint.set_result(None)

    def _end(self, error: LinkError) -> None:
        """Report the end of the stream, and with it of all pending requests."""
        if self._is_open:
            self._is_open = False
            self._listener.end(error)
        elif self._endpoint is not None and not self._endpoint.done():
            self._endpoint.set_exception(error)
