"""A served yard with its console, and a real browser that looks at it."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from playwright.async_api import Page, async_playwright, expect

from callyard import Yard
from callyard.config import read_config
from callyard.launch.build import apply_settings, make_authenticator
from callyard.launch.monitor import Monitor
from callyard.launch.notices import Notices
from callyard.launch.serve import serve_forever
from callyard.transports import Transport

CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
# Without these flags Chromium calls its maker, and needs a sandbox that root has not.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
META = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
expect.set_options(timeout=60_000)


class Served(NamedTuple):
    """A yard that is served, as a reader without a login sees it."""

    client: httpx2.AsyncClient
    base: str
    """The address of the server, without a path."""
    login: str
    """The address that logs a person in."""
    yard: Yard
    incidents: Any = None

    async def call(self, name: str, arguments: object = None, **headers: str) -> Any:
        """Call a tool as an agent does, and return its envelope."""
        said = {
            f"{META}protocolVersion": VERSION,
            f"{META}clientCapabilities": {},
            f"{META}clientInfo": {"name": "agent", "version": "1"},
        }
        params = {"name": name, "arguments": arguments or {}, "_meta": said}
        usual = {
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": "tools/call",
            "Mcp-Name": name,
            "Accept": "application/json",
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        response = await self.client.post("/mcp", json=message, headers={**usual, **headers}, timeout=60)
        return response.json()["result"]["structuredContent"]

    def login_to(self, page: str) -> str:
        """Return the address that logs a person in and shows a page."""
        base, _, fragment = self.login.partition("#")
        return f"{base}/{page}#{fragment}"

    async def log_in(self, credentials: str = "", **headers: str) -> httpx2.Response:
        """Log in as the script of the pages does: with credentials, or with the token of the printed address."""
        given = credentials or self.login.partition("#token=")[2]
        usual = {"Accept": "application/json"}
        response = await self.client.post("/console/login", data={"credentials": given}, headers={**usual, **headers})
        self.client.cookies.clear()
        return response

    async def person(self, credentials: str = "") -> tuple[dict[str, str], str]:
        """Log in, and return the headers of the login, which are the cookie and the secret, and the CSRF token."""
        response = await self.log_in(credentials)
        cookie = response.headers["set-cookie"].partition(";")[0]
        headers = {"Cookie": cookie, "X-Console-Secret": response.json()["secret"]}
        page = await self.client.get("/console", headers=headers)
        return headers, page.text.partition('data-csrf="')[2].partition('"')[0]


Serve = Callable[..., AbstractAsyncContextManager[Served]]
Look = Callable[..., Awaitable[Page]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Return a function that serves a yard with a 'callyard.toml' of this text."""

    @asynccontextmanager
    async def run(yard: Yard, text: str = "", *, agents: Any = None, **settings: str) -> AsyncGenerator[Served]:
        path = tmp_path / "callyard.toml"
        path.write_text(text)
        config = read_config({"serve.transport": "http", "serve.port": "0", **settings}, path=str(path), environment={})
        apply_settings(yard, config, Notices(), serves=True)
        authenticator = make_authenticator(config)
        monitor = Monitor(yard, config, is_authenticated=authenticator is not None)
        monitor.add_console(config, authenticator, agents)
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def ready(transport: Transport) -> None:
            listening.set_result(transport.info().address.removesuffix("/mcp"))

        server = asyncio.ensure_future(
            serve_forever(
                yard, config.settings.serve, authenticator, monitor=monitor, mounted=monitor.parts, ready=ready
            )
        )
        server.add_done_callback(
            lambda task: None if listening.done() else listening.set_exception(task.exception() or RuntimeError())
        )
        try:
            base = await listening
            async with httpx2.AsyncClient(base_url=base, trust_env=False) as client:
                address = "" if monitor.console is None else monitor.console.address(base)
                incidents = None if monitor.alerts is None else monitor.alerts.incidents
                yield Served(client, base, address, yard, incidents)
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

    return run


@pytest.fixture
async def look() -> AsyncGenerator[Look]:
    """Return a function that opens a URL in a real Chromium; a failed or blocked script fails the test."""
    if CHROMIUM is None:
        pytest.skip("There is no Chromium. Install Debian's package 'chromium'.")
    faults: list[str] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        async def open_page(url: str, *, width: int = 1280, scheme: Any = "light", scripts: bool = True) -> Page:
            size: Any = {"width": width, "height": 860}
            context = await browser.new_context(viewport=size, color_scheme=scheme, java_script_enabled=scripts)
            page = await context.new_page()
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on(
                "console",
                lambda message: faults.append(message.text) if "Content Security Policy" in message.text else None,
            )
            await page.goto(url)
            if scripts and "#token=" in url:
                await page.get_by_role("button", name="Log out").wait_for()
            return page

        yield open_page
        await browser.close()
    assert not faults
