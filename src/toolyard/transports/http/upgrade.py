"""Upgrades: the wish to speak something else than HTTP/1.1, which some clients always have and we are free not to grant."""

import re
from typing import Final

__all__ = ["without_upgrade"]

_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes:
    """Return what came with the wish taken out of its head, because a parser that sees it takes the body for something else."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + rest
