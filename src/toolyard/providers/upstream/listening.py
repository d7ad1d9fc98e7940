"""Listening: asking an upstream of the newer era to tell of changes; those of the older one do so unasked."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from toolyard.providers.upstream.connecting import Connection
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.peer import ALONE
from toolyard.wire.faults import Fault

__all__ = ["hear_changes", "uri_of"]

_PAUSE: Final = 5.0
_TIMES: Final = 100
_WANTED: Final = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}
_log = logging.getLogger(__name__)


class _Updated(msgspec.Struct):
    uri: str


async def hear_changes(connection: Connection) -> None:
    """Keep one request open on which changes are told, for as long as the upstream cares to."""
    wanted = _wanted(connection.greeting.capabilities)
    if not connection.requests.version.modern or not wanted:
        return
    for _ in range(_TIMES):
        try:
            await connection.request("subscriptions/listen", {"notifications": wanted}, name=None, behalf=ALONE)
        except (Fault, LinkError) as error:
            _log.info("upstream_tells_no_changes upstream=%s why=%s", connection.peer.name, error)
            return
        await asyncio.sleep(_PAUSE)  # one that ends the request at once is not asked again at once


def uri_of(params: msgspec.Raw) -> str | None:
    """Return which resource a note of a change is about, if it says so."""
    try:
        return msgspec.json.decode(params or b"{}", type=_Updated).uri
    except msgspec.DecodeError:
        return None


def _wanted(capabilities: Mapping[str, Any]) -> dict[str, bool]:
    """Return what an upstream says that it tells of."""
    told = {key: capabilities.get(kind) for kind, key in _WANTED.items()}
    return {key: True for key, value in told.items() if isinstance(value, dict) and cast("dict[str, Any]", value).get("listChanged")}
