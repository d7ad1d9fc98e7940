"""The courier: sends requests with the right credentials to the right place, again where that is asked for and surely safe."""

import asyncio
from typing import Final

from toolyard.providers.upstream.http.address import Address, join
from toolyard.providers.upstream.http.exchange import Exchange
from toolyard.providers.upstream.http.head import Head, UnfitError
from toolyard.providers.upstream.http.pool import Pool
from toolyard.providers.upstream.http.troubles import unauthenticated
from toolyard.providers.upstream.link import Credentials, LinkError
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = ["Courier"]

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_AUTHORIZATION: Final = "authorization"
_BARE: Final = "Bearer"
"""What is taken for the challenge of a server that refuses us and does not say how it wants it."""
_GOODBYE: Final = "DELETE"
_PERMANENT: Final = 308
_REDIRECTS: Final = frozenset({307, 308})
_HOPS: Final = 3
_RENEWALS: Final = 3
_LONG_LIVED: Final = 8
_INITIALIZED: Final = b'"notifications/initialized"'


class Courier:
    """What carries requests to one upstream; its owner closes it."""

    def __init__(self, name: str, address: Address, *, settings: UpstreamSettings, credentials: Credentials) -> None:
        self.address = address
        self.head = Head(address, settings.headers)
        self.name = name
        self.limit = settings.message_bytes
        """Bytes that one message may have."""
        self._credentials = credentials
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(name, address, bound=settings.in_flight + _LONG_LIVED, seconds=settings.connect_seconds)
        self._unsent: list[Exchange] = []
        self._renewal: asyncio.Task[None] | None = None
        self._greeting: Exchange | None = None
        self._held: list[Exchange] = []

    @property
    def is_ready(self) -> bool:
        """Return whether a request can be sent without other credentials."""
        return self._credentials.ready() is not None

    def send(self, exchange: Exchange) -> None:
        """Send a request; its owner is told what becomes of it, later."""
        if exchange.is_over:
            return  # it was dropped while it waited
        shown = self._credentials.ready()
        if shown is None:
            self._renew(exchange, (0, ""))
            return
        head = self.head
        exchange.shown = shown
        exchange.session = head.session
        try:
            if exchange.method == "POST":
                data = head.post(exchange.message, exchange.headers, shown=shown, target=exchange.target)
            else:
                data = head.bare(exchange.method, exchange.headers, shown=shown, target=exchange.target)
        except UnfitError as error:
            self._loop.call_soon(exchange.fail, LinkError("refused", f"Nothing was sent to '{self.name}'. {error}"))
            return
        self._pool.send(exchange, data, urgent=exchange.request_id is None)

    def send_in_turn(self, exchange: Exchange) -> None:
        """Send a message, after the notice that the handshake is done, if that is still on its way: servers refuse what overtakes it."""
        if self._greeting is not None:
            self._held.append(exchange)
            return
        if exchange.request_id is None and _INITIALIZED in exchange.message:
            self._greeting = exchange
        self.send(exchange)

    def let_next(self, exchange: Exchange) -> None:
        """Send what waited for a message that is done, if anything did."""
        if exchange is self._greeting:
            self._greeting = None
            held, self._held = self._held, []
            for waiting in held:
                self.send(waiting)

    def drop(self, exchange: Exchange) -> None:
        """Stop an exchange; its owner is told nothing any more."""
        exchange.end()
        self._pool.drop(exchange)
        if exchange in self._unsent:
            self._unsent.remove(exchange)

    def judge(self, exchange: Exchange) -> None:
        """Send a request again if the upstream wants other credentials or another address of its own, otherwise tell its owner."""
        status = exchange.status
        challenge = exchange.header(b"www-authenticate")
        if exchange.method == _GOODBYE:
            exchange.owner.ended(exchange)  # nobody waits for other credentials then
        elif status == _UNAUTHORIZED or (status == _FORBIDDEN and (challenge or exchange.shown)):
            if any(name.lower() == _AUTHORIZATION for name in exchange.headers):
                self._give_up(exchange, None)  # whoever calls showed his own, and ours are not for him
            else:
                self._renew(exchange, (status, challenge or (_BARE if status == _UNAUTHORIZED else "")))
        elif status not in _REDIRECTS or not self._follow(exchange):
            exchange.owner.ended(exchange)

    async def close(self) -> None:
        """Let go of everything."""
        if self._renewal is not None:
            self._renewal.cancel()
        await self._pool.close()

    def _follow(self, exchange: Exchange) -> bool:
        """Send a request to where it was pointed, if that is the same server."""
        place = join(self.name, self.address, exchange.header(b"location"))
        exchange.hops += 1
        if place is None or exchange.hops > _HOPS:
            return False
        exchange.target = place.target
        if exchange.status == _PERMANENT or place.target == f"{self.head.target}/":
            self.head.target = place.target  # so that the others are spared the way round
        self._send_again(exchange)
        return True

    def _send_again(self, exchange: Exchange) -> None:
        exchange.renew()
        self.send(exchange)

    def _renew(self, exchange: Exchange, challenge: tuple[int, str]) -> None:
        """Get other credentials for a request, once for each reason, and meanwhile for all others that want them, too."""
        if challenge in exchange.challenges or len(exchange.challenges) == _RENEWALS:
            self._loop.call_soon(self._give_up, exchange, None)
            return
        exchange.challenges += (challenge,)
        ready = self._credentials.ready()
        if ready is not None and ready != exchange.shown:
            self._loop.call_soon(self._send_again, exchange)  # somebody was quicker
            return
        self._unsent.append(exchange)
        if self._renewal is None:
            self._renewal = self._loop.create_task(self._get_others(challenge[1]))

    async def _get_others(self, challenge: str) -> None:
        is_renewed = False
        failure: LinkError | None = None
        try:
            is_renewed = await self._credentials.renew(challenge)
        except LinkError as error:
            failure = error
        finally:
            self._renewal = None
            unsent, self._unsent = self._unsent, []
            for exchange in unsent:
                if is_renewed:
                    self._send_again(exchange)
                else:
                    self._give_up(exchange, failure)

    def _give_up(self, exchange: Exchange, failure: LinkError | None) -> None:
        """Tell the owner that the upstream does not let us in, in the words of whoever tried to get credentials, if there are any."""
        if exchange.is_over:
            return
        error = unauthenticated(exchange, shown=bool(exchange.shown) or self.head.shows(_AUTHORIZATION, exchange.headers))
        if failure is not None:
            error = LinkError(
                failure.trouble,
                failure.message,
                status=error.status,
                text=failure.text or error.text,
                challenge=error.challenge,
                retry_after=failure.retry_after,
            )
        elif exchange.status == _FORBIDDEN and not error.challenge:
            exchange.owner.ended(exchange)
            return
        exchange.owner.failed(exchange, error)
