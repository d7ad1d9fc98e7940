"""The hosts that a browser may reach: rules for Chromium's resolver, and the check of an address before it is opened.

Chromium's own rules are the fence: they hold for pages, their parts, workers and WebSockets. The check gives reasons.
"""

import ipaddress
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

__all__ = ["Hosts"]

_ENTRY: Final = re.compile(r"\*|(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[?[0-9a-f:]*::?[0-9a-f:.]*\]?")
_SCHEMES: Final = ("file:", "chrome:")
_PRIVATE: Final = (
    *("localhost", "*.localhost", "*.local", "*.internal", "0.*", "10.*", "127.*", "169.254.*", "192.168.*"),
    *(f"172.{number}.*" for number in range(16, 32)),
    *(f"100.{number}.*" for number in range(64, 128)),
    *("*::*", "*[[]*", "[[]*", "fc*:*", "fd*:*", "fe80:*"),
)
"""Names and addresses of this machine and its networks, as patterns."""
_CHROMIUM_PRIVATE: Final = tuple(pattern for pattern in _PRIVATE if "[" not in pattern)


class Hosts:
    """The hosts of the configuration; without any, all public ones."""

    def __init__(self, entries: Sequence[str]) -> None:
        """Take the entries.

        Raises:
            ValueError: One is no host; the message is a sentence.
        """
        lowered = [entry.lower() for entry in entries]
        self.schemes = frozenset(entry for entry in lowered if entry in _SCHEMES)
        names = [entry for entry in lowered if entry not in _SCHEMES]
        for entry in names:
            if not _ENTRY.fullmatch(entry):
                raise ValueError(
                    f"'{entry}' in 'hosts' is no host: write a name or an address without scheme and port."
                )
        self.names = tuple(name.strip("[]") for name in names if name != "*")
        self.has_public = "*" in names or not names

    def flags(self) -> list[str]:
        """Return the arguments that confine Chromium."""
        blocked = _CHROMIUM_PRIVATE if self.has_public else ("*",)
        rules = [f"MAP {pattern} ~NOTFOUND" for pattern in blocked] + [f"EXCLUDE {name}" for name in self.names]
        return [
            f"--host-resolver-rules={' , '.join(rules)}",
            # UDP of WebRTC goes to literal addresses without the resolver
            "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
            "--webrtc-ip-handling-policy=disable_non_proxied_udp",
            "--disable-quic",
            "--no-proxy-server",
        ]

    def allows(self, host: str) -> bool:
        """Return whether a host may be reached."""
        host = host.lower().strip("[]").rstrip(".")
        if self.names_host(host):
            return True
        return self.has_public and not _is_private(host)

    def names_host(self, host: str) -> bool:
        """Return whether an entry names a host, without `*`."""
        return any(fnmatchcase(host.lower(), name) for name in self.names)

    def refusal(self, url: str) -> str | None:
        """Return why an address may not be opened, as a sentence, or nothing if it may."""
        if url == "about:blank":
            return None
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return "The address cannot be read."
        if f"{parts.scheme}:" in self.schemes:
            return None
        if parts.scheme not in {"http", "https"}:
            return f"Addresses that begin with '{parts.scheme}:' may not be opened here."
        if not self.allows(host):
            return f"The host '{host}' may not be reached from here."
        return None


def _is_private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        is_number = re.fullmatch(r"(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}", host) is not None
        return is_number or any(fnmatchcase(host, pattern) for pattern in _CHROMIUM_PRIVATE) or not host
