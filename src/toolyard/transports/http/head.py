"""Heads: what a request says before its body, read once for as long as a client says the same in the same bytes."""

from typing import Any, Final

import msgspec

__all__ = ["Head", "alone", "read"]

_END: Final = b"\r\n\r\n"
_KEPT: Final = 4096
_ROUNDABOUT: Final = frozenset({b"transfer-encoding", b"expect"})


class Head(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One head: nobody changes what is in it, since the next request may have the same."""

    method: str
    url: bytes
    pairs: list[tuple[bytes, bytes]]
    """The headers as they came, where one may be there twice."""
    headers: dict[bytes, bytes]
    keep_alive: bool
    is_old: bool
    text: bytes = b""
    """The bytes that say it, where they may be known again."""
    size: int = 0
    """How long those are, and the body."""

    def begins(self, data: bytes) -> bool:
        """Return whether these bytes are a whole request that says just the same."""
        return len(data) == self.size and data.startswith(self.text)


def read(parser: Any, url: bytes, pairs: list[tuple[bytes, bytes]], headers: dict[bytes, bytes]) -> Head:
    """Return the head that a parser has read."""
    method = parser.get_method()
    is_old = parser.get_http_version() == "1.0"
    return Head("POST" if method == b"POST" else method.decode("ascii"), url, pairs, headers, parser.should_keep_alive(), is_old)


def alone(head: Head, data: bytes) -> Head | None:
    """Return a head so that it is known again, if these bytes are its request and nothing else."""
    text, end, body = data.partition(_END)
    if len(text) > _KEPT or not _ROUNDABOUT.isdisjoint(head.headers) or head.headers.get(b"content-length", b"0") != b"%d" % len(body):
        return None
    return Head(head.method, head.url, head.pairs, head.headers, head.keep_alive, head.is_old, text + end, len(data))
