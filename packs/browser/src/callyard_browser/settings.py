"""The table `[pack.browser]`."""

from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

__all__ = ["LOOPBACK", "App", "Attachable", "BrowserConfig", "check_config"]

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class App(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program of `[pack.browser.apps]` that is built on Chromium, such as one of Electron."""

    command: tuple[str, ...]
    """Program and arguments; `{profile}` is an empty folder for its profile."""
    env: dict[str, str] = {}
    cwd: str | None = None


class Attachable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A running browser of `[pack.browser.attach]`."""

    url: str
    """Its debug address on this machine, such as `http://127.0.0.1:9222`."""
    unconfined: bool = False
    """Whether it may be used although `hosts` cannot confine it."""


class BrowserConfig(Struct, frozen=True, kw_only=True):
    """The table `[pack.browser]`."""

    executable: str = ""
    """The browser to start; without one `chromium`, `google-chrome` or Playwright's own."""
    sandbox: bool = True
    """Whether Chromium uses its sandbox; as root it cannot."""
    hosts: tuple[str, ...] = ()
    """The hosts that pages may reach: `example.com`, `*.example.com`, or `*` for all public ones.

    `file:` and `chrome:` allow these addresses.
    """
    files_root: str = ""
    """The folder of the files that may be uploaded."""
    apps: dict[str, App] = {}
    attach: dict[str, Attachable] = {}
    secret_hosts: dict[str, tuple[str, ...]] = {}
    """The hosts where each secret may be typed."""


def check_config(config: BrowserConfig, secrets: tuple[str, ...]) -> None:
    """Check what the types of the fields cannot say.

    Raises:
        ValueError: Something is wrong; the message is a sentence.
    """
    for name, target in config.attach.items():
        address = urlsplit(target.url)
        if address.scheme not in {"http", "ws"} or address.hostname not in LOOPBACK or address.port is None:
            raise ValueError(f"'attach.{name}' must be an address of this machine, such as 'http://127.0.0.1:9222'.")
        if config.hosts and not target.unconfined:
            raise ValueError(f"'hosts' cannot confine 'attach.{name}'. Set 'unconfined = true' there, or leave it out.")
    for name, app in config.apps.items():
        if not app.command:
            raise ValueError(f"'apps.{name}' has an empty command.")
    unknown = [name for name in config.secret_hosts if name not in secrets]
    if unknown:
        raise ValueError(f"'secret_hosts' names '{unknown[0]}', which is not in the table of secrets.")
