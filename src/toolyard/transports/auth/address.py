"""Addresses: which of them are of this machine, and which may be asked for keys."""

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

__all__ = ["UnreadError", "check_address", "is_loopback"]


class UnreadError(Exception):
    """What is at an address could not be had: a word for the log, and the end of a sentence for people."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached from this machine only; a name that is not 'localhost' is never looked up."""
    bare = host.removeprefix("[").removesuffix("]")
    if bare.lower() == "localhost":
        return True
    try:
        address = ip_address(bare)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def check_address(name: str, address: str) -> None:
    """Check that keys may be asked for at an address, without repeating it: it may hold a password.

    Raises:
        ValueError: It is no https address (or http of this machine), or it holds a user, a query or a fragment.
    """
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        raise ValueError(f"The '{name}' is no address.") from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise ValueError(f"The '{name}' must be an https address; http is for addresses of this machine.")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"The '{name}' must not hold a user or a password.")
    if parts.fragment or (parts.query and name == "issuer"):
        raise ValueError(f"The '{name}' must end with its path.")
