"""The catalogue of an upstream: everything it lists, unchanged, and the names under which that is published.

The catalogue is stored on disk, so that the yard can list tools before there is a connection.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from callyard._internal.files import read_private, write_atomically
from callyard.model.envelope import fingerprint
from callyard.providers.upstream.handshake import Handshake
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.session import ClientSession
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.wire.messages import METHOD_NOT_FOUND, Fault

__all__ = [
    "Catalogue",
    "Item",
    "endpoint_hash",
    "fetch",
    "folder_of",
    "load",
    "publish_uris",
    "published_names",
    "published_uri",
    "save",
    "upstream_uri",
]

Item = dict[str, Any]
"""A tool, resource, template or prompt as the upstream lists it."""
_FILE: Final = "catalogue.json"
_PAGES: Final = 1000
_ITEMS: Final = 10_000
_BYTES: Final = 64 * 1024 * 1024
_LISTS: Final = {
    "tools": ("tools", "tools/list", "tools"),
    "resources": ("resources", "resources/list", "resources"),
    "templates": ("resources", "resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts", "prompts/list", "prompts"),
}
"""The lists of a catalogue: the capability, the method, and the key of its result."""
_OUTSIDE: Final = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARACTERS: Final = 6
_CLOCK_SECONDS: Final = 5.0
"""How far a clock may be put back without a new fetch."""


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream's description of itself and of everything it lists."""

    endpoint_hash: str = msgspec.field(name="reached_by")
    """A hash of the command or URL; the catalogue of another endpoint is not used."""
    seen: float
    """When it was fetched, in seconds of the wall clock."""
    version: str
    """The protocol version."""
    server: Mapping[str, Any] = {}
    capabilities: Mapping[str, Any] = {}
    instructions: str = ""
    tools: tuple[Item, ...] = ()
    resources: tuple[Item, ...] = ()
    templates: tuple[Item, ...] = ()
    prompts: tuple[Item, ...] = ()

    @property
    def age(self) -> float:
        """Return the seconds since it was fetched; without end if that is in the future, because then a clock was wrong."""
        age = time.time() - self.seen
        return age if age > -_CLOCK_SECONDS else math.inf


def endpoint_hash(settings: UpstreamSettings) -> str:
    """Return a hash of the endpoint, without tokens and other settings that may change for the same server."""
    parts = [settings.command, settings.args, settings.cwd, settings.url, settings.carrier]
    return fingerprint(parts)[:16]


def folder_of(state: Path, name: str) -> Path:
    """Return the folder that stores everything about an upstream."""
    return state / "upstreams" / name


def load(folder: Path, settings: UpstreamSettings | None = None) -> Catalogue | None:
    """Return the stored catalogue, or None if there is none or it belongs to another endpoint than the settings'."""
    with suppress(OSError, msgspec.DecodeError):
        catalogue = msgspec.json.decode(read_private(folder / _FILE), type=Catalogue)
        return catalogue if settings is None or catalogue.endpoint_hash == endpoint_hash(settings) else None
    return None


def save(folder: Path, catalogue: Catalogue) -> None:
    """Store a catalogue.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(folder / _FILE, msgspec.json.encode(catalogue))


async def fetch(session: ClientSession, handshake: Handshake, *, endpoint_hash: str) -> Catalogue:
    """Fetch all lists of an upstream.

    Raises:
        Fault: The upstream answered a list with an error.
        LinkError: The connection is lost, or a list is too long or invalid.
    """
    lists = {
        name: await _fetch_list(session, method, key)
        for name, (capability, method, key) in _LISTS.items()
        if capability in handshake.capabilities or (name == "tools" and not handshake.capabilities)
    }
    return Catalogue(
        endpoint_hash=endpoint_hash,
        seen=time.time(),
        version=handshake.version.name,
        server=handshake.server,
        capabilities=handshake.capabilities,
        instructions=handshake.instructions,
        **lists,
    )


async def _fetch_list(session: ClientSession, method: str, key: str) -> tuple[Item, ...]:
    """Fetch all pages of a list, within limits that a hostile upstream cannot exceed."""
    requests = session.requests
    assert requests is not None  # noqa: S101 - set by the handshake
    items: list[Item] = []
    cursor: str | None = None
    cursors: set[str] = set()
    size = 0
    for _ in range(_PAGES):
        try:
            result = await session.request(requests, method, {} if cursor is None else {"cursor": cursor})
            page = msgspec.json.decode(result, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise LinkError("unavailable", f"'{session.name}' answered '{method}' with something that is no list.") from error
        except Fault as fault:
            if fault.code == METHOD_NOT_FOUND and cursor is None:
                return ()
            raise
        listed = page.get(key)
        items += [item for item in cast("list[Any]", listed) if isinstance(item, dict)] if isinstance(listed, list) else []
        size += len(result)
        if len(items) > _ITEMS or size > _BYTES:
            raise LinkError("unavailable", f"'{session.name}' lists more than {_ITEMS} {key}, or {_BYTES} bytes of them.")
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return tuple(items)
        if cursor in cursors:
            break
        cursors.add(cursor)
    raise LinkError("unavailable", f"The list '{key}' of '{session.name}' has no end.")


def published_names(prefix: str, names: Sequence[str], *, longest: int) -> dict[str, str]:
    """Return the published name for each of an upstream's names; one that is cut or ambiguous ends with a hash."""
    candidates = {name: _joined(prefix, _OUTSIDE.sub("_", name)) for name in names}
    counts = Counter(candidates.values())
    published: dict[str, str] = {}
    for name, candidate in candidates.items():
        is_changed = _joined(prefix, name) != candidate
        if len(candidate) > longest or (is_changed and counts[candidate] > 1) or not candidate:
            digest = sha256(name.encode("utf-8", "replace")).hexdigest()[:_HASH_CHARACTERS]
            published[name] = f"{candidate[: longest - _HASH_CHARACTERS - 1]}_{digest}"
        else:
            published[name] = candidate
    return published


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}__{name}" if prefix else name


def published_uri(prefix: str, uri: str) -> str:
    """Return the published URI of an upstream's resource; the scheme names the upstream."""
    return f"{_scheme(prefix)}+{uri}" if prefix else uri


def upstream_uri(prefix: str, uri: str) -> str:
    """Return the upstream's own URI of a published resource."""
    return uri.removeprefix(f"{_scheme(prefix)}+") if prefix else uri


def _scheme(prefix: str) -> str:
    """Return a prefix as a valid URI scheme: without underscores, which a dot replaces because no prefix has one."""
    scheme = _OUTSIDE.sub("-", prefix).replace("_", ".")
    return scheme if scheme[:1].isalpha() else f"x{scheme}"


def publish_uris(prefix: str, value: Any) -> Any:
    """Return content or messages of an upstream with all resource URIs replaced by the published ones."""
    if isinstance(value, list):
        return [publish_uris(prefix, part) for part in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    nested = {key: publish_uris(prefix, fields[key]) for key in ("content", "contents", "resource", "messages") if key in fields}
    uri = fields.get("uri")
    return {**fields, **nested, **({"uri": published_uri(prefix, uri)} if isinstance(uri, str) else {})}
