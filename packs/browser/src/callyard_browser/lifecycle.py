"""Tools that start, steer and stop browsers, and that answer dialogs."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final, cast

from playwright.async_api import Error, Page

from callyard import Call, Session, ToolError, tool
from callyard_browser.browsers import Browsers
from callyard_browser.driver import Started
from callyard_browser.failures import REASONS, failure_of
from callyard_browser.session import BrowserSession
from callyard_browser.tab import Tab, text_of

__all__ = ["Lifecycle"]

_LOAD_S: Final = 20.0
_TITLE_S: Final = 0.5
_DIALOG_S: Final = 1.0
_LAUNCH_REASONS: Final = {
    name: REASONS[name]
    for name in (
        "no_browser",
        "launch_failed",
        "hosts_required",
        "host_not_allowed",
        "unknown_app",
        "in_use",
        "navigation_failed",
        "download_started",
    )
}
_LOAD_REASONS: Final = {
    name: REASONS[name]
    for name in (
        "browser_gone",
        "dialog_open",
        "download_started",
        "host_not_allowed",
        "navigation_failed",
        "page_hung",
        "tab_gone",
    )
}


class Lifecycle:
    """The tools of this group, for one yard."""

    def __init__(self, browsers: Browsers) -> None:
        self._browsers = browsers

    @tool(name="browser_launch", operation="command", timeout=60, reasons=_LAUNCH_REASONS)
    async def launch(self, call: Call, url: str = "", app: str = "") -> dict[str, Any]:
        """Start a browser or a configured app; returns its session_id."""
        if url:
            await self._browsers.check_address(url)
        driver = self._browsers.driver
        return await self._begin(call, driver.start_app(app) if app else driver.launch(), url)

    @tool(name="browser_attach", operation="command", timeout=60, reasons=_LAUNCH_REASONS)
    async def attach(self, call: Call, endpoint: str) -> dict[str, Any]:
        """Use a configured running browser, by name; returns its session_id."""
        return await self._begin(call, self._browsers.driver.attach(endpoint), "")

    async def _begin(self, call: Call, starting: Coroutine[Any, Any, Started], url: str) -> dict[str, Any]:
        browser = await self._browsers.start(call, starting)
        session = cast("Session", call.session)
        answer: dict[str, Any] = {"session_id": session.id, "tab": browser.current}
        if not url:
            return answer
        try:
            async with self._browsers.use(call, session):
                return browser.masks.masked({**answer, **await _navigate(browser, call, url)})
        except ToolError:
            await call.end_session()
            raise

    @tool(name="browser_stop", operation="command", reasons={"tab_gone": REASONS["tab_gone"]})
    async def stop(self, call: Call, session: Session, tab: str = "") -> dict[str, Any]:
        """Close a tab, or by default end the browser."""
        async with self._browsers.use(call, session) as browser:
            if not tab:
                return {"stopped": await call.end_session()}
            page = _tab(browser, tab).page
            with contextlib.suppress(Error, TimeoutError):
                await asyncio.wait_for(page.close(), 2)
            return {"tabs": sorted(browser.tabs), "current": browser.current}

    @tool(name="browser_status", operation="query")
    async def status(self, call: Call, session: Session) -> dict[str, Any]:
        """List tabs, open dialogs and downloads."""
        async with self._browsers.use(call, session) as browser:
            if not browser.is_alive:
                raise ToolError("not_running", "The browser has ended.", reason="browser_gone")
            tabs = [await _described(tab) for tab in list(browser.tabs.values())]
            answer = {"kind": browser.started.kind, "current": browser.current, "tabs": tabs}
            downloads = await browser.stored_downloads(call)
            return browser.masks.masked({**answer, "downloads": downloads} if downloads else answer)

    @tool(name="browser_navigate", operation="command", serial=True, timeout=60, reasons=_LOAD_REASONS)
    async def navigate(self, call: Call, session: Session, *, to: str, new_tab: bool = False) -> dict[str, Any]:
        """Open a URL, or go 'back', 'forward' or 'reload'."""
        async with self._browsers.use(call, session) as browser:
            if to not in _STEPS:
                await self._browsers.check_address(to)
            if not browser.is_alive:
                raise ToolError("not_running", "The browser has ended.", reason="browser_gone")
            if new_tab or browser.current not in browser.tabs or browser.tab.has_crashed:
                await browser.new_tab()
            return browser.masks.masked(await _navigate(browser, call, to))

    @tool(name="browser_select_tab", operation="command", serial=True, reasons={"tab_gone": REASONS["tab_gone"]})
    async def select_tab(self, call: Call, session: Session, tab: str) -> dict[str, Any]:
        """Choose the tab that all tools use."""
        async with self._browsers.use(call, session) as browser:
            chosen = _tab(browser, tab)
            browser.current = tab
            if chosen.dialog is None and chosen.is_open:
                await chosen.run(chosen.page.bring_to_front())
            return browser.masks.masked(await _described(chosen))

    @tool(name="browser_answer_dialog", operation="command", reasons={"no_dialog": REASONS["no_dialog"]})
    async def answer_dialog(
        self, call: Call, session: Session, *, accept: bool = True, text: str = "", always: bool = False
    ) -> dict[str, Any]:
        """Answer the open dialog, or 'always' also later ones."""
        async with self._browsers.use(call, session) as browser:
            if always:
                browser.always = (accept, text)
            tab = next((tab for tab in browser.tabs.values() if tab.dialog is not None), None)
            if tab is None or tab.dialog is None:
                if always:
                    return {"always": True}
                raise ToolError("state_error", "No dialog is open.", reason="no_dialog")
            marks = browser.mark(tab)
            facts, dialog = text_of(tab.dialog), tab.dialog
            tab.closed_dialog()
            with contextlib.suppress(Error, TimeoutError):
                await asyncio.wait_for(dialog.accept(text or None) if accept else dialog.dismiss(), _DIALOG_S)
            if tab.pending is not None:
                with contextlib.suppress(ToolError):
                    await tab.run(asyncio.wait((tab.pending,)), seconds=_DIALOG_S)
            return browser.masks.masked(
                {"answered": facts, **await browser.answer(call, tab, marks, looks=not await tab.is_large())}
            )


_INTERRUPTIONS: Final = 8
_PAUSE_S: Final = 0.25
_STEPS: Final = ("back", "forward", "reload")


async def _navigate(browser: BrowserSession, call: Call, to: str) -> dict[str, Any]:
    status: list[int] = []

    async def load(tab: Tab) -> None:
        try:
            response = await _load(tab.page, to)
        except Error as error:
            raise failure_of(error) from error
        if response is not None and response.status >= 400:  # noqa: PLR2004 - HTTP's failures
            status.append(response.status)

    answer = await browser.act(call, load, seconds=_LOAD_S + 2)
    answer.setdefault("url", browser.tabs[browser.current].page.url[:500] if browser.current in browser.tabs else "")
    return {**answer, "http_status": status[0]} if status else answer


async def _load(page: Page, to: str) -> Any:
    milliseconds = _LOAD_S * 1000
    if to == "back":
        return await page.go_back(wait_until="domcontentloaded", timeout=milliseconds)
    if to == "forward":
        return await page.go_forward(wait_until="domcontentloaded", timeout=milliseconds)
    if to == "reload":
        return await page.reload(wait_until="domcontentloaded", timeout=milliseconds)
    for _ in range(_INTERRUPTIONS):
        try:
            return await page.goto(to, wait_until="domcontentloaded", timeout=milliseconds)
        except Error as error:
            if "interrupted by another navigation" not in error.message:
                raise
            await asyncio.sleep(_PAUSE_S)  # the load before, or its error page, comes in between; its end has no event
    return await page.goto(to, wait_until="domcontentloaded", timeout=milliseconds)


def _tab(browser: BrowserSession, tab_id: str) -> Tab:
    if tab_id not in browser.tabs:
        tabs = sorted(browser.tabs)
        raise ToolError("not_found", f"There is no tab '{tab_id[:40]}'.", reason="tab_gone", tabs=tabs)
    return browser.tabs[tab_id]


async def _described(tab: Tab) -> dict[str, Any]:
    """Return a tab in short; the title of a page that does not answer is left out."""
    facts: dict[str, Any] = {"tab": tab.id, "url": tab.page.url[:300]}
    with contextlib.suppress(Error, TimeoutError, Exception):
        facts["title"] = (await asyncio.wait_for(tab.page.title(), _TITLE_S))[:200]
    if tab.dialog is not None:
        facts["dialog"] = text_of(tab.dialog)
    return {**facts, "crashed": True} if tab.has_crashed else facts
