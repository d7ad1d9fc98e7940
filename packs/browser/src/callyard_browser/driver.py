"""The driver of a yard's browsers: one Playwright, started when first needed, and the browsers that it started."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

from playwright.async_api import Browser, BrowserContext, Error, Playwright, async_playwright

from callyard import KeptProgram, PackContext, ToolError
from callyard_browser.hosts import Hosts
from callyard_browser.processes import children, end_processes, is_running, make_run_folder, remove, sweep, users_of
from callyard_browser.settings import App, BrowserConfig

__all__ = ["CLOSE_S", "Driver", "Started"]

CLOSE_S: Final = 1.5
"""Seconds that a browser or driver has to close before its processes are killed."""
_LAUNCH_S: Final = 25.0
_MOST_BROWSERS: Final = 4
_NAMES: Final = ("chromium", "google-chrome")
_ADDRESS: Final = re.compile(rb"DevTools listening on (ws://\S+)")
_LATE: Final[set["asyncio.Future[None]"]] = set()
_INSTALL: Final = (
    "Install one with 'apt-get install chromium' or 'python -m playwright install chromium', or name it as"
)


class Started:
    """A browser that a session uses, and how it ends."""

    def __init__(self, context: BrowserContext, stack: AsyncExitStack, *, kind: str) -> None:
        self.context = context
        self.kind = kind
        self._stack = stack

    async def close(self) -> None:
        """End the browser, or leave the one that was attached."""
        await self._stack.aclose()


class Driver:
    """Starts browsers for the sessions of one yard."""

    def __init__(self, pack: PackContext, hosts: Hosts) -> None:
        self._pack = pack
        self._config = cast("BrowserConfig", pack.config)
        self._hosts = hosts
        self._folder = Path()
        self._lock = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._pids: set[int] = set()
        self._count = 0
        self._open = 0
        self._attached: set[str] = set()
        self._app_ports: set[str] = set()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Sweep what earlier processes left, and end the driver with the context."""
        folder = self._pack.folder()
        await sweep(folder)
        self._folder = make_run_folder(folder)
        try:
            yield
        finally:
            await self._stop_driver()
            await end_processes(users_of(self._folder))
            await remove(self._folder)

    @property
    def is_alive(self) -> bool:
        """Return whether the driver runs."""
        return any(is_running(pid) for pid in self._pids)

    async def _driver(self) -> Playwright:
        """Return the running driver; one that died is replaced."""
        async with self._lock:
            if self._playwright is not None and not self.is_alive:
                await self._stop_driver()
            if self._playwright is None:
                before = children(os.getpid())
                try:
                    self._playwright = await async_playwright().start()
                except (Error, OSError) as error:
                    raise ToolError("upstream_unavailable", "The driver of the browser does not start.") from error
                self._pids = children(os.getpid()) - before
            return self._playwright

    async def _stop_driver(self) -> None:
        playwright, self._playwright = self._playwright, None
        if playwright is None:
            return
        stopping = asyncio.ensure_future(playwright.stop())
        await asyncio.wait((stopping,), timeout=CLOSE_S)
        await end_processes({pid for pid in self._pids if is_running(pid)})
        await asyncio.wait((stopping,), timeout=CLOSE_S)
        stopping.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await stopping

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[Path]:
        """Take one of the places for browsers, with a folder, until the context ends."""
        if self._open >= _MOST_BROWSERS:
            hint = "Stop one with 'browser_stop', or wait until one is idle."
            raise ToolError("overloaded", f"There may be {_MOST_BROWSERS} browsers at a time.", hint=hint)
        self._open += 1
        self._count += 1
        folder = self._folder / f"b{self._count}"
        try:
            folder.mkdir(mode=0o700)
            yield folder
        except OSError as error:
            raise ToolError("upstream_unavailable", "The folder of the browser cannot be written.") from error
        finally:
            self._open -= 1
            await end_processes(users_of(folder))
            await remove(folder)

    async def launch(self) -> Started:
        """Start Chromium with a fresh profile.

        Raises:
            ToolError: `upstream_unavailable` if there is none or it does not start, `overloaded` if there are enough.
        """
        async with AsyncExitStack() as stack:
            folder = await stack.enter_async_context(self._place())
            playwright = await self._driver()
            executable = self._executable(playwright)
            try:
                launching = playwright.chromium.launch_persistent_context(
                    folder / "profile",
                    executable_path=executable,
                    artifacts_dir=folder / "artifacts",
                    downloads_path=folder / "downloads",
                    args=self._hosts.flags(),
                    chromium_sandbox=self._config.sandbox and os.geteuid() != 0,
                    headless=True,
                    accept_downloads=True,
                    handle_sigint=False,
                    handle_sigterm=False,
                    handle_sighup=False,
                    timeout=_LAUNCH_S * 1000,
                )
                context = await _finished(launching)
            except Error as error:
                hint = "Look at the setting 'executable', and whether Chromium can use its sandbox here."
                message = "The browser does not start."
                raise ToolError("upstream_unavailable", message, hint=hint, reason="launch_failed") from error
            stack.push_async_callback(_close, context)
            return Started(context, stack.pop_all(), kind="launched")

    def _executable(self, playwright: Playwright) -> str:
        configured = self._config.executable
        found = shutil.which(configured) if configured else next(filter(None, map(shutil.which, _NAMES)), None)
        own = playwright.chromium.executable_path
        if found is None and not configured and Path(own).is_file():
            found = own
        if found is None:
            what = f"'{configured}' is no program here." if configured else "There is no browser here."
            hint = f"{_INSTALL} 'executable' in '[pack.browser]'."
            raise ToolError("upstream_unavailable", what, hint=hint, reason="no_browser")
        return found

    async def start_app(self, name: str) -> Started:
        """Start a program of the configuration and connect to its debug port.

        Raises:
            ToolError: `not_found` if there is none of that name, `upstream_unavailable` if it does not start.
        """
        app = self._config.apps.get(name)
        if app is None:
            known = sorted(self._config.apps)
            raise ToolError("not_found", f"No app '{name}' is configured.", reason="unknown_app", known=known)
        async with AsyncExitStack() as stack:
            folder = await stack.enter_async_context(self._place())
            playwright = await self._driver()
            program = await self._start(app, folder, stack)
            address = await _debug_address(program, name)
            port = address.partition("//")[2].partition("/")[0].rpartition(":")[2]
            self._app_ports.add(port)
            stack.callback(self._app_ports.discard, port)
            browser = await _connect(playwright, address, folder)
            stack.push_async_callback(_close, browser)
            return Started(browser.contexts[0], stack.pop_all(), kind="app")

    async def _start(self, app: App, folder: Path, stack: AsyncExitStack) -> KeptProgram:
        profile = str(folder / "profile")
        command = [part.replace("{profile}", profile) for part in app.command]
        command += ["--remote-debugging-port=0", *self._hosts.flags()]
        try:
            running = self._pack.keep_program(command, env=app.env, cwd=app.cwd)
            return await stack.enter_async_context(running)
        except OSError as error:
            raise ToolError("upstream_unavailable", "The app does not start.", reason="launch_failed") from error

    async def attach(self, name: str) -> Started:
        """Connect to a running browser of the configuration; it runs on when its session ends.

        Raises:
            ToolError: `not_found` if there is none of that name, `state_error` if another session has it.
        """
        target = self._config.attach.get(name)
        if target is None:
            known = sorted(self._config.attach)
            raise ToolError("not_found", f"No browser '{name}' is configured.", reason="unknown_app", known=known)
        port = target.url.partition("//")[2].partition("/")[0].rpartition(":")[2]
        if port in self._app_ports or port in self._attached:
            raise ToolError("state_error", "Another session has this browser.", reason="in_use")
        async with AsyncExitStack() as stack:
            self._attached.add(port)
            stack.callback(self._attached.discard, port)
            folder = await stack.enter_async_context(self._place())
            browser = await _connect(await self._driver(), target.url, folder)
            stack.push_async_callback(_close, browser)
            return Started(browser.contexts[0], stack.pop_all(), kind="attached")


async def _connect(playwright: Playwright, address: str, folder: Path) -> Browser:
    try:
        return await playwright.chromium.connect_over_cdp(address, artifacts_dir=folder / "artifacts", timeout=10_000)
    except Error as error:
        message = "Nothing answers at the debug address."
        raise ToolError("upstream_unavailable", message, reason="launch_failed") from error


async def _finished(launching: Coroutine[Any, Any, BrowserContext]) -> BrowserContext:
    """Wait for a browser; if this call is cancelled, close the one that still comes."""
    task = asyncio.ensure_future(launching)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_close_late)
        raise


def _close_late(task: "asyncio.Task[BrowserContext]") -> None:
    if not task.cancelled() and task.exception() is None:
        closing = asyncio.ensure_future(_close(task.result()))
        _LATE.add(closing)
        closing.add_done_callback(_LATE.discard)


async def _close(closable: BrowserContext | Browser) -> None:
    """Close within a short time; what does not is killed afterwards."""
    closing = asyncio.ensure_future(closable.close())
    await asyncio.wait((closing,), timeout=CLOSE_S)
    closing.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await closing


async def _debug_address(program: KeptProgram, name: str) -> str:
    """Return the address that a program writes when its debug port is open."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAUNCH_S):
            while program.exit_code is None:
                match = _ADDRESS.search(program.errors)
                if match is not None:
                    return match[1].decode()
                await asyncio.sleep(0.02)  # what it writes is collected without an event
    raise ToolError("upstream_unavailable", f"The app '{name}' opens no debug port.", reason="launch_failed")
