"""Catalogues: what an upstream offers, in its own words, as it was last seen; kept on disk so that it can be listed before a connection."""

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Catalogue", "Item"]

Item = dict[str, Any]
"""A tool, resource, template or prompt as the upstream lists it."""


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
