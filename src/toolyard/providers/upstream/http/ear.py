"""The ear: the stream on which an upstream of the older era says what belongs to no request; it is opened again whenever it ends."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from toolyard.providers.upstream.http.courier import Courier
from toolyard.providers.upstream.http.exchange import Exchange
from toolyard.providers.upstream.http.troubles import messages_in, seconds_of
from toolyard.providers.upstream.link import LinkError
from toolyard.wire.events import Event

__all__ = ["Ear", "delay_before"]

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


class Ear:
    """Listens until it is stopped, or the upstream says that it has nothing to say."""

    def __init__(
        self,
        courier: Courier,
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
        if error.trouble in {"unavailable", "lost"}:
            self._come_back(0.0)
        else:
            exchange.end()
            _log.info("upstream_stream_ended upstream=%s trouble=%s", self._courier.name, error.trouble)

    def _come_back(self, wait: float) -> None:
        exchange = self._exchange
        delay = max(delay_before(exchange.tries, exchange.retry), min(wait, 10 * _LONGEST_SECONDS))
        exchange.tries += 1
        exchange.timer = self._loop.call_later(delay, self.start)
