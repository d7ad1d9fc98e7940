"""Catalogues: what an upstream offers, in its own words, as it was last seen; kept on disk so that it can be listed before a connection."""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from toolyard.envelope import encode_sorted
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.state_dir import read_private, write_atomically

__all__ = ["Catalogue", "Item", "folder_of", "load", "reached_by", "save"]

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
    return sha256(encode_sorted(parts)).hexdigest()[:16]


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
