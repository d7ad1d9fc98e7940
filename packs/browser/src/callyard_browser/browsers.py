"""The browsers of one yard: starts them for sessions, and runs the work of each tool in one."""

import asyncio
import ipaddress
import mimetypes
import os
import socket
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

from playwright.async_api import FilePayload

from callyard import Call, PackContext, Session, ToolError
from callyard_browser.driver import Driver, Started
from callyard_browser.hosts import Hosts
from callyard_browser.session import BrowserSession
from callyard_browser.settings import BrowserConfig, check_config
from callyard_browser.tab import Found, Tab

__all__ = ["Browsers"]

_STATE: Final = "browser"
_MOST_UPLOADED: Final = 32 * 1024 * 1024
_RESOLVE_S: Final = 2.0
_CLOSING_S: Final = 0.3
_UNANSWERED: Final = frozenset({"browser_gone", "dialog_open", "page_crashed", "page_hung", "tab_gone"})
"""Reasons after which the page cannot be asked for what its password fields hold."""


class Browsers:
    """What the tools of one yard share."""

    def __init__(self, context: PackContext) -> None:
        self.config = cast("BrowserConfig", context.config)
        check_config(self.config, tuple(context.secrets))
        self.hosts = Hosts(self.config.hosts)
        self.driver = Driver(context, self.hosts)
        self._context = context
        self._secret_hosts = {name: Hosts(hosts) for name, hosts in self.config.secret_hosts.items()}

    async def start(self, call: Call, starting: Coroutine[Any, Any, Started]) -> BrowserSession:
        """Start a browser, or attach to one, as the session of a call."""
        if not self.config.hosts and call.caller.identity != "local":
            starting.close()
            message = "Callers with credentials need 'hosts', which confines the browser."
            hint = "Ask the operator to set 'hosts' in '[pack.browser]'."
            raise ToolError("permission_denied", message, hint=hint, reason="hosts_required")
        started = await starting
        secrets = [self._context.secret(name) for name in self._context.secrets]
        browser = BrowserSession(started, hosts=self.hosts, secrets=secrets, is_alive=lambda: self.driver.is_alive)
        try:
            await browser.open()
            session = call.start_session(kind="browser")
        except BaseException:
            await browser.close()
            raise
        session.state[_STATE] = browser
        session.on_end(browser.close)
        return browser

    @asynccontextmanager
    async def use(self, call: Call, session: Session) -> AsyncGenerator[BrowserSession]:
        """Give the browser of a session; failures hold no masked value, and one without a browser ends the session.

        Raises:
            ToolError: `not_running` if the session has no browser, or it has ended.
        """
        browser: Any = session.state.get(_STATE)
        if not isinstance(browser, BrowserSession):
            hint = "Start one with 'browser_launch', and pass its 'session_id'."
            raise ToolError("not_running", "The session has no browser.", hint=hint)
        try:
            yield browser
        except ToolError as error:
            if error.details.get("reason") == "tab_gone" and not browser.tabs:
                await asyncio.sleep(_CLOSING_S)  # of a browser that is killed, the tabs are reported before itself
                if not browser.is_alive:
                    await call.end_session()
                    raise ToolError("not_running", "The browser has ended.", reason="browser_gone") from error
            if error.details.get("reason") not in _UNANSWERED:
                with suppress(ToolError):
                    await browser.tab.sample()
            error.message = browser.masks.masked(error.message)
            error.details = browser.masks.masked(error.details)
            if error.details.get("reason") == "browser_gone":
                await call.end_session()
            raise

    async def act(
        self, call: Call, session: Session, work: Callable[[BrowserSession], Awaitable[Found | None]]
    ) -> dict[str, Any]:
        """Act in the browser of a session, and return what changed."""
        async with self.use(call, session) as browser:
            answer = await browser.act(call, lambda _: work(browser))
            return browser.masks.masked(answer)

    async def read(self, call: Call, session: Session, work: Callable[[BrowserSession, Tab], Awaitable[Any]]) -> Any:
        """Read something in the browser of a session."""
        async with self.use(call, session) as browser:
            tab = browser.tab
            tab.check()
            found = await work(browser, tab)
            await tab.sample()
            return browser.masks.masked(found)

    async def check_address(self, address: str) -> None:
        """Check that an address may be opened.

        Raises:
            ToolError: `permission_denied`, reason `host_not_allowed`.
        """
        refusal = self.hosts.refusal(address)
        host = urlsplit(address).hostname if refusal is None else None
        if host is not None and self.hosts.has_public and host not in self.hosts.names and await _is_inside(host):
            refusal = f"The host '{host}' has an address of a private network."
        if refusal is not None:
            raise ToolError("permission_denied", refusal, reason="host_not_allowed", may_have_run=False)

    def secret_for(self, name: str, address: str) -> str:
        """Return a secret that may be typed into a page.

        Raises:
            ToolError: `permission_denied`, reason `secret_not_allowed`, if it may not, or there is none.
        """
        hosts = self._secret_hosts.get(name)
        host = urlsplit(address).hostname or ""
        if hosts is None or not hosts.names_host(host):
            message = f"The secret '{name}' may not be typed at '{host}'."
            hint = "The operator names its hosts in '[pack.browser.secret_hosts]'."
            raise ToolError("permission_denied", message, hint=hint, reason="secret_not_allowed", may_have_run=False)
        return self._context.secret(name)

    async def files(self, call: Call, paths: list[str]) -> list[FilePayload]:
        """Return the files of paths below the configured folder, or of handles.

        Raises:
            ToolError: `not_found` if there is none, `too_large` if they are together.
        """
        files = [await self._file(call, path) for path in paths]
        size = sum(len(file["buffer"]) for file in files)
        if size > _MOST_UPLOADED:
            raise ToolError("too_large", "The files have more than 32 MB.", bytes=size, limit=_MOST_UPLOADED)
        return files

    async def _file(self, call: Call, path: str) -> FilePayload:
        if path.startswith("r_"):
            stored = await call.stored(path)
            if not isinstance(stored, dict) or not {"file", "base64"} <= set(cast("dict[str, Any]", stored)):
                raise _no_file(path)
            file = cast("dict[str, str]", stored)
            return _payload(file["file"], b64decode(file["base64"]))
        content = await asyncio.to_thread(self._read_file, path)
        return _payload(Path(path).name, content)

    def _read_file(self, path: str) -> bytes:
        """Return a file below the configured folder; a link that leads out of it is none."""
        if not self.config.files_root:
            raise _no_file(path)
        root = Path(self.config.files_root).expanduser().resolve()
        try:
            file = (root / path).resolve(strict=True)
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as opened:  # noqa: PTH123 - of the descriptor that was checked
                real = Path(f"/proc/self/fd/{descriptor}").readlink()
                if not real.is_relative_to(root) or not file.is_file():
                    raise _no_file(path)
                return opened.read(_MOST_UPLOADED + 1)
        except (OSError, ValueError) as error:
            raise _no_file(path) from error


def _no_file(path: str) -> ToolError:
    message = f"There is no file '{path[:200]}' that may be uploaded."
    hint = "Name a file below 'files_root' of '[pack.browser]', or the handle of a download."
    return ToolError("not_found", message, hint=hint, reason="unknown_file", may_have_run=False)


def _payload(name: str, content: bytes) -> FilePayload:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return {"name": name, "mimeType": kind, "buffer": content}


async def _is_inside(host: str) -> bool:
    """Return whether a name leads to an address of a private network."""
    try:
        async with asyncio.timeout(_RESOLVE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return False
    return any(not ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_global for entry in found)
