"""The loopback test of hosts, the one place that decides what only this machine can reach."""

from ipaddress import IPv6Address, ip_address

__all__ = ["is_loopback"]


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
