"""Addresses: which hosts only this machine can reach, and the origins of URLs."""

from ipaddress import IPv6Address, ip_address
from typing import Final, Literal
from urllib.parse import urlsplit

__all__ = ["Reach", "is_loopback", "origin_of", "reach_of"]

Reach = Literal["public", "private", "loopback"]
"""Who can reach an address: everybody, those of a network, or this machine."""

_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host: a loopback address or 'localhost'. It resolves no names."""
    bare = host.removeprefix("[").removesuffix("]")
    if bare.lower() == "localhost":
        return True
    try:
        address = ip_address(bare)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def reach_of(address: str) -> Reach:
    """Return who can reach a numeric address, with or without a scope.

    Raises:
        ValueError: It is no numeric address.
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found.sixtofour or found
    if found.is_loopback or found.is_unspecified:
        return "loopback"
    return "public" if found.is_global and not found.is_multicast else "private"


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers send it: lower case, without a default port; empty if it has no host."""
    try:
        parts = urlsplit(url.lower())
    except ValueError:
        return ""
    netloc = parts.netloc.removesuffix(_DEFAULT_PORTS.get(parts.scheme, ""))
    return f"{parts.scheme}://{netloc}" if parts.scheme and netloc and "@" not in netloc else ""
