"""Addresses: which hosts only this machine can reach, and the origins of URLs."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

__all__ = ["is_loopback", "is_public", "origin_of"]

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


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public network, also if it is an IPv4 address inside an IPv6 one."""
    try:
        parsed = ip_address(address)
    except ValueError:  # with a zone, as in 'fe80::1%eth0', which only local addresses have
        return False
    if isinstance(parsed, IPv6Address):
        inner = [parsed.ipv4_mapped, parsed.sixtofour, *(parsed.teredo or ())]
        if parsed in _NAT64:
            inner.append(IPv4Address(int(parsed) & 0xFFFFFFFF))
        if any(one is not None and not is_public(str(one)) for one in inner):
            return False
        if parsed.ipv4_mapped is not None:
            return True
    return parsed.is_global and not parsed.is_multicast


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers send it: lower case, without a default port; empty if it has no host."""
    try:
        parts = urlsplit(url.lower())
    except ValueError:
        return ""
    netloc = parts.netloc.removesuffix(_DEFAULT_PORTS.get(parts.scheme, ""))
    return f"{parts.scheme}://{netloc}" if parts.scheme and netloc and "@" not in netloc else ""
