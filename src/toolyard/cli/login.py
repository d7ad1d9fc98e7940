"""`toolyard login`: has a person sign in at an upstream, in a browser, and keeps what that gives."""

import asyncio
import threading
import time
import webbrowser

from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.parser import Options
from toolyard.cli.signing import Place, place_of
from toolyard.cli.terminal import Terminal
from toolyard.providers.upstream.login.credentials import load_signing
from toolyard.providers.upstream.login.papers import Kept
from toolyard.providers.upstream.login.troubles import LoginError
from toolyard.providers.upstream.login.vault import Vault
from toolyard.signals import run as run_until_told

__all__ = ["run"]


def run(options: Options, terminal: Terminal) -> int:
    """Sign in, keep the login, and say who signed in and what was granted."""
    place = place_of(options, terminal)
    if place.settings.authorizes:
        raise CommandError(f"'{place.name}' is shown the 'Authorization' in its 'headers', and no login. Take that away first.")
    try:
        kept = run_until_told(_sign_in(place, options, terminal))
    except LoginError as error:
        raise CommandError(error.message, status=DEFECT) from error
    for line in _told(place, kept):
        terminal.write(line)
    return 0


async def _sign_in(place: Place, options: Options, terminal: Terminal) -> Kept:
    def show(address: str) -> None:
        terminal.say(f"Sign in at '{place.name}' in a browser:\n{address}")
        if not options.no_browser:
            # in a thread, and none that is waited for: some browsers are there until they are closed
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    vault = Vault(place.folder, place.settings.url or "")
    before = await asyncio.to_thread(vault.read)
    kept: Kept = await load_signing().sign_in(place.name, place.settings, before, show=show, seconds=options.timeout)
    async with vault.locked():
        await asyncio.to_thread(vault.write, kept)
    return kept


def _told(place: Place, kept: Kept) -> list[str]:
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
