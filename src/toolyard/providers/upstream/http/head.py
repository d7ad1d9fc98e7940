"""Heads of requests: all that is the same for every message is encoded once, and the rest spliced in."""

from collections.abc import Mapping
from typing import Final

from toolyard._version import VERSION
from toolyard.providers.upstream.http.address import Address

__all__ = ["Head", "UnfitError"]

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
