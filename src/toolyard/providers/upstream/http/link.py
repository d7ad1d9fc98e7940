"""Streamable HTTP: a request for each message, whose response holds the answer or a stream that ends with it; for both eras."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from toolyard.providers.upstream.http.client import read_address
from toolyard.providers.upstream.http.exchange import OTHERS, Exchange, Sender, fault_in, frame_of, messages_in, seconds_of, trouble_of
from toolyard.providers.upstream.link import NO_CREDENTIALS, Credentials, LinkError, Listener, without_mcp_headers
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.messages import Id
from toolyard.wire.sse import Event

__all__ = ["EventStream", "HttpLink", "delay_before"]


_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 60.0
_DOUBLINGS: Final = 6
_OK: Final = 200
_UNKNOWN: Final = 404
_AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_log = logging.getLogger(__name__)


def delay_before(tries: int, retry: int) -> float:
    """Return the seconds to wait before a stream is asked for again, after so many tries in vain: what the upstream says, or longer."""
    if tries == 0:
        return min(retry / 1000, _LONGEST_SECONDS) if retry else _FIRST_SECONDS
    longest = min(_FIRST_SECONDS * 2 ** min(tries, _DOUBLINGS), _LONGEST_SECONDS)
    return max(random.uniform(longest / 2, longest), min(retry / 1000, _LONGEST_SECONDS))  # noqa: S311 - spreads load, hides nothing


class EventStream:
    """Listens until it is stopped, or the upstream says that it has nothing to say."""

    def __init__(
        self,
        courier: Sender,
        *,
        headers: Callable[[], Mapping[str, str]],
        receive: Callable[[bytes], None],
        forgotten: Callable[[], None],
    ) -> None:
        self._courier = courier
        self._headers = headers
        self._receive = receive
        self._forgotten = forgotten
        self._was_open = False
        self._loop = asyncio.get_running_loop()
        self._exchange = Exchange(self, courier, method="GET", headers={})

    def start(self) -> None:
        """Ask for the stream."""
        exchange = self._exchange
        last = {"Last-Event-ID": exchange.last_event} if exchange.last_event else {}
        exchange.headers = {**self._headers(), **last}
        exchange.challenges = ()
        exchange.hops = 0
        exchange.renew()
        self._courier.send(exchange)

    def stop(self) -> None:
        """Listen no longer."""
        self._courier.drop(self._exchange)

    def begun(self, exchange: Exchange) -> None:
        """Remember that there is such a stream."""
        self._was_open = self._was_open or exchange.events is not None

    def heard(self, exchange: Exchange, event: Event) -> None:
        """Hand on what the upstream says."""
        exchange.tries = 0
        exchange.last_event = event.id or exchange.last_event
        exchange.retry = exchange.retry if event.retry is None else event.retry
        if event.data and event.kind == "message":
            for message in messages_in(event.data):
                self._receive(message)

    def ended(self, exchange: Exchange) -> None:
        """Come back later, unless there is no such stream; one that there was is gone only with our session."""
        if exchange.events is not None or exchange.status in _AGAIN:
            wait = seconds_of(exchange.header(b"retry-after")) if exchange.status != _OK else None
            self._come_back(wait or 0.0)
        else:
            exchange.end()
            _log.debug("upstream_has_no_stream upstream=%s status=%d", self._courier.name, exchange.status)
            if exchange.status == _UNKNOWN and self._was_open:
                self._forgotten()

    def failed(self, exchange: Exchange, error: LinkError) -> None:
        """Come back later, unless we are not let in."""
        if error.kind in {"unavailable", "lost"}:
            self._come_back(0.0)
        else:
            exchange.end()
            _log.info("upstream_stream_ended upstream=%s trouble=%s", self._courier.name, error.kind)

    def _come_back(self, wait: float) -> None:
        exchange = self._exchange
        delay = max(delay_before(exchange.tries, exchange.retry), min(wait, 10 * _LONGEST_SECONDS))
        exchange.tries += 1
        exchange.timer = self._loop.call_later(delay, self.start)


_VERSION: Final = "MCP-Protocol-Version"
_GOODBYE_SECONDS: Final = 1.0
_LINGER_SECONDS: Final = 1.0
_TRIES: Final = 5
_CLIENT: Final = 400


class HttpLink:
    """A link over streamable HTTP."""

    def __init__(self, name: str, settings: UpstreamSettings, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._name = name
        self._settings = settings
        self._credentials = credentials
        self._listener: Listener
        self._courier: Sender
        self._loop: asyncio.AbstractEventLoop
        self._version: str | None = None
        self._waiting: dict[Id, Exchange] = {}
        self._others: set[Exchange] = set()
        self._ear: EventStream | None = None
        self._is_open = False
        self._was_opened = False
        self._parted = asyncio.Event()

    async def open(self, listener: Listener) -> None:
        """Get ready to send; the first message connects.

        Raises:
            LinkError: The address is none.
        """
        address = read_address(self._name, self._settings.url or "")
        self._loop = asyncio.get_running_loop()
        self._courier = Sender(self._name, address, settings=self._settings, credentials=self._credentials)
        self._listener = listener
        self._is_open = self._was_opened = True

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Send a message, soon; with an id it is a request, whose answer or loss the listener is told."""
        if not self._is_open:
            self._send_nothing(request_id)
            return
        if request_id is None and len(self._others) >= OTHERS:
            _log.debug("upstream_takes_no_more upstream=%s", self._name)
            return  # such as answers to pings without end
        exchange = Exchange(self, self._courier, headers=headers, message=message, request_id=request_id)
        version = headers.get(_VERSION)
        if version is not None:
            self._version = version
        if request_id is None:
            self._others.add(exchange)
            exchange.timer = self._loop.call_later(self._settings.connect_seconds, self._expire, exchange)
        else:
            self._waiting[request_id] = exchange
        self._courier.send_in_turn(exchange)

    def drop(self, request_id: Id) -> None:
        """Stop waiting for the answer to a request, and close its connection."""
        exchange = self._waiting.pop(request_id, None)
        if exchange is not None:
            self._courier.drop(exchange)

    def listen(self) -> None:
        """Open the stream for what belongs to no request; an upstream that has none is left alone."""
        self._ear = EventStream(self._courier, headers=self._versioned, receive=self._overhear, forgotten=self._end)
        self._ear.start()

    async def close(self) -> None:
        """Say goodbye to the session and let go of everything."""
        if not self._was_opened:
            return
        was_open, self._is_open = self._is_open, False
        if self._ear is not None:
            self._ear.stop()
        for exchange in (*self._waiting.values(), *self._others):
            self._courier.drop(exchange)
        self._waiting.clear()
        self._others.clear()
        try:
            if was_open and self._courier.head.session is not None and self._courier.is_ready:
                await self._say_goodbye()
        finally:
            await self._courier.close()

    def begun(self, exchange: Exchange) -> None:
        """Remember the session that the first response names."""
        session = exchange.replied.get(b"mcp-session-id")
        if session is not None and exchange.session is None and exchange.status == _OK:
            self._courier.head.session = session.decode("latin-1")

    def heard(self, exchange: Exchange, event: Event) -> None:
        """Take an event on the response to a message."""
        exchange.tries = 0
        exchange.last_event = event.id or exchange.last_event
        exchange.retry = exchange.retry if event.retry is None else event.retry
        if event.data and event.kind == "message" and not exchange.answered:
            self._deliver(exchange, event.data)
            if exchange.answered and exchange.connection is not None:
                exchange.timer = self._loop.call_later(_LINGER_SECONDS, self._courier.drop, exchange)  # its end should follow

    def ended(self, exchange: Exchange) -> None:
        """Take a whole response: the answer, the end of a stream, or a refusal."""
        if exchange.request_id is None:
            self._end_other(exchange, None if exchange.status < _CLIENT or exchange.method == "DELETE" else trouble_of(exchange))
        elif exchange.events is not None:
            self._end_stream(exchange)
        elif exchange.status == _OK and exchange.method == "POST":
            self._deliver(exchange, exchange.body)
            if not exchange.answered:
                sentence = f"'{self._name}' answered with something that is no answer to the request."
                self._lose(exchange, LinkError("refused", sentence, sent=True, status=_OK, text=exchange.text))
        else:
            self._refuse(exchange)

    def failed(self, exchange: Exchange, error: LinkError) -> None:
        """Take note that there is no response, or not all of it."""
        if exchange.request_id is None:
            self._end_other(exchange, error)
        elif exchange.answered:
            exchange.end()
        elif exchange.last_event and error.kind in {"lost", "unavailable"}:
            self._resume(exchange)
        else:
            self._lose(exchange, error)

    def _send_nothing(self, request_id: Id | None) -> None:
        if request_id is not None:
            self._loop.call_soon(self._listener.lose, request_id, LinkError("lost", f"The link to '{self._name}' is closed."))

    def _versioned(self) -> Mapping[str, str]:
        return {} if self._version is None else {_VERSION: self._version}

    def _overhear(self, message: bytes) -> None:
        self._listener.receive(message, None)

    def _end(self) -> None:
        """Tell that the upstream knows us no more, which it said on the stream that is nobody's."""
        self._listener.end(LinkError("lost", f"'{self._name}' forgot the session.", sent=True))

    def _deliver(self, exchange: Exchange, data: bytes) -> None:
        """Hand on messages that came on an exchange; one of them may be what it was for."""
        request_id = exchange.request_id
        for message in messages_in(data):
            is_message, answers = frame_of(message)
            if answers == request_id:
                exchange.answered = True
                self._settle(exchange)
            if is_message:
                self._listener.receive(message, request_id)

    def _settle(self, exchange: Exchange) -> None:
        """Wait no longer for an answer."""
        exchange.end()
        request_id = exchange.request_id
        if request_id is not None and self._waiting.get(request_id) is exchange:
            del self._waiting[request_id]

    def _lose(self, exchange: Exchange, error: LinkError) -> None:
        self._settle(exchange)
        if exchange.method != "POST":
            error.sent = True  # what was to be read is the answer to what had been sent
        if exchange.request_id is not None:
            self._listener.lose(exchange.request_id, error)

    def _refuse(self, exchange: Exchange) -> None:
        """Take a response that is no answer: an error of JSON-RPC in its body is one after all."""
        error = trouble_of(exchange)
        if error.kind == "session_lost" and self._courier.head.session == exchange.session:
            self._courier.head.session = None
        if exchange.method == "POST" and error.kind == "refused" and exchange.request_id is not None:
            fault = fault_in(exchange.body, exchange.request_id)
            if fault is not None:
                self._settle(exchange)
                self._listener.receive(fault, exchange.request_id)
                return
        self._lose(exchange, error)

    def _end_stream(self, exchange: Exchange) -> None:
        if exchange.answered:
            exchange.end()
        elif exchange.last_event:
            self._resume(exchange)
        else:
            self._lose(exchange, LinkError("lost", f"'{self._name}' ended its answer before it was there.", sent=True))

    def _resume(self, exchange: Exchange) -> None:
        """Ask, after a while, for what came after the last event."""
        if exchange.tries == _TRIES:
            sentence = f"'{self._name}' lost the stream of an answer, and it could not be found again."
            self._lose(exchange, LinkError("lost", sentence, sent=True))
            return
        exchange.method = "GET"
        exchange.headers = {**without_mcp_headers(exchange.headers), **self._versioned(), "Last-Event-ID": exchange.last_event}
        exchange.message = b""
        exchange.renew()
        exchange.timer = self._loop.call_later(delay_before(exchange.tries, exchange.retry), self._courier.send, exchange)
        exchange.tries += 1

    def _end_other(self, exchange: Exchange, error: LinkError | None) -> None:
        """Take note of what became of a message that wants no answer; nobody waits for it, so a failure is only logged."""
        exchange.end()
        self._others.discard(exchange)
        if exchange.method == "DELETE":
            self._parted.set()
        if error is not None:
            _log.info("upstream_took_no_note upstream=%s trouble=%s status=%s", self._name, error.kind, error.status)
        self._courier.let_next(exchange)

    def _expire(self, exchange: Exchange) -> None:
        self._courier.drop(exchange)
        self._end_other(exchange, LinkError("unavailable", f"'{self._name}' takes too long.", sent=True))

    async def _say_goodbye(self) -> None:
        exchange = Exchange(self, self._courier, method="DELETE", headers=self._versioned())
        self._others.add(exchange)
        self._courier.send(exchange)
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._parted.wait()
        except TimeoutError:
            self._courier.drop(exchange)
