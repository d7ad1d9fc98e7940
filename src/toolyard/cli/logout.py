"""`toolyard logout`: forgets a login at an upstream, and has it revoked where that can be."""

import asyncio

from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.parser import Options
from toolyard.cli.signing import Place, place_of
from toolyard.cli.terminal import Terminal
from toolyard.providers.upstream.login.credentials import load_signing
from toolyard.providers.upstream.login.troubles import LoginError
from toolyard.providers.upstream.login.vault import Vault
from toolyard.providers.upstream.settings import Login
from toolyard.signals import run as run_until_told

__all__ = ["run"]


def run(options: Options, terminal: Terminal) -> int:
    """Forget a login; that it could not be revoked is said, and keeps nobody from forgetting it."""
    place = place_of(options, terminal)
    try:
        said = run_until_told(_sign_out(place))
    except LoginError as error:
        raise CommandError(error.message, status=DEFECT) from error
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
