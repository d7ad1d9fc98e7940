"""Fetching a small JSON document, within a size and a time; blocks, so it runs in a thread.

It imports the HTTP client of the standard library, so only those who check tokens load it.
"""

import time
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

import msgspec

from toolyard.store import Clock
from toolyard.transports.auth.address import UnreadError, is_loopback

__all__ = ["MAX_BYTES", "fetch_object"]

MAX_BYTES: Final = 256 * 1024
_PIECE: Final = 16 * 1024


class _StayHere(HTTPRedirectHandler):
    """Follows nothing: what was configured is what is trusted."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return nothing, which makes a redirect a failure."""


def fetch_object(address: str, *, seconds: float, clock: Clock = time.monotonic) -> dict[str, Any]:
    """Return the JSON object at an address that was checked before.

    Raises:
        UnreadError: There is none, or it is too large or too slow.
    """
    end = clock() + seconds
    request = Request(address, headers={"Accept": "application/json", "User-Agent": "toolyard"})  # noqa: S310 - checked before
    try:
        with cast("HTTPResponse", _opener(address).open(request, timeout=seconds)) as response:
            body = _read(response, end, clock=clock)
    except HTTPError as error:
        error.close()
        raise UnreadError("status", f"it answers with status {error.code}") from None
    except (OSError, HTTPException) as error:
        if isinstance(getattr(error, "reason", error), TimeoutError):
            raise _too_slow() from None
        raise UnreadError("unreachable", "it cannot be reached") from None
    return _parse(body)


def _opener(address: str) -> OpenerDirector:
    # What runs on this machine is never behind the proxy that leads out of it.
    local = is_loopback(urlsplit(address).hostname or "")
    return build_opener(_StayHere, *([ProxyHandler({})] if local else []))


def _read(response: HTTPResponse, end: float, *, clock: Clock) -> bytes:
    body = bytearray()
    while piece := response.read1(_PIECE):
        body += piece
        if len(body) > MAX_BYTES:
            raise UnreadError("too_large", "it answers with too large a document")
        if clock() > end:
            raise _too_slow()
    return bytes(body)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnreadError("malformed", "it answers with something that is no JSON object") from None


def _too_slow() -> UnreadError:
    return UnreadError("timeout", "it takes too long to answer")
