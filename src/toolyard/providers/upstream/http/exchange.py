"""Exchanges: one request to an upstream and what comes back for it, as events or whole."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, cast

import msgspec

from toolyard.providers.upstream.http.client import TEXT, Address, Connection, Head, Pool, UnfitError, join
from toolyard.providers.upstream.link import Credentials, LinkError
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.messages import Fault, Id, decode_batch
from toolyard.wire.sse import Event, Events

__all__ = ["OTHERS", "Exchange", "Owner", "Sender", "fault_in", "frame_of", "messages_in", "seconds_of", "trouble_of", "unauthenticated"]


OTHERS: Final = 256
"""How many messages that want no answer may be on their way to one upstream."""
_OK: Final = 200
_ERROR_BYTES: Final = 64 * 1024
_NOTHING: Final[Mapping[bytes, bytes]] = {}


class Owner(Protocol):
    """Who began an exchange and is told of it."""

    def begun(self, exchange: "Exchange") -> None:
        """Take note that its head is there."""
        ...

    def heard(self, exchange: "Exchange", event: Event) -> None:
        """Take an event."""
        ...

    def ended(self, exchange: "Exchange") -> None:
        """Take note that the response is whole, whatever its status."""
        ...

    def failed(self, exchange: "Exchange", error: LinkError) -> None:
        """Take note that there is none, or only a part."""
        ...


class _Judge(Protocol):
    """Who looks at a response that is not simply good, before its owner does."""

    name: str
    limit: int

    def judge(self, exchange: "Exchange") -> None:
        """Send the request once more, or tell its owner."""
        ...


class Exchange:
    """One request, which may be sent more than once if the upstream wants it elsewhere or with other credentials."""

    # What most exchanges never touch is said here once, because there is an exchange for every message.
    connection: Connection | None = None
    session: str | None = None
    """The session it was last sent in."""
    shown: Mapping[str, str] | None = None
    """The credentials it was last sent with."""
    target: str | None = None
    """Where it is sent, if not where all are."""
    hops = 0
    challenges: tuple[tuple[int, str], ...] = ()
    answered = False
    """Whether the message it was for has come, though the stream goes on."""
    last_event = ""
    retry = 0
    tries = 0
    timer: asyncio.TimerHandle | None = None
    is_over = False
    status = 0
    replied: Mapping[bytes, bytes] = _NOTHING
    events: Events | None = None
    _body: bytes | bytearray = b""
    _size = 0

    def __init__(
        self,
        owner: Owner,
        judge: _Judge,
        *,
        headers: Mapping[str, str],
        message: bytes = b"",
        request_id: Id | None = None,
        method: Literal["POST", "GET", "DELETE"] = "POST",
    ) -> None:
        self.owner = owner
        self.method = method
        self.message = message
        self.request_id = request_id
        self.headers = headers
        self._judge = judge

    def renew(self) -> None:
        """Forget the response, before the request is sent again."""
        self.connection = None
        self.status = 0
        self.replied = _NOTHING
        self.events = None
        self._body = b""
        self._size = 0

    @property
    def name(self) -> str:
        """Return the name of the upstream."""
        return self._judge.name

    @property
    def body(self) -> bytes:
        """Return the body as far as it is there."""
        return bytes(self._body)

    @property
    def text(self) -> str:
        """Return the beginning of the body, for people."""
        return self.body[: 4 * TEXT].decode("utf-8", "replace")[:TEXT].strip()

    def header(self, name: bytes) -> str:
        """Return a header of the response, or an empty text."""
        return self.replied.get(name, b"").decode("latin-1")

    def end(self) -> None:
        """Be done: its timer is stopped."""
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()

    def begin(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Take the head."""
        self.status = status
        self.replied = headers
        if status == _OK and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self.events = Events(max_bytes=self._judge.limit)
        self.owner.begun(self)

    def take(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self.events is None:
            self._gather(piece)
            return
        try:
            for event in self.events.feed(piece):
                self.owner.heard(self, event)
                if self.is_over:
                    return
        except ValueError:
            self._overflow()

    def _gather(self, piece: bytes) -> None:
        if not self._size:
            self._body = piece
        else:
            self._body = self._body if isinstance(self._body, bytearray) else bytearray(self._body)
            self._body += piece
        self._size += len(piece)
        if self._size > (self._judge.limit if self.status == _OK else _ERROR_BYTES):
            self._overflow()

    def finish(self) -> None:
        """Take note that the response is whole."""
        if self.status == _OK:
            self.owner.ended(self)
        else:
            self._judge.judge(self)

    def fail(self, error: LinkError) -> None:
        """Take note that it will never be."""
        self.owner.failed(self, error)

    def _overflow(self) -> None:
        """Stop reading; an error is told by its beginning."""
        if self.connection is not None:
            self.connection.abort()
        if self.status == _OK:
            sentence = f"'{self.name}' answered with more than {self._judge.limit} bytes."
            self.owner.failed(self, LinkError("refused", sentence, sent=True, status=_OK))
        else:
            self._judge.judge(self)


_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_SERVER: Final = 500
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_CLIENT: Final = 400
_DAY: Final = 86400.0


class _Frame(msgspec.Struct, gc=False):
    """As much of a message as tells which answer it is."""

    id: Any = None
    method: Any = None


_decode_frame: Final = msgspec.json.Decoder(_Frame).decode
_decode: Final = msgspec.json.Decoder().decode


def frame_of(data: bytes) -> tuple[bool, Any]:
    """Return whether this is a message at all, and the id that it answers, if it is an answer."""
    try:
        frame = _decode_frame(data)
    except (msgspec.DecodeError, RecursionError):
        return False, None
    return True, frame.id if frame.method is None else None


def messages_in(data: bytes) -> list[bytes]:
    """Return the messages of a body or an event: one, or those of a batch."""
    if data[:1] == b"{":
        return [data]
    try:
        return decode_batch(data) or [data]
    except Fault:
        return []


def fault_in(body: bytes, request_id: Id) -> bytes | None:
    """Return the error of JSON-RPC that a body is, as the answer to a request, whether or not it says to which."""
    try:
        found: Any = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    error = cast("dict[str, Any]", found).get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict) or not isinstance(cast("dict[str, Any]", error).get("code"), int):
        return None
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def unauthenticated(exchange: Exchange, *, shown: bool) -> LinkError:
    """Return that the upstream does not let us in with what we show, or without anything."""
    sentence = f"'{exchange.name}' refuses the credentials it was shown." if shown else f"'{exchange.name}' wants credentials."
    challenge = exchange.header(b"www-authenticate")
    return LinkError("unauthenticated", sentence, status=exchange.status or None, text=exchange.text, challenge=challenge)


def trouble_of(exchange: Exchange) -> LinkError:
    """Return what is wrong, by the status and the headers of a response that is no answer and asks for no credentials."""
    status, name = exchange.status, exchange.name
    if status == _NOT_FOUND and exchange.session is not None:
        return LinkError("session_lost", f"'{name}' has forgotten the session.", status=status, text=exchange.text)
    if status in {_TOO_MANY, _UNAVAILABLE}:
        return _asked_to_wait(exchange)
    if status in _MOVED:
        place = exchange.header(b"location")
        sentence = f"'{name}' has moved to '{place[:200]}', which is not followed; change its address." if place else ""
        return LinkError("refused", sentence or f"'{name}' says that it moved, but not where to.", status=status, text=exchange.text)
    sentence = f"'{name}' answered with status {status}." if status >= _CLIENT else f"'{name}' gave no answer, but status {status}."
    return LinkError("refused", sentence, status=status, text=exchange.text, sent=status >= _SERVER or status < _CLIENT)


def _asked_to_wait(exchange: Exchange) -> LinkError:
    status, name = exchange.status, exchange.name
    wait = seconds_of(exchange.header(b"retry-after"))
    if status == _TOO_MANY:
        return LinkError("rate_limited", f"'{name}' is called too often.", status=status, text=exchange.text, retry_after=wait)
    # Some proxies say so of servers that they lost while those were at work; who names a time refuses on purpose.
    sentence = f"'{name}' is not available now."
    return LinkError("unavailable", sentence, sent=wait is None, status=status, text=exchange.text, retry_after=wait)


def seconds_of(value: str) -> float | None:
    """Return how long the header 'Retry-After' asks to wait: it names seconds or a date; a day is the most that is believed."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - only where somebody asks to be left alone

    try:
        seconds = float(value) if value.isdecimal() else parsedate_to_datetime(value).timestamp() - time.time()
        return min(max(seconds, 0.0), _DAY)
    except (ValueError, OverflowError):
        return None


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


class Sender:
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
                failure.kind,
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
