"""Protocol versions of MCP that are supported, and how they differ.

Handshake versions start a session with `initialize`. Modern versions are stateless: every request carries what a server
needs.
"""

from typing import Final

import msgspec

__all__ = ["HANDSHAKE", "LATEST", "LATEST_HANDSHAKE", "MODERN", "VERSIONS", "Version", "negotiated"]


class Version(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One protocol version and its features."""

    name: str
    modern: bool = False
    """Stateless: no handshake, no session, no requests from the server."""
    batches: bool = False
    annotations: bool = True
    """Tool annotations, progress messages and audio blocks."""
    structured: bool = True
    """Structured content, resource links, titles, output schemas and elicitation."""
    modes: bool = True
    """Elicitation with a mode: form or URL."""
    completes_pages: bool = False
    """Tells clients when the page of an elicitation by URL is done."""
    methods: frozenset[str]


_LISTS: Final = frozenset({"prompts/list", "resources/list", "resources/templates/list", "tools/list"})
_TASKS: Final = frozenset({"tasks/cancel", "tasks/get", "tasks/update"})
_COMMON: Final = _LISTS | _TASKS | {"completion/complete", "prompts/get", "resources/read", "tools/call"}
_OLD: Final = _COMMON | {"initialize", "logging/setLevel", "ping", "resources/subscribe", "resources/unsubscribe"}
_NEW: Final = _COMMON | {"server/discover", "subscriptions/listen"}

VERSIONS: Final[dict[str, Version]] = {
    version.name: version
    for version in (
        Version(name="2024-11-05", batches=True, annotations=False, structured=False, modes=False, methods=_OLD),
        Version(name="2025-03-26", batches=True, structured=False, modes=False, methods=_OLD),
        Version(name="2025-06-18", modes=False, methods=_OLD),
        Version(name="2025-11-25", completes_pages=True, methods=_OLD),
        Version(name="2026-07-28", modern=True, methods=_NEW),
    )
}
HANDSHAKE: Final = tuple(version.name for version in VERSIONS.values() if not version.modern)
MODERN: Final = tuple(version.name for version in VERSIONS.values() if version.modern)
LATEST: Final = VERSIONS[MODERN[-1]]
LATEST_HANDSHAKE: Final = VERSIONS[HANDSHAKE[-1]]


def negotiated(requested: object) -> Version:
    """Return the version of a handshake: the requested one if it is supported, or our latest handshake version."""
    return VERSIONS[str(requested)] if requested in HANDSHAKE else LATEST_HANDSHAKE
