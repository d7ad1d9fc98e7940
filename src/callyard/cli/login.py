"""`callyard login` and `callyard logout`: OAuth at an upstream, with a browser, and the stored login."""

import os
import threading
import time
import webbrowser
from pathlib import Path
from typing import NamedTuple

from callyard.cli.parser import Options
from callyard.cli.targets import config_from, project_dir_of
from callyard.cli.terminal import Terminal
from callyard.config import Config, ConfigError
from callyard.config.read import is_upstream_name
from callyard.launch.build import find_shared_store, make_vaults
from callyard.launch.errors import DEFECT, LaunchError, as_launch_error
from callyard.launch.signals import run
from callyard.model.names import did_you_mean
from callyard.providers.openapi.provider import login_of
from callyard.providers.openapi.reading import DocumentError
from callyard.providers.upstream.catalogue import folder_of
from callyard.providers.upstream.oauth.credentials import load_signin, open_vault, sign_in_and_store
from callyard.providers.upstream.oauth.vault import LoginError, LoginVault, StoredLogin, is_known, stored_url
from callyard.providers.upstream.settings import Login, UpstreamSettings

__all__ = ["run_login", "run_logout"]


class _Upstream(NamedTuple):
    """An upstream over HTTP, and the folder of its stored login."""

    name: str
    settings: UpstreamSettings
    folder: Path
    vault: LoginVault


def _find_upstream(options: Options, terminal: Terminal) -> _Upstream:
    if "://" in options.name:
        options.target, options.name = options.name, ""
    config = config_from(options, terminal, signs_in=True)
    name = options.name or next(iter(config.upstreams), "")
    state = project_dir_of(config)
    folder = folder_of(state, name)
    settings = None
    if is_upstream_name(name) and name not in {*config.upstreams, *config.apis}:
        with as_launch_error(LoginError, status=DEFECT):  # of a yard with another configuration that was refused there
            address = stored_url(folder)
        settings = None if address is None else UpstreamSettings(url=address)
    settings = settings or _settings(config, name, terminal, state=state)
    if settings.url is None:
        raise LaunchError(f"'{name}' is a program, which has no login.")
    vaults = make_vaults(config)
    if vaults is None and find_shared_store(config) is not None:
        terminal.say("CALLYARD_SECRET is not set here, so the login is on this machine, and no other uses it.")
    return _Upstream(name, settings, folder, open_vault(vaults, name, settings, folder))


def _settings(config: Config, name: str, terminal: Terminal, *, state: Path) -> UpstreamSettings:
    api = config.apis.get(name)
    if api is not None:
        with as_launch_error(ConfigError, DocumentError):
            return run(login_of(name, api.resolve(os.environ, terminal.say), folder_of(state, name)))
    entry = config.upstreams.get(name)
    if entry is None:
        meant = " Name one of the configuration, or a URL."
        if config.upstreams:
            meant = did_you_mean(name, list(config.upstreams))
        if is_upstream_name(name) and any(is_known(folder_of(project, name)) for project in state.parent.glob("*")):
            meant = " Another project has one: run this in its folder, or name its file with '--config'."
        raise LaunchError(f"There is no upstream '{name}'.{meant}")
    with as_launch_error(ConfigError):
        return entry.resolve(os.environ, terminal.say)


def run_login(options: Options, terminal: Terminal) -> int:
    """Sign in, store the login, and print who signed in and what was granted."""
    upstream = _find_upstream(options, terminal)
    if upstream.settings.authorizes:
        why = "gets the 'Authorization' of its 'headers' instead of a login. Remove that header first."
        raise LaunchError(f"'{upstream.name}' {why}")
    with as_launch_error(LoginError, status=DEFECT):
        login = run(_sign_in(upstream, options, terminal))
    for line in _describe(upstream, login):
        terminal.write(line)
    return 0


async def _sign_in(upstream: _Upstream, options: Options, terminal: Terminal) -> StoredLogin:
    def show(address: str) -> None:
        terminal.say(f"Sign in at '{upstream.name}' in a browser:\n{address}")
        if not options.no_browser:
            # in a daemon thread, because some browsers block until they are closed
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    return await sign_in_and_store(upstream.name, upstream.settings, upstream.vault, show=show, seconds=options.timeout)


def _describe(upstream: _Upstream, login: StoredLogin) -> list[str]:
    user = f" as '{login.user}'" if login.user else ""
    issuer = f" by '{login.client.issuer}'" if login.client is not None else ""
    lines = [f"Signed in at '{upstream.name}'{user}{issuer}."]
    token = login.token
    if token is None:
        return lines
    if token.scope:
        lines.append(f"Granted: {', '.join(token.scope.split())}.")
    settings = upstream.settings.login
    if token.refresh_token is not None or (settings is not None and settings.grant != "authorization_code"):
        lines.append("It is renewed when it expires.")
    elif token.expires is not None:
        minutes = max(round((token.expires - time.time()) / 60), 1)
        duration = f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"  # noqa: PLR2004 - hours from two hours on
        lines.append(f"It expires in {duration}.")
    return lines


def run_logout(options: Options, terminal: Terminal) -> int:
    """Revoke and delete a login; it is deleted even if it cannot be revoked."""
    upstream = _find_upstream(options, terminal)
    with as_launch_error(LoginError, status=DEFECT):
        terminal.write(run(_sign_out(upstream)))
    return 0


async def _sign_out(upstream: _Upstream) -> str:
    try:
        return await _delete_login(upstream)
    finally:
        await upstream.vault.close()


async def _delete_login(upstream: _Upstream) -> str:
    login, problem, revoked, vault = None, "", False, upstream.vault
    async with vault.locked():
        try:
            login, _ = await vault.load()
            if login is not None and login.token is not None:
                revoked = await load_signin().revoke(upstream.name, login, upstream.settings.login or Login())
        except LoginError as error:
            problem = f" It could not be revoked: {error.message}"
        await vault.remove()
    if (login is None or login.token is None) and not problem:
        return f"Nobody was signed in at '{upstream.name}'."
    return f"The login at '{upstream.name}' is deleted{' and revoked' if revoked else ''}.{problem}"
