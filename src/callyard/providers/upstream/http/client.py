"""An HTTP/1.1 client for one upstream: its address, connections, request heads and connection pool.

It knows bytes, headers and statuses, and nothing of MCP messages.
"""

import asyncio
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import quote, urljoin, urlsplit

import httptools
import msgspec

from callyard._version import VERSION
from callyard.providers.upstream.intake import Intake, Share
from callyard.providers.upstream.link import LinkError

__all__ = [
    "TEXT_CHARS",
    "Address",
    "Connection",
    "HeaderError",
    "Pool",
    "RequestHead",
    "Resolve",
    "parse_address",
    "resolve",
    "tls_context",
]

TEXT_CHARS: Final = 500
"""Characters of an upstream's own text that an error repeats."""
_PORTS: Final = {"http": 80, "https": 443}
_UNESCAPED: Final = "!#$%&'()*+,/:;=?@[]~"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL."""

    scheme: str
    host: str
    port: int
    target: str
    """The path and the query, as in a request line."""

    @property
    def authority(self) -> str:
        """Return the host, with the port unless it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_address(name: str, url: str) -> Address:
    """Return the URL of the upstream of that name, parsed.

    Raises:
        LinkError: It is not a usable HTTP URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError:
        raise _invalid_url(name) from None
    if parts.scheme not in _PORTS or not host or any(letter.isspace() for letter in host):
        raise _invalid_url(name)
    if "@" in parts.netloc:
        raise LinkError("unavailable", f"The URL of '{name}' contains a user name. Put credentials into its 'headers'.")
    target = quote(f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}", safe=_UNESCAPED)
    return Address(scheme=parts.scheme, host=host, port=_PORTS[parts.scheme] if port is None else port, target=target)


def resolve(name: str, base: Address, reference: str) -> Address | None:
    """Return the address of a reference relative to a base, or None if it is invalid or of another origin."""
    try:
        address = parse_address(name, urljoin(f"{base.scheme}://{base.authority}{base.target}", reference))
    except (LinkError, ValueError):
        return None
    return address if (address.scheme, address.host, address.port) == (base.scheme, base.host, base.port) else None


def _invalid_url(name: str) -> LinkError:
    return LinkError("unavailable", f"The URL of '{name}' is not a valid HTTP URL.")


_HEAD_BYTES: Final = 64 * 1024
_IDLE_SECONDS: Final = 30.0
_TCP_KEEPALIVE_SECONDS: Final = 60
_MARGIN_SECONDS: Final = 1.0
_KEEP_ALIVE: Final = re.compile(rb"timeout=(\d{1,6})")


class ResponseHandler(Protocol):
    """Receives one response; nothing follows `on_complete` or `on_error`."""

    @property
    def connection(self) -> "Connection | None":
        """Return the connection that the request is on, once it is on its way."""
        ...

    @connection.setter
    def connection(self, connection: "Connection | None", /) -> None: ...

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Handle the status and the headers."""

    def on_body(self, piece: bytes) -> None:
        """Handle a piece of the body."""

    def on_complete(self) -> None:
        """Handle the end of a complete response."""

    def on_error(self, error: LinkError) -> None:
        """Handle a response that failed or broke off."""


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, with one request at a time.

    The parser's callbacks only collect. Handlers run afterwards, so that they may close the connection, which the
    parser does not allow.
    """

    def __init__(self, pool: "Pool") -> None:
        self.last_used = 0.0
        self._pool = pool
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._poll = select.poll()
        self._handler: ResponseHandler | None = None
        self._idle_limit = _IDLE_SECONDS
        self._intake = Intake(self._receive, pool.share, on_room=self._resume)
        self._is_paused = self._is_closed = False
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._size = 0
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._is_head_delivered = False
        self._is_complete = False
        self._is_malformed = False
        self._is_persistent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the pool."""
        self._transport = transport
        sock: Any = transport.get_extra_info("socket")
        self._poll.register(sock.fileno(), select.POLLIN)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects a server that vanished without closing
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _TCP_KEEPALIVE_SECONDS)
        self._pool.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending response, or complete it if only the end of the connection ends it."""
        self._intake.flush()  # TLS may report the end before everything was passed on
        self._is_closed = True
        self._intake.close()
        self._parser = None
        self._pool.remove(self)
        handler = self._detach()
        if handler is None:
            return
        has_length = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if exc is None and self._status and not has_length:
            handler.on_complete()
            return
        when = "in the middle of its answer" if self._status else "before it answered"
        handler.on_error(LinkError("lost", f"'{self._pool.name}' closed the connection {when}.", sent=True))

    @property
    def is_alive(self) -> bool:
        """Return whether it is open, as far as this side knows."""
        return not self._is_closed and not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Return whether another request can be sent on it.

        No request is ever sent twice, so a doubtful connection is not used. One that is readable while idle was mostly
        closed by the server, which the loop would report only after the request is sent.
        """
        idle = self._pool.loop.time() - self.last_used
        return self.is_alive and idle <= self._idle_limit and not self._poll.poll(0)

    def send(self, handler: ResponseHandler, data: bytes) -> None:
        """Send a request whose response goes to the handler."""
        self._handler = handler
        handler.connection = self
        self._transport.write(data)

    def _detach(self) -> ResponseHandler | None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection = None
        return handler

    def abort(self) -> None:
        """Close at once, without a callback to the handler."""
        self._detach()
        self._is_closed = True
        self._intake.close()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes and pass the result on."""
        self._intake.feed(data)
        if self._intake.is_full and self.is_alive and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def forgive(self) -> None:
        """Do not count what came just now: somebody waits for it."""
        self._intake.forgive()

    def _resume(self) -> None:
        if self._is_paused and self.is_alive:
            self._is_paused = False
            self._transport.resume_reading()

    def _receive(self, data: bytes) -> None:
        if self._handler is None:
            self.abort()  # a response without a request
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_malformed = True
        # Counts what is neither body nor complete: a head, sizes of chunks, and trailers, which the parser collects in
        # quadratic time.
        self._size = 0 if self._pieces else self._size + len(data)
        self._deliver(self._handler, data)

    def _deliver(self, handler: ResponseHandler, data: bytes) -> None:
        if self._status and not self._is_head_delivered:
            self._is_head_delivered = True
            handler.on_head(self._status, self._headers)
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            if self._handler is handler:
                handler.on_body(piece)
        if self._handler is not handler:
            return  # the handler closed the connection
        if self._is_complete:
            self._complete(handler)
        elif self._is_malformed:
            text = "" if self._is_head_delivered else data[:TEXT_CHARS].decode("utf-8", "replace")
            self._reject(handler, "is not HTTP", text, is_http=self._is_head_delivered)
        elif self._size > _HEAD_BYTES:
            self._reject(handler, "has too long a head or trailers", "", is_http=True)

    def _complete(self, handler: ResponseHandler) -> None:
        keep_alive = self._headers.get(b"keep-alive")
        if keep_alive is not None and (match := _KEEP_ALIVE.search(keep_alive)):
            # stop using it before the server closes it
            self._idle_limit = min(_IDLE_SECONDS, int(match[1]) - _MARGIN_SECONDS)
        self._detach()
        self.forgive()
        if self._is_persistent and not self._is_malformed and not self._intake.has_rest:
            self._reset()
            self._pool.release(self)
        else:
            self.abort()
        handler.on_complete()

    def _reject(self, handler: ResponseHandler, problem: str, text: str, *, is_http: bool) -> None:
        self.abort()
        sentence = f"The answer of '{self._pool.name}' {problem}."
        handler.on_error(
            LinkError("refused", sentence, sent=True, text=text, reason="protocol" if is_http else "not_mcp")
        )

    def on_message_begin(self) -> None:
        """Note a second response to one request as malformed."""
        self._is_malformed = self._is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; trailers are dropped."""
        if self._status:
            return
        name = name.lower()
        before = self._headers.get(name)
        self._headers[name] = value if before is None else b"%b, %b" % (before, value)

    def on_headers_complete(self) -> None:
        """Collect the status; skip interim responses (1xx)."""
        status = self._parser.get_status_code()
        if status < HTTPStatus.OK:
            self._headers = {}
        elif not self._is_complete:
            self._status = status
            self._size = 0

    def on_body(self, body: bytes) -> None:
        """Collect a piece of the body."""
        if not self._is_complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Note that the response is complete."""
        if self._status:
            self._is_complete = True
            self._is_persistent = self._parser.should_keep_alive()


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
"""Headers that the client sets; settings, credentials and callers cannot."""
_TYPES: Final = {
    "POST": {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"},
    "GET": {"Accept": "text/event-stream"},
    "DELETE": {"Accept": "text/event-stream"},
}


class HeaderError(ValueError):
    """A header contains characters that no header can."""


class RequestHead:
    """Builds the requests to one upstream, from its settings, credentials and MCP session."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self.target = address.target
        self.session: str | None = None
        self._host = next((value for name, value in headers.items() if name.lower() == "host"), address.authority)
        self._configured = _allowed({"User-Agent": f"callyard/{VERSION}"}) | _allowed(headers)

    def has_header(self, name: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request with these headers has one of that name, of its own or from the settings."""
        return name in self._configured or any(own.lower() == name for own in headers)

    def request(
        self,
        method: str,
        headers: Mapping[str, str],
        *,
        credentials: Mapping[str, str],
        target: str | None = None,
        last_event_id: str = "",
        message: bytes = b"",
    ) -> bytes:
        """Return a request; a message's headers replace credentials, and these replace headers of the settings.

        Raises:
            HeaderError: A header cannot be sent.
        """
        shown = self._configured | _allowed(credentials) | _allowed(headers)
        lines = {"Host": self._host, **_TYPES[method], "Accept-Encoding": "identity", **dict(shown.values())}
        if self.session is not None:
            lines["Mcp-Session-Id"] = self.session
        if last_event_id:
            lines["Last-Event-ID"] = last_event_id
        if method == "POST":
            lines["Content-Length"] = str(len(message))
        text = "".join([f"{name}: {value}\r\n" for name, value in lines.items()])
        if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text:
            raise HeaderError("A header contains a line break.")
        try:
            return f"{method} {target or self.target} HTTP/1.1\r\n{text}\r\n".encode() + message
        except UnicodeEncodeError:
            raise HeaderError("A header is not valid text.") from None


def _allowed(headers: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the headers that others than the client may set, by their names in lower case."""
    return {name.lower(): (name, value) for name, value in headers.items() if name.lower() not in _RESERVED}


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS settings, with the authorities of the system, `SSL_CERT_FILE` or `SSL_CERT_DIR`."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


_SPARE: Final = 32
_SWEEP_SECONDS: Final = 30.0


Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes a host and a port; returns the addresses to connect to, or raises `LinkError`."""


class Pool:
    """The connections to one upstream; requests queue while all are busy."""

    def __init__(
        self, name: str, address: Address, *, limit: int, connect_seconds: float, resolve: Resolve | None = None
    ) -> None:
        self.name = name
        self._resolve = resolve
        self._address = address
        self._limit = limit
        self._connect_seconds = connect_seconds
        self.share = Share()
        self.loop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._queue: deque[tuple[ResponseHandler, bytes]] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    def send(self, handler: ResponseHandler, data: bytes, *, urgent: bool = False) -> None:
        """Send a request on the next free connection; an urgent one may open a spare connection beyond the limit."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                connection.send(handler, data)
                return
            connection.abort()
        if not urgent:
            self._queue.append((handler, data))
            self._connect_for_queue()
            return
        self._queue.appendleft((handler, data))
        if len(self._all) + len(self._connecting) < self._limit + _SPARE:
            self._start_connecting()

    def drop(self, handler: ResponseHandler) -> None:
        """Forget a request, and close its connection."""
        if handler.connection is not None:
            handler.connection.abort()
        else:
            self._queue = deque(item for item in self._queue if item[0] is not handler)

    def add(self, connection: Connection) -> None:
        """Count a new connection."""
        self._all.add(connection)

    def release(self, connection: Connection) -> None:
        """Reuse a connection for the next request, or keep it idle."""
        connection.last_used = self.loop.time()
        if not self._queue:
            self._keep_idle(connection)
        elif connection.is_reusable:
            connection.send(*self._queue.popleft())
        else:
            connection.abort()  # `remove` then opens another one for the queue

    def _keep_idle(self, connection: Connection) -> None:
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self.loop.call_later(_SWEEP_SECONDS, self._sweep_idle)

    def remove(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._all.discard(connection)
        if not self._all:
            self._emptied.set()
        if connection in self._idle:
            self._idle.remove(connection)
        self._connect_for_queue()

    async def close(self) -> None:
        """Close all connections, and wait until they are closed."""
        self._queue.clear()
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

    def _connect_for_queue(self) -> None:
        """Open one connection for each queued request, within the limit."""
        while len(self._connecting) < min(len(self._queue), self._limit - len(self._all)):
            self._start_connecting()

    def _start_connecting(self) -> None:
        task = self.loop.create_task(self._connect())
        self._connecting.add(task)
        task.add_done_callback(self._end_connecting)

    def _end_connecting(self, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        self._connect_for_queue()

    async def _connect(self) -> None:
        try:
            connection = await self._open_connection()
        except LinkError as error:
            if self._queue:
                self._queue.popleft()[0].on_error(error)
            return
        connection.last_used = self.loop.time()
        if self._queue:
            connection.send(*self._queue.popleft())
        else:
            self._keep_idle(connection)

    async def _open_connection(self) -> Connection:
        address = self._address
        tls: Any = {"ssl": tls_context(), "server_hostname": address.host} if address.scheme == "https" else {}
        try:
            async with asyncio.timeout(self._connect_seconds):
                hosts = [address.host] if self._resolve is None else await self._resolve(address.host, address.port)
                connection = await self._connect_to(hosts, address.port, tls)
        except TimeoutError:
            sentence = f"'{self.name}' did not accept a connection within {self._connect_seconds:g} seconds."
            raise LinkError("unavailable", sentence) from None
        except (OSError, UnicodeError) as error:
            sentence = f"'{self.name}' cannot be reached: {_reason(error)}."
            raise LinkError("unavailable", sentence, private=f"{str(error)[:TEXT_CHARS]}.") from None
        if not connection.is_alive:
            raise LinkError("unavailable", f"'{self.name}' closed a new connection at once.")
        return connection

    async def _connect_to(self, hosts: Sequence[str], port: int, tls: Mapping[str, Any]) -> Connection:
        """Return a connection to the first host that accepts one."""
        for number, host in enumerate(hosts, start=1):
            try:
                _, connection = await self.loop.create_connection(lambda: Connection(self), host, port, **tls)
            except OSError:
                if number == len(hosts):
                    raise
            else:
                return connection
        raise OSError("The host has no address.")

    def _sweep_idle(self) -> None:
        self._sweep = None
        reusable = [connection for connection in self._idle if connection.is_reusable]
        for connection in set(self._idle).difference(reusable):
            connection.abort()
        self._idle = reusable
        if reusable:
            self._sweep = self.loop.call_later(_SWEEP_SECONDS, self._sweep_idle)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "the TLS handshake failed"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its host name is unknown"
    return "it refuses connections" if isinstance(error, ConnectionRefusedError) else "the connection failed"
