"""One request outside a session, such as for JSON at a URL, on a connection of its own.

It follows no redirect, and reads no more than it is allowed to.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from callyard.providers.upstream.http.client import Pool, RequestHead, Resolve, parse_address
from callyard.providers.upstream.link import LinkError

__all__ = ["Response", "fetch"]

_CONNECT_SECONDS: Final = 10.0


class Response(msgspec.Struct, frozen=True):
    """A response: its status, its headers with lower-case names, and its body."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    def header(self, name: bytes) -> str:
        """Return a header, or an empty string."""
        return self.headers.get(name, b"").decode("latin-1")


class _Reader:
    connection: Any = None

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.done: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._headers: Mapping[bytes, bytes] = {}
        self._body = bytearray()

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        self._status, self._headers = status, dict(headers)

    def on_body(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._limit:
            self.on_error(LinkError("refused", f"The answer is longer than {self._limit} bytes.", reason="protocol"))

    def on_complete(self) -> None:
        if not self.done.done():
            self.done.set_result(Response(self._status, self._headers, bytes(self._body)))

    def on_error(self, error: LinkError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def fetch(
    url: str,
    headers: Mapping[str, str],
    *,
    method: str = "GET",
    body: bytes = b"",
    limit: int,
    resolve: Resolve | None = None,
) -> Response:
    """Send a request, and return the response, whatever its status; `resolve` may refuse the host.

    Raises:
        LinkError: There is no answer, or it is longer than `limit` bytes.
        HeaderError: A header cannot be sent.
    """
    address = parse_address(url, url)
    pool = Pool("the service", address, limit=1, connect_seconds=_CONNECT_SECONDS, resolve=resolve)
    reader = _Reader(limit)
    try:
        pool.send(reader, RequestHead(address, {}).request(method, headers, credentials={}, message=body))
        return await reader.done
    finally:
        await pool.close()
