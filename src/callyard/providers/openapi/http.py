"""Requests to the origins of one API, and to nothing else.

Each connection goes to an address that was checked after its name was resolved. Redirects stay on the origin, and an
answer has bounds, also after decompression. It knows bytes and statuses, and nothing of documents.
"""

import asyncio
import re
import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from callyard._internal.addresses import is_loopback, is_public
from callyard._version import VERSION
from callyard.providers.upstream.http.client import Address, Connection, Pool, parse_address, resolve
from callyard.providers.upstream.link import LinkError

__all__ = ["Answer", "ApiHttp", "Request", "is_written_private"]

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEPS_METHOD: Final = frozenset({307, 308})
_MAX_REDIRECTS: Final = 5
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "te", "trailer", "upgrade"}
)
"""Headers that only the client sets."""
_WITH_LENGTH: Final = frozenset({"POST", "PUT", "PATCH"})
_GZIP: Final = 16 + zlib.MAX_WBITS


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, ready to be sent."""

    method: str
    address: Address
    headers: Mapping[str, str]
    body: bytes | None = None

    def encode(self) -> bytes:
        """Return it as bytes.

        Raises:
            LinkError: A header contains what no header can.
        """
        lines = {"Host": self.address.authority, "User-Agent": f"callyard/{VERSION}", "Accept-Encoding": "identity"}
        for name, value in self.headers.items():
            if name.lower() in _OURS:
                continue
            if not _TOKEN.fullmatch(name) or any(character in value for character in "\r\n\0"):
                raise LinkError("refused", f"The header '{name[:80]}' contains characters that no header can have.")
            lines[name] = value
        body = self.body
        if body is not None or self.method in _WITH_LENGTH:
            lines["Content-Length"] = str(len(body or b""))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        text = f"{self.method} {self.address.target} HTTP/1.1\r\n{head}\r\n"
        return text.encode("utf-8", "replace") + (body or b"")


class Answer(msgspec.Struct, frozen=True):
    """The answer to a request, after redirects and decompression."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    address: Address

    def header(self, name: str) -> str:
        """Return a header, or an empty text."""
        return self.headers.get(name.encode(), b"").decode("latin-1")

    @property
    def media_type(self) -> str:
        """Return its media type, in lower case and without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def is_redirect(self) -> bool:
        """Return whether it redirects to where nothing is sent."""
        return self.status in _REDIRECTS


class _Exchange:
    is_event_stream = False

    def __init__(self, name: str, method: str, limit: int, on_sent: Callable[[], object]) -> None:
        self.done: asyncio.Future[tuple[int, Mapping[bytes, bytes], bytes]]
        self.done = asyncio.get_running_loop().create_future()
        self._on_sent = on_sent
        self.was_sent = False
        self._connection: Connection | None = None
        self._name = name
        self._has_no_body = method == "HEAD"
        self._limit = limit
        self._status = 0
        self._headers: Mapping[bytes, bytes] = {}
        self._body = bytearray()

    @property
    def connection(self) -> Connection | None:
        """Return the connection that the request is on."""
        return self._connection

    @connection.setter
    def connection(self, connection: Connection | None, /) -> None:
        self._connection = connection
        if connection is not None:
            self.was_sent = True
            self._on_sent()

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status, self._headers = status, headers
        if self._has_no_body:  # the parser would wait for the body whose length the headers tell
            self._end()
            self.on_complete()

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._limit:
            self._end()
            self.on_error(_too_long(self._name, self._limit))

    def on_complete(self) -> None:
        if not self.done.done():
            self.done.set_result((self._status, self._headers, bytes(self._body)))

    def on_error(self, error: LinkError) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.abort()


class ApiHttp:
    """The connections to the origins of one API."""

    def __init__(
        self, name: str, *, limit: int, connect_seconds: float, max_bytes: int, private: bool, own: Sequence[str] = ()
    ) -> None:
        self._name = name
        self._limit = limit
        self._connect_seconds = connect_seconds
        self._max_bytes = max_bytes
        self._allows_private = private
        self._own = frozenset(own)
        """Hosts that the configuration names by a private address, so that they need no further permission."""
        self._pools: dict[tuple[str, str, int], Pool] = {}

    async def send(self, request: Request, *, on_sent: Callable[[], object] = bool) -> Answer:
        """Send a request, follow redirects on its origin, and return the answer.

        `on_sent` is called once it is on its way.

        Raises:
            LinkError: There is no answer, or it exceeds a bound.
        """
        for _ in range(_MAX_REDIRECTS):
            answer = await self._send_once(request, on_sent)
            target = resolve(self._name, request.address, answer.header("location")) if answer.is_redirect else None
            if target is None or not answer.header("location"):
                return answer
            request = msgspec.structs.replace(request, address=target)
            if answer.status not in _KEEPS_METHOD and request.method != "HEAD":
                request = msgspec.structs.replace(request, method="GET", body=None)
        raise LinkError("refused", f"'{self._name}' redirects more than {_MAX_REDIRECTS} times.", sent=True)

    async def _send_once(self, request: Request, on_sent: Callable[[], object]) -> Answer:
        data = request.encode()
        exchange = _Exchange(self._name, request.method, self._max_bytes, on_sent)
        pool = self._pool(request.address)
        pool.send(exchange, data)
        try:
            status, headers, body = await exchange.done
        except LinkError as error:
            error.sent = error.sent or exchange.was_sent
            raise
        except asyncio.CancelledError:
            pool.drop(exchange)
            raise
        return Answer(status, headers, self._decompressed(headers, body), request.address)

    def _pool(self, address: Address) -> Pool:
        key = (address.scheme, address.host, address.port)
        if key not in self._pools:
            seconds = self._connect_seconds
            self._pools[key] = Pool(
                self._name, address, limit=self._limit, connect_seconds=seconds, resolve=self._addresses_of
            )
        return self._pools[key]

    async def _addresses_of(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, all of them checked: the connection uses one of these and asks no more."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
        if not self._allows_private and host not in self._own and not all(map(is_public, addresses)):
            key = f"'private_addresses' of '[apis.{self._name}]'"
            sentence = f"The host of '{self._name}' has a private address, and {key} does not allow that."
            raise LinkError("refused", sentence, private=f"'{host}' is {', '.join(addresses)}.")
        return addresses

    def _decompressed(self, headers: Mapping[bytes, bytes], body: bytes) -> bytes:
        encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if not body or encoding in {"", "identity"}:
            return body
        if encoding not in {"gzip", "x-gzip", "deflate"}:
            raise LinkError("refused", f"'{self._name}' answered with the encoding '{encoding[:40]}'.", sent=True)
        try:
            inflater = zlib.decompressobj(_GZIP if encoding != "deflate" else zlib.MAX_WBITS)
            plain = inflater.decompress(body, self._max_bytes + 1)
        except zlib.error:
            raise LinkError("refused", f"The answer of '{self._name}' cannot be decompressed.", sent=True) from None
        if len(plain) > self._max_bytes:
            raise _too_long(self._name, self._max_bytes)
        if not inflater.eof:
            raise LinkError("refused", f"The answer of '{self._name}' is cut off.", sent=True)
        return plain

    async def close(self) -> None:
        """Close all connections."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()


def is_written_private(url: str) -> bool:
    """Return whether a URL of the configuration names a private address, or this machine, itself."""
    host = parse_address("the URL", url).host
    if is_loopback(host):
        return True
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return False
    return not is_public(host)


def _too_long(name: str, limit: int) -> LinkError:
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return LinkError("refused", f"The answer of '{name}' has more than {limit} bytes.", sent=True, status=status)
