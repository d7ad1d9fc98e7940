"""A connection to an upstream: HTTP/1.1 from requests to responses, one at a time.

The parser only notes what it finds; it is handed on afterwards, so that whoever takes it may do anything, also end the connection.
"""

import asyncio
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Protocol
from urllib.parse import quote, urljoin, urlsplit

import httptools
import msgspec

from toolyard._version import VERSION
from toolyard.providers.upstream.link import LinkError

__all__ = ["TEXT", "Address", "Connection", "Head", "Home", "Pool", "Taker", "UnfitError", "join", "read_address", "tls_context"]


_PORTS: Final = {"http": 80, "https": 443}
_KEPT: Final = "!#$%&'()*+,/:;=?@[]~"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address, taken apart."""

    scheme: str
    host: str
    port: int
    target: str
    """The path and the query, as a request names them."""

    @property
    def is_secure(self) -> bool:
        """Return whether TLS is spoken there."""
        return self.scheme == "https"

    @property
    def place(self) -> str:
        """Return the host and, where it is not the usual one, the port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def has_origin_of(self, other: "Address") -> bool:
        """Return whether both are the same server."""
        return (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)


def read_address(name: str, url: str) -> Address:
    """Return the address of the upstream of that name.

    Raises:
        LinkError: It is none that can be called.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError:
        raise _unreadable(name) from None
    if parts.scheme not in _PORTS or not host or any(letter.isspace() for letter in host):
        raise _unreadable(name)
    if "@" in parts.netloc:
        raise LinkError("unavailable", f"The address of '{name}' holds a user name; credentials go into its 'headers'.")
    target = quote(parts.path or "/", safe=_KEPT) + (f"?{quote(parts.query, safe=_KEPT)}" if parts.query else "")
    return Address(scheme=parts.scheme, host=host, port=_PORTS[parts.scheme] if port is None else port, target=target)


def join(name: str, address: Address, reference: str) -> Address | None:
    """Return the address that a reference on another one means, or nothing if it is none or leads to another server."""
    try:
        found = read_address(name, urljoin(f"{address.scheme}://{address.place}{address.target}", reference))
    except (LinkError, ValueError):
        return None
    return found if found.has_origin_of(address) else None


def _unreadable(name: str) -> LinkError:
    return LinkError("unavailable", f"The address of '{name}' is no address of HTTP.")


TEXT: Final = 500
"""Letters of what an upstream said that are told on."""
_HEAD_BYTES: Final = 64 * 1024
_KEPT_SECONDS: Final = 30.0
_PROBE_SECONDS: Final = 60
_MARGIN_SECONDS: Final = 1.0
_KEEP_ALIVE: Final = re.compile(rb"timeout=(\d{1,6})")
_OK: Final = 200


class Taker(Protocol):
    """Who takes a response as it comes; after `finish` or `fail` nothing comes any more."""

    connection: "Connection | None"

    def begin(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Take the head."""
        ...

    def take(self, piece: bytes) -> None:
        """Take a piece of the body."""
        ...

    def finish(self) -> None:
        """Take note that the response is whole."""
        ...

    def fail(self, error: LinkError) -> None:
        """Take note that it will never be."""
        ...


class Home(Protocol):
    """Where connections are kept."""

    name: str

    def keep(self, connection: "Connection") -> None:
        """Take note of a connection that was made."""
        ...

    def release(self, connection: "Connection") -> None:
        """Take a connection back that can be used again."""
        ...

    def forget(self, connection: "Connection") -> None:
        """Take note that a connection is gone."""
        ...


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, home: Home) -> None:
        self.since = 0.0
        """When it was last of use."""
        self._home = home
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._poll = select.poll()
        self._taker: Taker | None = None
        self._kept = _KEPT_SECONDS
        self._is_over = False
        self._forget_response()

    def _forget_response(self) -> None:
        self._status = 0
        self._size = 0
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._has_begun = False
        self._is_whole = False
        self._is_broken = False
        self._keeps = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready."""
        self._transport = transport
        plug: Any = transport.get_extra_info("socket")
        self._poll.register(plug.fileno(), select.POLLIN)
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # so that a server that vanished is noticed
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
        self._home.keep(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits for a response; one without a stated length is whole when the connection ends."""
        self._is_over = True
        self._parser = None
        self._home.forget(self)
        taker = self._let_go()
        if taker is None:
            return
        is_open_ended = b"content-length" not in self._headers and b"transfer-encoding" not in self._headers
        if exc is None and self._status and is_open_ended:
            taker.finish()
            return
        when = "in the middle of its answer" if self._status else "before it answered"
        taker.fail(LinkError("lost", f"'{self._home.name}' closed the connection {when}.", sent=True))

    @property
    def is_alive(self) -> bool:
        """Return whether it has not ended, as far as is known."""
        return not self._is_over and not self._transport.is_closing()

    def is_fit(self, now: float) -> bool:
        """Return whether it can be used once more.

        What was sent is never sent again, so a connection about which there is a doubt is not used: one that waits to be read
        has mostly come to its end, which the loop will tell us only after we have sent.
        """
        return self.is_alive and now - self.since <= self._kept and not self._poll.poll(0)

    def send(self, taker: Taker, data: bytes) -> None:
        """Send a request, whose response goes to the taker."""
        self._taker = taker
        taker.connection = self
        self._transport.write(data)

    def _let_go(self) -> Taker | None:
        taker, self._taker = self._taker, None
        if taker is not None:
            taker.connection = None
        return taker

    def abort(self) -> None:
        """End at once; nobody is told."""
        self._let_go()
        self._is_over = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._taker is None:
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_broken = True
        if not self._status:
            self._size += len(data)
        self._hand_on(self._taker, data)

    def _hand_on(self, taker: Taker, data: bytes) -> None:
        if self._status and not self._has_begun:
            self._has_begun = True
            taker.begin(self._status, self._headers)
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                if self._taker is taker:
                    taker.take(piece)
        if self._taker is not taker:
            return  # it wants no more
        if self._is_whole:
            self._end(taker)
        elif self._is_broken:
            self._refuse(taker, "with something that is no HTTP", "" if self._has_begun else data[:TEXT].decode("utf-8", "replace"))
        elif self._size > _HEAD_BYTES:
            self._refuse(taker, "with too long a head", "")

    def _end(self, taker: Taker) -> None:
        alive = self._headers.get(b"keep-alive")
        if alive is not None and (found := _KEEP_ALIVE.search(alive)):
            self._kept = min(_KEPT_SECONDS, int(found[1]) - _MARGIN_SECONDS)  # before it gives up on us
        self._let_go()
        if self._keeps and not self._is_broken:
            self._forget_response()
            self._home.release(self)
        else:
            self.abort()
        taker.finish()

    def _refuse(self, taker: Taker, what: str, text: str) -> None:
        self.abort()
        taker.fail(LinkError("refused", f"'{self._home.name}' answered {what}.", sent=True, text=text))

    def on_message_begin(self) -> None:
        """Begin a response; there is one to each request."""
        self._is_broken = self._is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes after the body is dropped."""
        if self._status:
            self._size += len(name) + len(value)
            return
        name = name.lower()
        before = self._headers.get(name)
        self._headers[name] = value if before is None else b"%b, %b" % (before, value)

    def on_headers_complete(self) -> None:
        """Take the status; those that only say that another will follow are skipped."""
        status = self._parser.get_status_code()
        if status < _OK:
            self._headers = {}
        elif not self._is_whole:
            self._status = status
            self._size = 0

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; that of a response which nobody asked for is dropped."""
        if not self._is_whole:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Take note that the response is whole."""
        if self._status:
            self._is_whole = True
            self._keeps = self._parser.should_keep_alive()


_BOTH: Final = "application/json, text/event-stream"
_STREAM: Final = "text/event-stream"
_RESERVED: Final = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "mcp-session-id",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

_PLAIN: Final = 256


class UnfitError(ValueError):
    """A header holds what no header can."""


class Head:
    """What every request to one upstream begins with."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self.target = address.target
        self.session: str | None = None
        own = {name.lower(): (name, value) for name, value in headers.items()}
        host = own.pop("host", ("", address.place))[1]
        self._usual = {"Host": host, "User-Agent": f"toolyard/{VERSION}"}
        self._own = {name: pair for name, pair in own.items() if name not in _RESERVED}
        if "user-agent" in self._own:
            del self._usual["User-Agent"]
        self._shown: Mapping[str, str] = {}
        self._taken: frozenset[str] = frozenset()
        self._plain: set[tuple[str, ...]] = set()
        """Names of headers that go with the block as it is."""
        self._made: tuple[str, str | None] | None = None
        self._block = b""

    def shows(self, header: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request with headers of its own has this one, from there or from the settings."""
        return header in self._own or any(name.lower() == header for name in headers)

    def post(self, message: bytes, headers: Mapping[str, str], *, shown: Mapping[str, str], target: str | None = None) -> bytes:
        """Return a request that posts a message, with headers of its own and the credentials that are shown.

        Raises:
            UnfitError: A header cannot be sent.
        """
        if shown != self._shown or self._made != (self.target, self.session):
            self._renew(shown)
        names = tuple(headers)
        if target is None and names in self._plain:
            block = self._block
        else:
            block, headers = self._merge(names, headers, shown=shown, target=target)
        return b"".join((block, _lines(headers), b"Content-Length: %d\r\n\r\n" % len(message), message))

    def _merge(
        self, names: tuple[str, ...], headers: Mapping[str, str], *, shown: Mapping[str, str], target: str | None
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return the first lines for headers that were not seen before, and those of them that may be sent."""
        lowered = frozenset(name.lower() for name in names)
        kept = {name: value for name, value in headers.items() if name.lower() not in _RESERVED}
        if target is None and len(kept) == len(names) and self._taken.isdisjoint(lowered):
            if len(self._plain) < _PLAIN:
                self._plain.add(names)
            return self._block, headers
        return self._begin("POST", target, shown=shown, without=lowered), kept

    def bare(self, method: str, headers: Mapping[str, str], *, shown: Mapping[str, str], target: str | None = None) -> bytes:
        """Return a request without a body, to read a stream or to say goodbye; its headers are our own.

        Raises:
            UnfitError: A header cannot be sent.
        """
        names = frozenset(name.lower() for name in headers)
        return b"".join((self._begin(method, target, shown=shown, without=names), _lines(headers), b"\r\n"))

    def _renew(self, shown: Mapping[str, str]) -> None:
        self._block = self._begin("POST", None, shown=shown, without=frozenset())
        self._made = (self.target, self.session)
        self._shown = dict(shown)
        self._taken = frozenset(self._own) | {name.lower() for name in shown}
        self._plain = set()

    def _begin(self, method: str, target: str | None, *, shown: Mapping[str, str], without: frozenset[str]) -> bytes:
        """Return the first lines: a header of the message stands for one of the credentials, and that for one of the settings."""
        credentials = {name.lower(): (name, value) for name, value in shown.items() if name.lower() not in _RESERVED}
        own = [pair for name, pair in {**self._own, **credentials}.items() if name not in without]
        session = {} if self.session is None else {"Mcp-Session-Id": self.session}
        kind = {"Accept": _BOTH, "Content-Type": "application/json"} if method == "POST" else {"Accept": _STREAM}
        lines = _lines({**self._usual, **kind, "Accept-Encoding": "identity", **dict(own), **session})
        return f"{method} {target or self.target} HTTP/1.1\r\n".encode() + lines


def _lines(headers: Mapping[str, str]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise UnfitError("A header holds a line break.")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UnfitError("A header holds what is no text.") from None


@cache
def tls_context() -> ssl.SSLContext:
    """Return what TLS is spoken with: the system's authorities, or those that SSL_CERT_FILE or SSL_CERT_DIR name."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


_SPARE: Final = 32
_SWEEP_SECONDS: Final = 30.0


class Pool:
    """The connections to one upstream; requests that find none free wait for one."""

    def __init__(self, name: str, address: Address, *, bound: int, seconds: float) -> None:
        self.name = name
        self._address = address
        self._bound = bound
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._waiting: deque[tuple[Taker, bytes]] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    def send(self, taker: Taker, data: bytes, *, urgent: bool = False) -> None:
        """Send a request on a connection that is free, or on the next one; what is urgent may go beyond the bound."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fit(now):
                connection.send(taker, data)
                return
            connection.abort()
        if not urgent:
            self._waiting.append((taker, data))
            self._provide()
            return
        self._waiting.appendleft((taker, data))
        if len(self._all) + len(self._connecting) < self._bound + _SPARE:
            self._begin_connecting()

    def drop(self, taker: Taker) -> None:
        """Forget a request, and end the connection that it is on."""
        if taker.connection is not None:
            taker.connection.abort()
        else:
            self._waiting = deque(item for item in self._waiting if item[0] is not taker)

    def keep(self, connection: Connection) -> None:
        """Take note of a connection that was made."""
        self._all.add(connection)

    def release(self, connection: Connection) -> None:
        """Take a connection back that can be used again."""
        now = self._loop.time()
        connection.since = now
        if not self._waiting:
            self._store(connection)
        elif connection.is_fit(now):
            connection.send(*self._waiting.popleft())
        else:
            connection.abort()  # once it is gone, another is made for who waits

    def _store(self, connection: Connection) -> None:
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_SECONDS, self._sweep_idle)

    def forget(self, connection: Connection) -> None:
        """Take note that a connection is gone."""
        self._all.discard(connection)
        if not self._all:
            self._emptied.set()
        if connection in self._idle:
            self._idle.remove(connection)
        self._provide()

    async def close(self) -> None:
        """End all connections, and wait until they are gone."""
        self._waiting.clear()
        if self._sweep is not None:
            self._sweep.cancel()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        self._emptied.clear()
        for connection in self._all:
            connection.abort()
        if self._all:
            await self._emptied.wait()

    def _provide(self) -> None:
        """Begin as many connections as requests wait for one, within the bound."""
        while len(self._connecting) < min(len(self._waiting), self._bound - len(self._all)):
            self._begin_connecting()

    def _begin_connecting(self) -> None:
        task = self._loop.create_task(self._connect())
        self._connecting.add(task)
        task.add_done_callback(self._end_connecting)

    def _end_connecting(self, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        self._provide()

    async def _connect(self) -> None:
        try:
            connection = await self._reach()
        except LinkError as error:
            if self._waiting:
                self._waiting.popleft()[0].fail(error)
            return
        connection.since = self._loop.time()
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self._store(connection)

    async def _reach(self) -> Connection:
        address = self._address
        secure: Any = {"ssl": tls_context(), "server_hostname": address.host} if address.is_secure else {}
        try:
            async with asyncio.timeout(self._seconds):
                _, connection = await self._loop.create_connection(lambda: Connection(self), address.host, address.port, **secure)
        except TimeoutError:
            raise LinkError("unavailable", f"'{self.name}' took no connection within {self._seconds:g} seconds.") from None
        except (OSError, UnicodeError) as error:
            raise LinkError("unavailable", f"'{self.name}' cannot be reached: {_why(error)}.", text=str(error)[:500]) from None
        if not connection.is_alive:
            raise LinkError("unavailable", f"'{self.name}' closed a new connection at once.")
        return connection

    def _sweep_idle(self) -> None:
        """End what was of no use for long."""
        self._sweep = None
        now = self._loop.time()
        kept = [connection for connection in self._idle if connection.is_fit(now)]
        for connection in set(self._idle).difference(kept):
            connection.abort()
        self._idle = kept
        if kept:
            self._sweep = self._loop.call_later(_SWEEP_SECONDS, self._sweep_idle)


def _why(error: Exception) -> str:
    """Return in words why there is no connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "TLS cannot be spoken with it"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its host is not known"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    return "the connection failed"
