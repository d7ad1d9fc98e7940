"""Fetching: everything that an upstream lists, page by page, as one catalogue."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from toolyard.providers.upstream.catalogue import Catalogue, Item
from toolyard.providers.upstream.greeting import Greeting
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.peer import Peer
from toolyard.wire.faults import METHOD_NOT_FOUND, Fault
from toolyard.wire.requests import Requests

__all__ = ["fetch"]

_PAGES: Final = 1000
_ITEMS: Final = 10_000
_BYTES: Final = 64 * 1024 * 1024
_LISTS: Final = {
    "tools": ("tools", "tools/list", "tools"),
    "resources": ("resources", "resources/list", "resources"),
    "templates": ("resources", "resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts", "prompts/list", "prompts"),
}
"""What a catalogue has: the capability that goes with it, the method that lists it, and what the list is called there."""


async def fetch(peer: Peer, greeting: Greeting, *, reached_by: str, now: Callable[[], float] = time.time) -> Catalogue:
    """Return all that an upstream lists.

    Raises:
        Fault: It answered a list with an error.
        LinkError: It went away, or what it lists has no end.
    """
    requests = peer.requests
    assert requests is not None  # noqa: S101 - it was greeted
    lists = {
        name: await _whole(peer, requests, method, key)
        for name, (capability, method, key) in _LISTS.items()
        if capability in greeting.capabilities or (name == "tools" and not greeting.capabilities)
    }
    return Catalogue(
        reached_by=reached_by,
        seen=now(),
        version=greeting.version.name,
        server=greeting.server,
        capabilities=greeting.capabilities,
        instructions=greeting.instructions,
        **lists,
    )


async def _whole(peer: Peer, requests: Requests, method: str, key: str) -> tuple[Item, ...]:
    items: list[Item] = []
    cursor: str | None = None
    cursors: set[str] = set()
    size = 0
    for _ in range(_PAGES):
        try:
            result = await peer.request(requests, method, {} if cursor is None else {"cursor": cursor})
        except Fault as fault:
            if fault.code == METHOD_NOT_FOUND and cursor is None:
                return ()
            raise
        page = _page(peer, method, result)
        listed = page.get(key)
        items += [item for item in cast("list[Any]", listed) if isinstance(item, dict)] if isinstance(listed, list) else []
        size += len(result)
        if len(items) > _ITEMS or size > _BYTES:
            raise LinkError("unavailable", f"'{peer.name}' lists more than {_ITEMS} {key}, or {_BYTES} bytes of them.")
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return tuple(items)
        if cursor in cursors:
            break
        cursors.add(cursor)
    raise LinkError("unavailable", f"What '{peer.name}' lists has no end.")


def _page(peer: Peer, method: str, result: msgspec.Raw) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(result, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise LinkError("unavailable", f"'{peer.name}' answered '{method}' with something that is no list.") from error
