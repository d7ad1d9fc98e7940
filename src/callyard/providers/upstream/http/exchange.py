"""One HTTP request to an upstream and its response, and the sender that carries all of them.

The sender follows redirects, renews credentials and sends again. It knows message ids, but not what messages mean.
"""

import asyncio
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Literal, Protocol

from callyard.providers.upstream.http.client import (
    TEXT_CHARS,
    Address,
    Connection,
    HeaderError,
    Pool,
    RequestHead,
    resolve,
)
from callyard.providers.upstream.link import Credentials, LinkError
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.wire.messages import Fault, Id, decode_batch
from callyard.wire.sse import Event, Events

__all__ = ["MAX_ONE_WAY", "Exchange", "ExchangeListener", "Sender", "error_from_response", "split_messages"]

MAX_ONE_WAY: Final = 256
"""How many messages without an answer may be in flight to one upstream."""
_FOLLOWED: Final = frozenset({307, 308})
_REDIRECTS: Final = frozenset({301, 302, 303, *_FOLLOWED})
_ERROR_BYTES: Final = 64 * 1024
_DAY_SECONDS: Final = 86400.0


class ExchangeListener(Protocol):
    """Receives the events of an exchange that it started."""

    def on_start(self, exchange: "Exchange") -> None:
        """Handle the head of the response."""

    def on_event(self, exchange: "Exchange", event: Event) -> None:
        """Handle one server-sent event."""

    def on_end(self, exchange: "Exchange") -> None:
        """Handle the end of a complete response of any status."""

    def on_error(self, exchange: "Exchange", error: LinkError) -> None:
        """Handle a response that failed or broke off."""


class Exchange:
    """One request and its response; redirects and new credentials send it again."""

    session: str | None = None
    credentials: Mapping[str, str] | None = None
    target: str | None = None
    """The request target, where it differs from the upstream's."""
    redirects = 0
    challenges: tuple[tuple[int, str], ...] = ()
    is_answered = False
    """Whether the response to its message came, although the stream goes on."""
    last_event_id = ""
    retry_ms = 0
    retries = 0
    timer: asyncio.TimerHandle | None = None
    is_closed = False

    def __init__(
        self,
        listener: ExchangeListener,
        sender: "Sender",
        *,
        headers: Mapping[str, str],
        message: bytes = b"",
        request_id: Id | None = None,
        method: Literal["POST", "GET", "DELETE"] = "POST",
    ) -> None:
        self.listener = listener
        self.method = method
        self.message = message
        self.request_id = request_id
        self.headers = headers
        self.name = sender.name
        self._sender = sender
        self.reset()

    def reset(self) -> None:
        """Forget the response, before the request is sent again."""
        self.connection: Connection | None = None
        self.status = 0
        self.response_headers: Mapping[bytes, bytes] = {}
        self.events: Events | None = None
        self._body = bytearray()

    @property
    def body(self) -> bytes:
        """Return the body, as far as it came."""
        return bytes(self._body)

    @property
    def text(self) -> str:
        """Return the beginning of the body, for people."""
        return self.body[: 4 * TEXT_CHARS].decode("utf-8", "replace")[:TEXT_CHARS].strip()

    def header(self, name: bytes) -> str:
        """Return a header of the response, or an empty string."""
        return self.response_headers.get(name, b"").decode("latin-1")

    @property
    def is_refused(self) -> bool:
        """Return whether the status is an error."""
        return self.status >= HTTPStatus.BAD_REQUEST

    @property
    def retry_after(self) -> float | None:
        """Return the seconds that the header 'Retry-After' asks to wait, at most a day; it holds seconds or a date."""
        value = self.header(b"retry-after")
        try:
            seconds = float(value) if value.isdecimal() else parsedate_to_datetime(value).timestamp() - time.time()
            return min(max(seconds, 0.0), _DAY_SECONDS)
        except (ValueError, OverflowError):
            return None

    def close(self) -> None:
        """Stop its timer, and ignore what still comes."""
        self.is_closed = True
        if self.timer is not None:
            self.timer.cancel()

    def forgive(self) -> None:
        """Do not count what came just now as unasked."""
        if self.connection is not None:
            self.connection.forgive()

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Handle the status and the headers."""
        self.status = status
        self.response_headers = headers
        if status == HTTPStatus.OK and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self.events = Events(max_bytes=self._sender.message_bytes)
        self.listener.on_start(self)

    def on_body(self, piece: bytes) -> None:
        """Handle a piece of the body."""
        if self.events is None:
            self._body += piece
            if len(self._body) > (self._sender.message_bytes if self.status == HTTPStatus.OK else _ERROR_BYTES):
                self._overflow(f"The answer is longer than {self._sender.message_bytes} bytes.")
            return
        try:
            for event in self.events.feed(piece):
                self.retries = 0
                self.last_event_id = event.id or self.last_event_id
                self.retry_ms = self.retry_ms if event.retry is None else event.retry
                self.listener.on_event(self, event)
                if self.is_closed:
                    return
        except ValueError as error:
            self._overflow(str(error))

    def on_complete(self) -> None:
        """Handle the end of a complete response."""
        if self.status == HTTPStatus.OK:
            self.listener.on_end(self)
        else:
            self._sender.handle_status(self)

    def on_error(self, error: LinkError) -> None:
        """Handle a response that failed or broke off."""
        self.listener.on_error(self, error)

    def _overflow(self, reason: str) -> None:
        """Stop reading; the beginning of an error's body is enough."""
        if self.connection is not None:
            self.connection.abort()
        if self.status == HTTPStatus.OK:
            sentence = f"'{self.name}' answered with too much. {reason}"
            error = LinkError("refused", sentence, sent=True, status=HTTPStatus.OK, reason="protocol")
            self.listener.on_error(self, error)
        else:
            self._sender.handle_status(self)


def split_messages(data: bytes) -> list[bytes]:
    """Return the messages of a body or an event: one, or those of a batch."""
    if data[:1] == b"{":
        return [data]
    try:
        return decode_batch(data) or [data]
    except Fault:
        return []


def error_from_response(exchange: Exchange) -> LinkError:
    """Return the error that a response without an answer stands for, by its status and headers."""
    status, name, text = exchange.status, exchange.name, exchange.text
    if status == HTTPStatus.NOT_FOUND and exchange.session is not None:
        return LinkError("session_lost", f"'{name}' does not know the session any more.", status=status, text=text)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        sentence = f"'{name}' is called too often."
        return LinkError("rate_limited", sentence, status=status, text=text, retry_after=exchange.retry_after)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        wait = exchange.retry_after
        sentence = f"'{name}' is not available now."
        is_sent = wait is None  # some proxies answer so when a server crashed at work, but then without a time to wait
        return LinkError("unavailable", sentence, sent=is_sent, status=status, text=text, retry_after=wait)
    if status in _REDIRECTS:
        location = exchange.header(b"location")[:200]
        sentence = f"'{name}' redirects without a location."
        if location:
            sentence = f"'{name}' has moved to '{location}', which is not followed. Change its URL in the settings."
        return LinkError("refused", sentence, status=status, text=text)
    sentence = f"'{name}' answered with status {status}" + ("." if exchange.is_refused else " and no message.")
    is_sent = status >= HTTPStatus.INTERNAL_SERVER_ERROR or not exchange.is_refused
    return LinkError("refused", sentence, status=status, text=text, sent=is_sent)


_AUTHORIZATION: Final = "authorization"
_DEFAULT_CHALLENGE: Final = "Bearer"
_MAX_REDIRECTS: Final = 3
_MAX_RENEWALS: Final = 3
_STREAMS: Final = 8
"""Connections for streams, on top of those for calls."""
_INITIALIZED: Final = b'"notifications/initialized"'


class Sender:
    """Sends the requests of one upstream; the link that owns it closes it."""

    def __init__(self, name: str, address: Address, *, settings: UpstreamSettings, credentials: Credentials) -> None:
        self.address = address
        self.head = RequestHead(address, settings.headers)
        self.name = name
        self.message_bytes = settings.message_bytes
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(name, address, limit=settings.in_flight + _STREAMS, connect_seconds=settings.connect_seconds)
        self._awaiting_credentials: list[Exchange] = []
        self._renewal: asyncio.Task[None] | None = None
        self._initialized: Exchange | None = None
        self._queued: list[Exchange] = []

    def send(self, exchange: Exchange) -> None:
        """Send a request; its listener gets the outcome later, never during this call."""
        if exchange.is_closed:
            return  # dropped while it was queued
        credentials = self._credentials.ready()
        if credentials is None:
            self._wait_for_credentials(exchange, (0, ""))
            return
        exchange.credentials = credentials
        exchange.session = self.head.session
        try:
            data = self.head.request(
                exchange.method,
                exchange.headers,
                credentials=credentials,
                target=exchange.target,
                last_event_id=exchange.last_event_id,
                message=exchange.message,
            )
        except HeaderError as error:
            self._loop.call_soon(exchange.on_error, LinkError("refused", f"Nothing was sent to '{self.name}'. {error}"))
            return
        self._pool.send(exchange, data, urgent=exchange.request_id is None)

    def send_after_handshake(self, exchange: Exchange) -> None:
        """Send a message; queue it until `notifications/initialized` is delivered."""
        if self._initialized is not None:
            self._queued.append(exchange)
            return
        if exchange.request_id is None and _INITIALIZED in exchange.message:
            self._initialized = exchange
        self.send(exchange)

    def release_queued(self, exchange: Exchange) -> None:
        """Send the queued messages if this exchange was the `notifications/initialized` they waited for."""
        if exchange is self._initialized:
            self._initialized = None
            queued, self._queued = self._queued, []
            for waiting in queued:
                self.send(waiting)

    def drop(self, exchange: Exchange) -> None:
        """Cancel an exchange without a callback to its listener."""
        exchange.close()
        self._pool.drop(exchange)
        if exchange in self._awaiting_credentials:
            self._awaiting_credentials.remove(exchange)

    def handle_status(self, exchange: Exchange) -> None:
        """Send a request again after a redirect or refused credentials; pass other responses to the listener."""
        status = exchange.status
        challenge = exchange.header(b"www-authenticate")
        if exchange.method == "DELETE":
            exchange.listener.on_end(exchange)  # the end of a session is not worth new credentials
        elif status == HTTPStatus.UNAUTHORIZED or (
            status == HTTPStatus.FORBIDDEN and (challenge or exchange.credentials)
        ):
            if any(name.lower() == _AUTHORIZATION for name in exchange.headers):
                # the caller sent credentials of its own, which ours must not replace
                self._fail_authentication(exchange, None)
            else:
                self._wait_for_credentials(
                    exchange, (status, challenge or (_DEFAULT_CHALLENGE if status == HTTPStatus.UNAUTHORIZED else ""))
                )
        elif status not in _FOLLOWED or not self._follow(exchange):
            exchange.listener.on_end(exchange)

    async def close(self) -> None:
        """Cancel a renewal of credentials, and close all connections."""
        if self._renewal is not None:
            self._renewal.cancel()
        await self._pool.close()

    def _follow(self, exchange: Exchange) -> bool:
        """Follow a redirect within the same origin; return whether the request was sent again."""
        address = resolve(self.name, self.address, exchange.header(b"location"))
        exchange.redirects += 1
        if address is None or exchange.redirects > _MAX_REDIRECTS:
            return False
        exchange.target = address.target
        if exchange.status == HTTPStatus.PERMANENT_REDIRECT or address.target == f"{self.head.target}/":
            self.head.target = address.target  # saves later requests the redirect
        self._send_again(exchange)
        return True

    def _send_again(self, exchange: Exchange) -> None:
        exchange.reset()
        self.send(exchange)

    def _wait_for_credentials(self, exchange: Exchange, challenge: tuple[int, str]) -> None:
        """Send a request again after a renewal, which all waiting requests share; each challenge is tried once."""
        if challenge in exchange.challenges or len(exchange.challenges) == _MAX_RENEWALS:
            self._loop.call_soon(self._fail_authentication, exchange, None)
            return
        exchange.challenges += (challenge,)
        ready = self._credentials.ready()
        if ready is not None and ready != exchange.credentials:
            self._loop.call_soon(self._send_again, exchange)  # another request renewed them meanwhile
            return
        self._awaiting_credentials.append(exchange)
        if self._renewal is None:
            self._renewal = self._loop.create_task(self._renew_credentials(challenge[1]))

    async def _renew_credentials(self, challenge: str) -> None:
        is_renewed = False
        failure: LinkError | None = None
        try:
            is_renewed = await self._credentials.renew(challenge)
        except LinkError as error:
            failure = error
        finally:
            self._renewal = None
            waiting, self._awaiting_credentials = self._awaiting_credentials, []
            for exchange in waiting:
                if is_renewed:
                    self._send_again(exchange)
                else:
                    self._fail_authentication(exchange, failure)

    def _fail_authentication(self, exchange: Exchange, failure: LinkError | None) -> None:
        """Report refused credentials, with the message of the failed renewal if there is one."""
        if exchange.is_closed:
            return
        challenge = exchange.header(b"www-authenticate")
        if failure is None and exchange.status == HTTPStatus.FORBIDDEN and not challenge:
            exchange.listener.on_end(exchange)
            return
        if failure is None:
            had_credentials = bool(exchange.credentials) or self.head.has_header(_AUTHORIZATION, exchange.headers)
            problem = "refuses the credentials that were sent" if had_credentials else "requires credentials"
            failure = LinkError("unauthenticated", f"'{self.name}' {problem}.")
        error = LinkError(
            failure.kind,
            failure.message,
            status=exchange.status or None,
            text=failure.text or exchange.text,
            challenge=challenge,
            retry_after=failure.retry_after,
        )
        exchange.listener.on_error(exchange, error)
