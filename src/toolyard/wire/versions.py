"""Versions: which revisions of MCP are spoken, and in what they differ.

There are two eras. In the older one a client shakes hands (`initialize`) and its conversation has a state; in the newer one every
request brings along what a server must know.
"""

from typing import Final

import msgspec

__all__ = ["HANDSHAKE", "LATEST", "LATEST_HANDSHAKE", "MODERN", "VERSIONS", "Version", "negotiated"]


class Version(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One revision of the protocol; the fields say what came in with it and stayed, or what it alone has."""

    name: str
    modern: bool = False
    """Stateless: no handshake, no session, no requests from the server."""
    batches: bool = False
    """Several messages in one array."""
    annotations: bool = True
    """Tools say what they do to the world, progress may have words, and there are sounds."""
    structured: bool = True
    """Results have structured content and links to resources, tools a title and an output schema, and persons can be asked."""
    modes: bool = True
    """A question to a person says that it is a form."""
    methods: frozenset[str]


_COMMON: Final = frozenset(
    {
        "completion/complete",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/templates/list",
        "tools/call",
        "tools/list",
    }
)
_OLD: Final = _COMMON | {"initialize", "logging/setLevel", "ping", "resources/subscribe", "resources/unsubscribe"}
_NEW: Final = _COMMON | {"server/discover", "subscriptions/listen"}

VERSIONS: Final[dict[str, Version]] = {
    version.name: version
    for version in (
        Version(name="2024-11-05", batches=True, annotations=False, structured=False, modes=False, methods=_OLD),
        Version(name="2025-03-26", batches=True, structured=False, modes=False, methods=_OLD),
        Version(name="2025-06-18", modes=False, methods=_OLD),
        Version(name="2025-11-25", methods=_OLD),
        Version(name="2026-07-28", modern=True, methods=_NEW),
    )
}
HANDSHAKE: Final = tuple(version.name for version in VERSIONS.values() if not version.modern)
MODERN: Final = tuple(version.name for version in VERSIONS.values() if version.modern)
LATEST: Final = VERSIONS[MODERN[-1]]
LATEST_HANDSHAKE: Final = VERSIONS[HANDSHAKE[-1]]


def negotiated(wanted: object) -> Version:
    """Return the version that a handshake ends with: the one that is wanted, or our newest that has a handshake."""
    return VERSIONS[str(wanted)] if wanted in HANDSHAKE else LATEST_HANDSHAKE
