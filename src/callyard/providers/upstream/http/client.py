"""An HTTP/1.1 client for one upstream: its address, connections, request heads and connection pool.

It knows bytes, headers and statuses, and nothing of MCP messages.
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

from callyard._version import VERSION
from callyard.providers.upstream.link import LinkError

__all__ = ["TEXT_CHARS", "Address", "Connection", "HeaderError", "Pool", "RequestHead", "parse_address", "resolve", "tls_context"]

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

    def has_same_origin(self, other: "Address") -> bool:
        """Return whether both are on the same server."""
        return (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)


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
    target = quote(parts.path or "/", safe=_UNESCAPED) + (f"?{quote(parts.query, safe=_UNESCAPED)}" if parts.query else "")
    return Address(scheme=parts.scheme, host=host, port=_PORTS[parts.scheme] if port is None else port, target=target)


def resolve(name: str, base: Address, reference: str) -> Address | None:
    """Return the address of a reference relative to a base, or None if it is invalid or of another origin."""
    try:
        address = parse_address(name, urljoin(f"{base.scheme}://{base.authority}{base.target}", reference))
    except (LinkError, ValueError):
        return None
    return address if address.has_same_origin(base) else None


def _invalid_url(name: str) -> LinkError:
    return LinkError("unavailable", f"The URL of '{name}' is not a valid HTTP URL.")


_HEAD_BYTES: Final = 64 * 1024
_SLICE_BYTES: Final = 16 * 1024
_IDLE_SECONDS: Final = 30.0
_TCP_KEEPALIVE_SECONDS: Final = 60
_MARGIN_SECONDS: Final = 1.0
_KEEP_ALIVE: Final = re.compile(rb"timeout=(\d{1,6})")
_OK: Final = 200


class ResponseHandler(Protocol):
    """Receives one response; nothing follows `on_complete` or `on_error`."""

    connection: "Connection | None"

    @property
    def is_event_stream(self) -> bool:
        """Return whether the response is an event stream."""
        ...

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Handle the status and the headers."""
        ...

    def on_body(self, piece: bytes) -> None:
        """Handle a piece of the body."""
        ...

    def on_complete(self) -> None:
        """Handle the end of a complete response."""
        ...

    def on_error(self, error: LinkError) -> None:
        """Handle a response that failed or broke off."""
        ...


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, with one request at a time.

    The parser's callbacks only collect. Handlers run afterwards, so that they may close the connection, which the parser does not allow.
    """

    def __init__(self, pool: "Pool") -> None:
        self.last_used = 0.0
        self._pool = pool
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._poll = select.poll()
        self._handler: ResponseHandler | None = None
        self._idle_limit = _IDLE_SECONDS
        self._rest = b""
        """Data that are not parsed yet."""
        self._is_closed = False
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
        self._is_closed = True
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

    def is_reusable(self, now: float) -> bool:
        """Return whether another request can be sent on it.

        No request is ever sent twice, so a doubtful connection is not used. One that is readable while idle was mostly closed
        by the server, which the loop would report only after the request is sent.
        """
        return self.is_alive and now - self.last_used <= self._idle_limit and not self._poll.poll(0)

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
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes and pass the result on; those of an event stream in slices, with other work of the loop in between."""
        handler = self._handler
        if handler is not None and len(data) > _SLICE_BYTES and handler.is_event_stream:
            data, self._rest = data[:_SLICE_BYTES], data[_SLICE_BYTES:]
            self._transport.pause_reading()
            self._pool.loop.call_soon(self._continue)
        self._receive(data)

    def _continue(self) -> None:
        """Take the rest of the data, of which there is nothing left if the connection was closed."""
        data, self._rest = self._rest, b""
        if self.is_alive:
            self.data_received(data)
        if self.is_alive and not self._rest:
            self._transport.resume_reading()

    def _receive(self, data: bytes) -> None:
        if self._handler is None:
            self.abort()  # a response without a request
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._is_malformed = True
        # Counts what is neither body nor complete: a head, sizes of chunks, and trailers, which the parser collects in quadratic time.
        self._size = 0 if self._pieces else self._size + len(data)
        self._deliver(self._handler, data)

    def _deliver(self, handler: ResponseHandler, data: bytes) -> None:
        if self._status and not self._is_head_delivered:
            self._is_head_delivered = True
            handler.on_head(self._status, self._headers)
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                if self._handler is handler:
                    handler.on_body(piece)
        if self._handler is not handler:
            return  # the handler closed the connection
        if self._is_complete:
            self._complete(handler)
        elif self._is_malformed:
            self._reject(handler, "is not HTTP", "" if self._is_head_delivered else data[:TEXT_CHARS].decode("utf-8", "replace"))
        elif self._size > _HEAD_BYTES:
            self._reject(handler, "has too long a head or trailers", "")

    def _complete(self, handler: ResponseHandler) -> None:
        keep_alive = self._headers.get(b"keep-alive")
        if keep_alive is not None and (match := _KEEP_ALIVE.search(keep_alive)):
            self._idle_limit = min(_IDLE_SECONDS, int(match[1]) - _MARGIN_SECONDS)  # stop using it before the server closes it
        self._detach()
        if self._is_persistent and not self._is_malformed and not self._rest:
            self._reset()
            self._pool.release(self)
        else:
            self.abort()
        handler.on_complete()

    def _reject(self, handler: ResponseHandler, problem: str, text: str) -> None:
        self.abort()
        handler.on_error(LinkError("refused", f"The answer of '{self._pool.name}' {problem}.", sent=True, text=text))

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
        if status < _OK:
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
_CACHED_NAMES: Final = 256


class HeaderError(ValueError):
    """A header contains characters that no header can."""


class RequestHead:
    """Builds the requests to one upstream, from its settings, credentials and MCP session."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self.target = address.target
        self.session: str | None = None
        configured = {name.lower(): (name, value) for name, value in headers.items()}
        host = configured.pop("host", ("", address.authority))[1]
        self._defaults = {"Host": host, "User-Agent": f"callyard/{VERSION}"}
        self._configured = {name: pair for name, pair in configured.items() if name not in _RESERVED}
        if "user-agent" in self._configured:
            del self._defaults["User-Agent"]
        # The lines that all posts share are built once and reused while credentials, target and session stay the same.
        self._lines = b""
        self._lines_for: tuple[str, str | None] | None = None
        self._credentials: Mapping[str, str] = {}
        self._replaceable: frozenset[str] = frozenset()
        """Names in the shared lines that a message's own header replaces."""
        self._compatible: set[tuple[str, ...]] = set()
        """Sets of message headers, by their names, that can follow the shared lines unchanged."""

    def has_header(self, name: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request with these headers of its own has one of that name, from there or from the settings."""
        return name in self._configured or any(own.lower() == name for own in headers)

    def post(self, message: bytes, headers: Mapping[str, str], *, credentials: Mapping[str, str], target: str | None = None) -> bytes:
        """Return a POST request with a message as its body.

        Raises:
            HeaderError: A header cannot be sent.
        """
        if credentials != self._credentials or self._lines_for != (self.target, self.session):
            self._rebuild(credentials)
        names = tuple(headers)
        if target is None and names in self._compatible:
            lines = self._lines
        else:
            lines, headers = self._merge(names, headers, credentials=credentials, target=target)
        return b"".join((lines, _encode(headers), b"Content-Length: %d\r\n\r\n" % len(message), message))

    def _merge(
        self, names: tuple[str, ...], headers: Mapping[str, str], *, credentials: Mapping[str, str], target: str | None
    ) -> tuple[bytes, Mapping[str, str]]:
        """Return the first lines for a new set of header names, and those of the headers that may be sent."""
        lowered = frozenset(name.lower() for name in names)
        allowed = {name: value for name, value in headers.items() if name.lower() not in _RESERVED}
        if target is None and len(allowed) == len(names) and self._replaceable.isdisjoint(lowered):
            if len(self._compatible) < _CACHED_NAMES:
                self._compatible.add(names)
            return self._lines, headers
        return self._build("POST", target, credentials=credentials, without=lowered), allowed

    def without_body(self, method: str, headers: Mapping[str, str], *, credentials: Mapping[str, str], target: str | None = None) -> bytes:
        """Return a GET or DELETE request.

        Raises:
            HeaderError: A header cannot be sent.
        """
        names = frozenset(name.lower() for name in headers)
        return b"".join((self._build(method, target, credentials=credentials, without=names), _encode(headers), b"\r\n"))

    def _rebuild(self, credentials: Mapping[str, str]) -> None:
        self._lines = self._build("POST", None, credentials=credentials, without=frozenset())
        self._lines_for = (self.target, self.session)
        self._credentials = dict(credentials)
        self._replaceable = frozenset(self._configured) | {name.lower() for name in credentials}
        self._compatible = set()

    def _build(self, method: str, target: str | None, *, credentials: Mapping[str, str], without: frozenset[str]) -> bytes:
        """Return the first lines; credentials replace headers of the settings, and neither has a name in `without`."""
        shown = {name.lower(): (name, value) for name, value in credentials.items() if name.lower() not in _RESERVED}
        own = [pair for name, pair in {**self._configured, **shown}.items() if name not in without]
        session = {} if self.session is None else {"Mcp-Session-Id": self.session}
        types = {"Accept": "text/event-stream"}
        if method == "POST":
            types = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        lines = _encode({**self._defaults, **types, "Accept-Encoding": "identity", **dict(own), **session})
        return f"{method} {target or self.target} HTTP/1.1\r\n".encode() + lines


def _encode(headers: Mapping[str, str]) -> bytes:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise HeaderError("A header contains a line break.")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise HeaderError("A header is not valid text.") from None


@cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS settings, with the authorities of the system, `SSL_CERT_FILE` or `SSL_CERT_DIR`."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


_SPARE: Final = 32
_SWEEP_SECONDS: Final = 30.0


class Pool:
    """The connections to one upstream; requests queue while all are busy."""

    def __init__(self, name: str, address: Address, *, limit: int, connect_seconds: float) -> None:
        self.name = name
        self._address = address
        self._limit = limit
        self._connect_seconds = connect_seconds
        self.loop = self._loop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._queue: deque[tuple[ResponseHandler, bytes]] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    def send(self, handler: ResponseHandler, data: bytes, *, urgent: bool = False) -> None:
        """Send a request on the next free connection; an urgent one may open a spare connection beyond the limit."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable(now):
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
        now = self._loop.time()
        connection.last_used = now
        if not self._queue:
            self._keep_idle(connection)
        elif connection.is_reusable(now):
            connection.send(*self._queue.popleft())
        else:
            connection.abort()  # `remove` then opens another one for the queue

    def _keep_idle(self, connection: Connection) -> None:
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_SECONDS, self._sweep_idle)

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
        task = self._loop.create_task(self._connect())
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
        connection.last_used = self._loop.time()
        if self._queue:
            connection.send(*self._queue.popleft())
        else:
            self._keep_idle(connection)

    async def _open_connection(self) -> Connection:
        address = self._address
        tls: Any = {"ssl": tls_context(), "server_hostname": address.host} if address.scheme == "https" else {}
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await self._loop.create_connection(lambda: Connection(self), address.host, address.port, **tls)
        except TimeoutError:
            sentence = f"'{self.name}' did not accept a connection within {self._connect_seconds:g} seconds."
            raise LinkError("unavailable", sentence) from None
        except (OSError, UnicodeError) as error:
            sentence = f"'{self.name}' cannot be reached: {_reason(error)}."
            raise LinkError("unavailable", sentence, private=f"{str(error)[:TEXT_CHARS]}.") from None
        if not connection.is_alive:
            raise LinkError("unavailable", f"'{self.name}' closed a new connection at once.")
        return connection

    def _sweep_idle(self) -> None:
        """Close connections that were idle for too long."""
        self._sweep = None
        now = self._loop.time()
        reusable = [connection for connection in self._idle if connection.is_reusable(now)]
        for connection in set(self._idle).difference(reusable):
            connection.abort()
        self._idle = reusable
        if reusable:
            self._sweep = self._loop.call_later(_SWEEP_SECONDS, self._sweep_idle)


def _reason(error: Exception) -> str:
    """Return in words why a connection failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "the TLS handshake failed"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its host name is unknown"
    return "it refuses connections" if isinstance(error, ConnectionRefusedError) else "the connection failed"
