"""Addresses: which hosts only this machine can reach, and the origins of URLs."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final, Literal
from urllib.parse import urlsplit

__all__ = ["Reach", "is_loopback", "is_public", "origin_of", "reach_of"]

Reach = Literal["public", "private", "loopback"]
"""Who can reach an address: everybody, those of a network, or this machine."""

_NAT64: Final = IPv6Network("64:ff9b::/96")
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
    """Return who can reach a numeric address, also if it is an IPv4 address inside an IPv6 one.

    Raises:
        ValueError: It is no numeric address.
    """
    found = ip_address(address.partition("%")[0])
    inner = _inside(found) if isinstance(found, IPv6Address) else []
    if any(one.is_loopback or one.is_unspecified for one in (found, *inner)):
        return "loopback"
    is_mapped = isinstance(found, IPv6Address) and found.ipv4_mapped is not None
    seen = inner if is_mapped else [found, *inner]
    return "public" if all(one.is_global and not one.is_multicast for one in seen) else "private"


def is_public(address: str) -> bool:
    """Return whether an address is one of the public network; what is no numeric address is none."""
    try:
        return reach_of(address) == "public"
    except ValueError:
        return False


def _inside(address: IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address leads to."""
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        inner.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in inner if one is not None]


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers send it: lower case, without a default port; empty if it has no host."""
    try:
        parts = urlsplit(url.lower())
    except ValueError:
        return ""
    netloc = parts.netloc.removesuffix(_DEFAULT_PORTS.get(parts.scheme, ""))
    return f"{parts.scheme}://{netloc}" if parts.scheme and netloc and "@" not in netloc else ""
