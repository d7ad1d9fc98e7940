"""Catalogues: what an upstream offers, in its own words, as it was last seen; kept on disk so that it can be listed before a connection."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from toolyard._internal.files import read_private, write_atomically
from toolyard.model.envelope import fingerprint
from toolyard.providers.upstream.handshake import Greeting
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.session import ClientSession
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.messages import METHOD_NOT_FOUND, Fault
from toolyard.wire.params import Requests

__all__ = ["Catalogue", "Item", "fetch", "folder_of", "foreign_uri", "load", "name_all", "our_uri", "reached_by", "save", "with_our_uris"]


Item = dict[str, Any]
"""A tool, resource, template or prompt as the upstream lists it."""
_FILE: Final = "catalogue.json"


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """What an upstream said of itself and of everything it has."""

    reached_by: str
    """A hash of how it is reached: with another command or address it is another upstream."""
    seen: float
    """When that was, in seconds of the wall clock."""
    version: str
    """The version of the protocol it speaks."""
    server: Mapping[str, Any] = {}
    capabilities: Mapping[str, Any] = {}
    instructions: str = ""
    tools: tuple[Item, ...] = ()
    resources: tuple[Item, ...] = ()
    templates: tuple[Item, ...] = ()
    prompts: tuple[Item, ...] = ()


def reached_by(settings: UpstreamSettings) -> str:
    """Return a hash of how an upstream is reached; what it is given besides, such as a token, may be renewed without making it another."""
    parts = [settings.command, settings.args, settings.cwd, settings.url, settings.carrier]
    return fingerprint(parts)[:16]


def folder_of(state: Path, name: str) -> Path:
    """Return where all that is kept of an upstream lies."""
    return state / "upstreams" / name


def load(folder: Path, settings: UpstreamSettings | None = None) -> Catalogue | None:
    """Return the catalogue that was kept, unless there is none, or it is of another upstream of that name than the settings'."""
    with suppress(OSError, msgspec.DecodeError):
        kept = msgspec.json.decode(read_private(folder / _FILE), type=Catalogue)
        return kept if settings is None or kept.reached_by == reached_by(settings) else None
    return None


def save(folder: Path, catalogue: Catalogue) -> None:
    """Keep a catalogue.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(folder / _FILE, msgspec.json.encode(catalogue))


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


async def fetch(peer: ClientSession, greeting: Greeting, *, reached_by: str, now: Callable[[], float] = time.time) -> Catalogue:
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


async def _whole(peer: ClientSession, requests: Requests, method: str, key: str) -> tuple[Item, ...]:
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


def _page(peer: ClientSession, method: str, result: msgspec.Raw) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(result, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise LinkError("unavailable", f"'{peer.name}' answered '{method}' with something that is no list.") from error


_OUTSIDE: Final = re.compile(r"[^A-Za-z0-9_-]")
_TAIL: Final = 6


def name_all(prefix: str, own: Sequence[str], *, longest: int) -> dict[str, str]:
    """Return what each name becomes; one that was cut, or that is no longer the only one, gets a tail made of what it was."""
    wanted = {name: _joined(prefix, _OUTSIDE.sub("_", name)) for name in own}
    often = Counter(wanted.values())
    named: dict[str, str] = {}
    for name, published in wanted.items():
        changed = _joined(prefix, name) != published
        if len(published) > longest or (changed and often[published] > 1) or not published:
            tail = sha256(name.encode("utf-8", "replace")).hexdigest()[:_TAIL]
            published = f"{published[: longest - _TAIL - 1]}_{tail}"  # noqa: PLW2901 - the same name, made to fit
        named[name] = published
    return named


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}__{name}" if prefix else name


def our_uri(prefix: str, uri: str) -> str:
    """Return the URI that an upstream's resource has here: its scheme says whose it is."""
    return f"{_scheme(prefix)}+{uri}" if prefix else uri


def foreign_uri(prefix: str, uri: str) -> str:
    """Return the URI that the upstream knows a resource by."""
    return uri.removeprefix(f"{_scheme(prefix)}+") if prefix else uri


def _scheme(prefix: str) -> str:
    """Return a prefix as a scheme may have it: underscores are no part of one, and dots no part of a prefix."""
    scheme = _OUTSIDE.sub("-", prefix).replace("_", ".")
    return scheme if scheme[:1].isalpha() else f"x{scheme}"


def with_our_uris(prefix: str, told: Any) -> Any:
    """Return what an upstream says with every URI of a resource in it made one of ours."""
    if isinstance(told, list):
        return [with_our_uris(prefix, part) for part in cast("list[Any]", told)]
    if not isinstance(told, dict):
        return told
    said = cast("dict[str, Any]", told)
    changed = {key: with_our_uris(prefix, said[key]) for key in ("content", "contents", "resource", "messages") if key in said}
    uri = said.get("uri")
    return {**said, **changed, **({"uri": our_uri(prefix, uri)} if isinstance(uri, str) else {})}
