"""Addresses: where an upstream is, and whether another address is in the same place, so that it may be shown our credentials."""

from typing import Final
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from toolyard.providers.upstream.link import LinkError

__all__ = ["Address", "join", "read_address"]

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
