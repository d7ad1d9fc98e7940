"""Upstreams that commands sign in at or out of: by their name in the configuration, or by an address."""

import os
from pathlib import Path
from typing import NamedTuple

from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.parser import Options
from toolyard.cli.settings import settings_of_options
from toolyard.cli.terminal import Terminal
from toolyard.config import Config, ConfigError
from toolyard.config.naming import is_name
from toolyard.providers.upstream.catalogue import folder_of
from toolyard.providers.upstream.login.troubles import LoginError
from toolyard.providers.upstream.login.vault import kept_address
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.schema import near_miss
from toolyard.state_dir import find_state_dir

__all__ = ["Place", "place_of"]


class Place(NamedTuple):
    """An upstream over HTTP, and where what is kept of it lies."""

    name: str
    settings: UpstreamSettings
    folder: Path


def place_of(options: Options, terminal: Terminal) -> Place:
    """Return the upstream that is meant.

    Raises:
        CommandError: There is none, or it is one that nobody signs in at.
    """
    if "://" in options.name:
        options.target, options.name = options.name, ""
    config = settings_of_options(options, terminal)
    name = options.name or next(iter(config.upstreams), "")
    try:
        folder = folder_of(find_state_dir(config.settings.state_dir), name)
    except OSError as error:
        raise CommandError(f"The state directory cannot be found: {error.strerror}.") from error
    settings = _refused_by(folder) if is_name(name) and name not in config.upstreams else None
    settings = settings or _settings(config, name, terminal)
    if settings.url is None:
        raise CommandError(f"'{name}' is a program, and nobody signs in there.")
    return Place(name, settings, folder)


def _refused_by(folder: Path) -> UpstreamSettings | None:
    """Return the upstream of a yard that read another configuration, such as a client's file, if it was refused there."""
    try:
        address = kept_address(folder)
    except LoginError as error:
        raise CommandError(error.message, status=DEFECT) from error
    return None if address is None else UpstreamSettings(url=address)


def _settings(config: Config, name: str, terminal: Terminal) -> UpstreamSettings:
    written = config.upstreams.get(name)
    if written is None:
        near = near_miss(name, list(config.upstreams))
        meant = f" Did you mean '{near}'?" if near else " Name one of the configuration, or an address." if not config.upstreams else ""
        raise CommandError(f"There is no upstream '{name}'.{meant}")
    try:
        return written.settled(os.environ, terminal.say)
    except ConfigError as error:
        raise CommandError(str(error)) from error
