"""The head of an HTTP/1.1 request: its fields, the checks that it must pass, and its reuse for the next request.

It knows neither connections nor bodies.
"""

import re
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from callyard.transports.http.request import is_compressed
from callyard.transports.http.response import Header

__all__ = ["HEAD_END", "Head", "UpgradeStripper", "find_fault", "parsed_head", "reusable_head"]


HEAD_END: Final = b"\r\n\r\n"
_UPGRADE: Final = b"\r\nupgrade:"
_UPGRADE_HEADER: Final = re.compile(_UPGRADE, re.IGNORECASE)
_REUSABLE_BYTES: Final = 4096
_NOT_REUSABLE: Final = frozenset({b"transfer-encoding", b"expect"})
_VERSIONS: Final = frozenset({"1.0", "1.1"})
_RESTRICTED: Final = frozenset({b"transfer-encoding", b"expect", b"content-encoding"})
"""Headers of which one value is understood here."""


class UpgradeStripper:
    """Renames the header `Upgrade` in the heads of one connection, because httptools stops parsing there."""

    def __init__(self) -> None:
        self.rest = b""
        """The end of an incomplete head, which may be the start of the header."""

    def strip(self, data: bytes) -> bytes:
        """Return the part of the data, which begins in a head, that can be parsed."""
        head, end, body = (self.rest + data).partition(HEAD_END)
        cut = 0 if end else _partial_length(head)
        self.rest = head[len(head) - cut :]
        return _UPGRADE_HEADER.sub(b"\r\nx-upgrade:", head[: len(head) - cut]) + end + body


def _partial_length(head: bytes) -> int:
    """Return how many bytes at the end may be the start of the header, or of the end of the head."""
    tail = head[1 - len(_UPGRADE) :].lower()
    return next((len(tail) - at for at in range(len(tail)) if _UPGRADE.startswith(tail[at:]) or HEAD_END.startswith(tail[at:])), 0)


class Head(msgspec.Struct, frozen=True, eq=False, gc=False, kw_only=True):
    """A parsed head, which the next request may share, so nobody changes it."""

    method: str
    path: str
    query: bytes
    pairs: list[Header]
    """The headers as they came; a name may be there twice."""
    headers: dict[bytes, bytes]
    keep_alive: bool
    is_http_1_0: bool
    data: bytes = b""
    """The bytes of the head, if it is reusable."""
    request_size: int = 0
    """The size of the head and its body."""


def parsed_head(parser: Any, url: bytes, pairs: list[Header], headers: dict[bytes, bytes]) -> Head:
    """Return the head that the parser has read."""
    return Head(
        method=parser.get_method().decode("ascii"),
        path=_path_of(url),
        query=url.partition(b"?")[2],
        pairs=pairs,
        headers=headers,
        keep_alive=parser.should_keep_alive(),
        is_http_1_0=parser.get_http_version() == "1.0",
    )


def _path_of(url: bytes) -> str:
    """Return the path of a request's URL; empty if the URL is invalid."""
    if not url.startswith(b"/"):  # an absolute URL, as proxies get it
        try:
            url = urlsplit(url).path
        except ValueError:
            return ""
    path = url.partition(b"?")[0].decode("latin-1")
    return unquote(path) if "%" in path else path


def reusable_head(head: Head, data: bytes) -> Head | None:
    """Return the head so that it can be reused, if the data are exactly its request.

    Skipping the parser is safe: the next data are compared byte by byte, the end of the head and the length of the body included.
    The same bytes parse to the same head, and the rest is the body. Chunked bodies and `Expect` are left to the parser.
    """
    text, end, body = data.partition(HEAD_END)
    if len(text) > _REUSABLE_BYTES or not _NOT_REUSABLE.isdisjoint(head.headers):
        return None
    if head.headers.get(b"content-length", b"0") != b"%d" % len(body):
        return None
    return msgspec.structs.replace(head, data=text + end, request_size=len(data))


def find_fault(version: str, url: bytes, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
    """Return the status and the sentence for a head that another reader might understand differently; None if it is fine."""
    if version not in _VERSIONS:
        return 505, "Only HTTP/1.1 and HTTP/1.0 are spoken here."
    if not url.startswith(b"/") and not _names_host(url, headers.get(b"host", b"")):
        return 400, "The URL of the request names another host than its header 'Host'."
    return None if _RESTRICTED.isdisjoint(headers) else _find_restricted(version, headers)


def _find_restricted(version: str, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
    coding = headers.get(b"transfer-encoding", b"chunked").strip().lower()
    if coding != b"chunked" or (version == "1.0" and b"transfer-encoding" in headers):
        return 501, "The only transfer encoding is 'chunked', in HTTP/1.1."
    if headers.get(b"expect", b"100-continue").strip().lower() != b"100-continue":
        return 417, "The only expectation that can be met is '100-continue'."
    if is_compressed(headers):
        return 415, "The body must not be compressed: leave 'Content-Encoding' out."
    return None


def _names_host(url: bytes, host: bytes) -> bool:
    """Return whether an absolute URL, as proxies get it, is of the host in the header; other forms name no host."""
    if b"://" not in url:
        return True
    return url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0].lower() == host.strip().lower()
