"""`toolyard login`: has a person sign in at an upstream, in a browser, and keeps what that gives."""

import asyncio
import os
import threading
import time
import webbrowser
from pathlib import Path
from typing import NamedTuple

from toolyard._internal.files import find_state_dir
from toolyard.cli.parser import Options
from toolyard.cli.targets import settings_of_options
from toolyard.cli.terminal import Terminal
from toolyard.config import Config, ConfigError
from toolyard.config.read import is_name
from toolyard.launch.errors import DEFECT, LaunchError
from toolyard.launch.signals import run as run_until_told
from toolyard.model.names import did_you_mean
from toolyard.providers.upstream.catalogue import folder_of
from toolyard.providers.upstream.oauth.credentials import load_signing
from toolyard.providers.upstream.oauth.metadata import LoginError, StoredLogin
from toolyard.providers.upstream.oauth.vault import Vault, kept_address
from toolyard.providers.upstream.settings import Login, UpstreamSettings

__all__ = ["Place", "place_of", "run_login", "run_logout"]


class Place(NamedTuple):
    """An upstream over HTTP, and where what is kept of it lies."""

    name: str
    settings: UpstreamSettings
    folder: Path


def place_of(options: Options, terminal: Terminal) -> Place:
    """Return the upstream that is meant.

    Raises:
        LaunchError: There is none, or it is one that nobody signs in at.
    """
    if "://" in options.name:
        options.target, options.name = options.name, ""
    config = settings_of_options(options, terminal)
    name = options.name or next(iter(config.upstreams), "")
    try:
        folder = folder_of(find_state_dir(config.settings.state_dir), name)
    except OSError as error:
        raise LaunchError(f"The state directory cannot be found: {error.strerror}.") from error
    settings = _refused_by(folder) if is_name(name) and name not in config.upstreams else None
    settings = settings or _settings(config, name, terminal)
    if settings.url is None:
        raise LaunchError(f"'{name}' is a program, and nobody signs in there.")
    return Place(name, settings, folder)


def _refused_by(folder: Path) -> UpstreamSettings | None:
    """Return the upstream of a yard that read another configuration, such as a client's file, if it was refused there."""
    try:
        address = kept_address(folder)
    except LoginError as error:
        raise LaunchError(error.message, status=DEFECT) from error
    return None if address is None else UpstreamSettings(url=address)


def _settings(config: Config, name: str, terminal: Terminal) -> UpstreamSettings:
    written = config.upstreams.get(name)
    if written is None:
        suggestion = did_you_mean(name, config.upstreams) if config.upstreams else " Name one of the configuration, or an address."
        raise LaunchError(f"There is no upstream '{name}'.{suggestion}")
    try:
        return written.settled(os.environ, terminal.say)
    except ConfigError as error:
        raise LaunchError(str(error)) from error


def run_login(options: Options, terminal: Terminal) -> int:
    """Sign in, keep the login, and say who signed in and what was granted."""
    place = place_of(options, terminal)
    if place.settings.authorizes:
        raise LaunchError(f"'{place.name}' is shown the 'Authorization' in its 'headers', and no login. Take that away first.")
    try:
        kept = run_until_told(_sign_in(place, options, terminal))
    except LoginError as error:
        raise LaunchError(error.message, status=DEFECT) from error
    for line in _told(place, kept):
        terminal.write(line)
    return 0


async def _sign_in(place: Place, options: Options, terminal: Terminal) -> StoredLogin:
    def show(address: str) -> None:
        terminal.say(f"Sign in at '{place.name}' in a browser:\n{address}")
        if not options.no_browser:
            # in a thread, and none that is waited for: some browsers are there until they are closed
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    vault = Vault(place.folder, place.settings.url or "")
    before = await asyncio.to_thread(vault.read)
    kept: StoredLogin = await load_signing().sign_in(place.name, place.settings, before, show=show, seconds=options.timeout)
    async with vault.locked():
        await asyncio.to_thread(vault.write, kept)
    return kept


def _told(place: Place, kept: StoredLogin) -> list[str]:
    who = f" as '{kept.who}'" if kept.who else ""
    issuer = f" by '{kept.client.issuer}'" if kept.client is not None else ""
    lines = [f"Signed in at '{place.name}'{who}{issuer}."]
    token = kept.token
    if token is None:
        return lines
    if token.scope:
        lines.append(f"Granted: {', '.join(token.scope.split())}.")
    login = place.settings.login
    if token.refresh_token is not None or (login is not None and login.grant != "authorization_code"):
        lines.append("It is renewed when it runs out.")
    elif token.expires is not None:
        lines.append(f"It runs out in {_span(token.expires - time.time())}.")
    return lines


def _span(seconds: float) -> str:
    minutes = max(round(seconds / 60), 1)
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"  # noqa: PLR2004 - from two hours on, hours


def run_logout(options: Options, terminal: Terminal) -> int:
    """Forget a login; that it could not be revoked is said, and keeps nobody from forgetting it."""
    place = place_of(options, terminal)
    try:
        said = run_until_told(_sign_out(place))
    except LoginError as error:
        raise LaunchError(error.message, status=DEFECT) from error
    terminal.write(said)
    return 0


async def _sign_out(place: Place) -> str:
    vault = Vault(place.folder, place.settings.url or "")
    kept, why = None, ""
    revoked = False
    async with vault.locked():
        try:
            kept = await asyncio.to_thread(vault.read)
            if kept is not None and kept.token is not None:
                revoked = await load_signing().revoke(place.name, kept, place.settings.login or Login())
        except LoginError as error:
            why = f" It could not be revoked: {error.message}"
        await asyncio.to_thread(vault.forget)
    if (kept is None or kept.token is None) and not why:
        return f"Nobody was signed in at '{place.name}'."
    return f"The login at '{place.name}' is forgotten{' and revoked' if revoked else ''}.{why}"
