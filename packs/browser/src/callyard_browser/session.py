"""One browser as a session: its tabs, what they wrote and loaded, and what each action answers."""

import asyncio
import contextlib
import itertools
import time
from base64 import b64encode
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct
from playwright.async_api import (
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Download,
    ElementHandle,
    Error,
    Page,
    Request,
    WebError,
)

from callyard import Call, ToolError
from callyard_browser.driver import Started
from callyard_browser.failures import failure_of, is_detached
from callyard_browser.hosts import Hosts
from callyard_browser.masks import WATCH, Masks
from callyard_browser.snapshot import Snapshot, changes_between, cut
from callyard_browser.tab import UNGUARD, Found, Tab, text_of

__all__ = ["BrowserSession", "ConsoleLine", "Exchange", "Marks"]

ACT_S: Final = 4.0
_CHANGED_TOKENS: Final = 340
_SLOW_LOOK_S: Final = 1.5
"""After a slower look an action does not compare: the page is large."""
_SETTLE: Final = """() => new Promise(resolve => {
  setTimeout(resolve, 120); requestAnimationFrame(() => setTimeout(resolve, 0)); })"""
_LOAD_S: Final = 4.0
_MOST_TABS: Final = 20
_MOST_LINES: Final = 500
_MOST_BYTES: Final = 32 * 1024 * 1024
_DOWNLOAD_S: Final = 3.0
_SHOWN: Final = 5


class ConsoleLine(Struct, frozen=True):
    """A line of the console, or an error that no script caught."""

    number: int
    tab: str
    level: str
    text: str


class Exchange(Struct):
    """A request of a page, and how it ended."""

    number: int
    request: Request
    started: float
    status: int = 0
    failure: str = ""
    ms: int = 0

    def described(self) -> dict[str, Any]:
        """Return it in short."""
        facts = {"id": self.number, "method": self.request.method, "url": self.request.url[:300], "ms": self.ms}
        return {**facts, "failed": self.failure} if self.failure else {**facts, "status": self.status}


class Marks(Struct):
    """How far the logs were before an action."""

    console: int
    exchange: int
    tabs: set[str]
    url: str
    snapshot: Snapshot | None


class BrowserSession:
    """The browser of one session."""

    def __init__(self, started: Started, *, hosts: Hosts, secrets: Sequence[str], is_alive: Callable[[], bool]) -> None:
        self.started = started
        self.hosts = hosts
        self.masks = Masks(secrets)
        self.tabs: dict[str, Tab] = {}
        self.current = ""
        self.console: deque[ConsoleLine] = deque(maxlen=_MOST_LINES)
        self.exchanges: deque[Exchange] = deque(maxlen=_MOST_LINES)
        self.always: tuple[bool, str] | None = None
        """How every dialog is answered from now on."""
        self._downloads: list[Download] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._driver_lives = is_alive
        self._is_gone = False
        self._tab_numbers = itertools.count(1)
        self._line_numbers = itertools.count(1)
        self._by_request: dict[Request, Exchange] = {}

    async def open(self) -> None:
        """Listen to the browser, and watch its password fields."""
        context = self.started.context
        context.set_default_timeout(ACT_S * 1000)
        await cast("Any", context).expose_binding("__callyardHeld", self._hold)
        await context.add_init_script(WATCH)
        self._listen(context)
        for page in context.pages:
            self._add(page)
            with contextlib.suppress(Error):
                await asyncio.wait_for(page.evaluate(WATCH), 1)
        if not context.pages:
            await context.new_page()

    def _hold(self, _: object, value: object) -> None:
        self.masks.hold([value])

    def _listen(self, context: BrowserContext) -> None:
        context.on("close", lambda _: self._gone())
        context.on("page", self._on_page)
        context.on("dialog", self._on_dialog)
        context.on("dialogclosed", self._on_dialog_closed)
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("request", self._on_request)
        context.on("requestfinished", self._on_over)
        context.on("requestfailed", self._on_over)

    @property
    def is_alive(self) -> bool:
        """Return whether the browser and its driver run."""
        return not self._is_gone and self._driver_lives()

    def _gone(self) -> None:
        self._is_gone = True
        for tab in self.tabs.values():
            tab.interrupt()

    def _on_page(self, page: Page) -> None:
        self._add(page)

    def _add(self, page: Page) -> Tab:
        tab = next((tab for tab in self.tabs.values() if tab.page is page), None)
        if tab is not None:
            return tab
        tab = Tab(f"t{next(self._tab_numbers)}", page, self.masks, lambda: self.is_alive)
        if len(self.tabs) >= _MOST_TABS:
            self._in_background(page.close())
            return tab
        self.tabs[tab.id] = tab
        self.current = self.current or tab.id
        page.on("close", lambda _: self._removed(tab))
        page.on("download", self._on_download)
        return tab

    def _on_download(self, download: Download) -> None:
        self._downloads.append(download)

    def _removed(self, tab: Tab) -> None:
        self.tabs.pop(tab.id, None)
        if self.current == tab.id:
            self.current = next(reversed(self.tabs), "")

    def _in_background(self, work: Awaitable[Any]) -> None:
        async def finish() -> None:
            with contextlib.suppress(Exception):  # the page may be gone, and nobody waits
                await asyncio.wait_for(work, ACT_S)

        task = asyncio.ensure_future(finish())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _tab_of(self, page: Page | None) -> Tab | None:
        return next((tab for tab in self.tabs.values() if tab.page is page), None)

    def _on_dialog(self, dialog: Dialog) -> None:
        tab = None if dialog.page is None else self._add(dialog.page)
        if tab is None or tab.id not in self.tabs:
            self._in_background(dialog.dismiss())
        elif self.always is not None:
            accept, text = self.always
            self._in_background(dialog.accept(text) if accept else dialog.dismiss())
        else:
            tab.opened_dialog(dialog)

    def _on_dialog_closed(self, dialog: Dialog) -> None:
        for tab in self.tabs.values():
            if tab.dialog is dialog:
                tab.closed_dialog()

    def _on_console(self, message: ConsoleMessage) -> None:
        tab = self._tab_of(message.page)
        self._write(tab.id if tab is not None else "", message.type, message.text)

    def _on_error(self, error: WebError) -> None:
        tab = self._tab_of(error.page)
        self._write(tab.id if tab is not None else "", "error", str(error.error))

    def _write(self, tab: str, level: str, text: str) -> None:
        self.console.append(ConsoleLine(next(self._line_numbers), tab, level, text[:4000]))

    def _on_request(self, request: Request) -> None:
        if len(self.exchanges) == self.exchanges.maxlen:
            self._by_request.pop(self.exchanges[0].request, None)
        exchange = Exchange(next(self._line_numbers), request, time.monotonic())
        self._by_request[request] = exchange
        self.exchanges.append(exchange)

    def _on_over(self, request: Request) -> None:
        exchange = self._by_request.get(request)
        if exchange is not None:
            exchange.ms = round((time.monotonic() - exchange.started) * 1000)
            exchange.failure = (request.failure or "").removeprefix("net::")
            if not exchange.failure:
                self._in_background(self._add_status(exchange))

    async def _add_status(self, exchange: Exchange) -> None:
        response = await exchange.request.response()
        exchange.status = response.status if response is not None else 0

    @property
    def tab(self) -> Tab:
        """Return the tab that is used.

        Raises:
            ToolError: The browser has ended, or no tab is open.
        """
        if not self.is_alive:
            raise ToolError("not_running", "The browser has ended.", reason="browser_gone")
        if self.current not in self.tabs:
            hint = "Open an address with 'browser_navigate'."
            raise ToolError("not_found", "No tab is open.", hint=hint, reason="tab_gone", tabs=[])
        return self.tabs[self.current]

    async def new_tab(self) -> Tab:
        """Open a tab and use it."""
        async with asyncio.timeout(ACT_S):
            tab = self._add(await self.started.context.new_page())
        self.current = tab.id
        return tab

    async def on_element(self, ref: str, operate: Callable[[ElementHandle], Awaitable[Any]]) -> Found:
        """Act on the element of a ref; if it is replaced on the way, on the one that came in its place."""
        deadline = time.monotonic() + ACT_S
        tab, healed = self.tab, False
        while True:
            found = await tab.find_guarded(ref)
            healed = healed or found.healed
            try:
                await operate(found.handle)
                if await _was_other(found.handle) and time.monotonic() < deadline:
                    continue
            except Error as error:
                if is_detached(error) and time.monotonic() < deadline:
                    continue
                raise failure_of(error) from error
            return Found(found.handle, found.node, healed=healed)

    async def act(
        self, call: Call, work: Callable[[Tab], Awaitable[Found | None]], *, seconds: float = ACT_S + _LOAD_S
    ) -> dict[str, Any]:
        """Do something in the current tab, and return what changed."""
        tab = self.tab
        tab.check()
        await tab.finish_pending()
        marks = self.mark(tab)
        found: Found | None = None
        try:
            found = await tab.run(work(tab), seconds=seconds, keep=True)
        except ToolError as error:
            if tab.dialog is None or tab.pending is None:
                await self._explain(call, marks, error)
                raise
            return await self.answer(call, tab, marks, looks=False)
        await self._settle(tab)
        looks = tab.look_seconds < _SLOW_LOOK_S and not await tab.is_large()
        answer = await self.answer(call, tab, marks, looks=looks)
        if found is not None and found.healed:
            answer["healed"] = f"The element was rendered anew; it is '{found.node.ref}' now."
        return answer

    def mark(self, tab: Tab) -> Marks:
        """Return how far everything is before an action."""
        snapshot = tab.snapshots[-1] if tab.snapshots else None
        return Marks(
            self.console[-1].number if self.console else 0,
            self.exchanges[-1].number if self.exchanges else 0,
            set(self.tabs),
            tab.page.url,
            snapshot,
        )

    async def _settle(self, tab: Tab) -> None:
        """Give the page a frame to show what an action did, and a load that began the time to begin well."""
        with contextlib.suppress(ToolError):
            await tab.run(tab.page.evaluate(_SETTLE), seconds=1)
        if tab.is_loading:
            with contextlib.suppress(ToolError):
                loaded = tab.page.wait_for_load_state("domcontentloaded", timeout=_LOAD_S * 1000)
                await tab.run(loaded, seconds=_LOAD_S)

    async def _explain(self, call: Call, marks: Marks, error: ToolError) -> None:
        """Turn the failure of a load into the reason that lies behind it.

        Raises:
            ToolError: A download began, or the host is not allowed.
        """
        if error.details.get("reason") not in {"navigation_failed", "download_started"}:
            return
        downloads = await self.stored_downloads(call)
        if downloads:
            message = "The address is a download."
            raise ToolError("state_error", message, reason="download_started", downloads=downloads) from error
        blocked = self._blocked(marks.exchange)
        if blocked:
            message = f"The host of '{blocked[-1]}' may not be reached from here."
            raise ToolError("permission_denied", message, reason="host_not_allowed") from error

    def _blocked(self, since: int) -> list[str]:
        """Return the requests that were stopped because of their hosts."""
        return [
            exchange.request.url[:200]
            for exchange in self.exchanges
            if exchange.number > since and self.hosts.refusal(exchange.request.url) and exchange.failure
        ]

    async def answer(self, call: Call, tab: Tab, marks: Marks, *, looks: bool) -> dict[str, Any]:
        """Return what changed since the marks: the page, its console, tabs, downloads and dialogs."""
        answer: dict[str, Any] = {}
        if looks and tab.dialog is None and tab.is_open:
            answer.update(await self._changes(tab, marks.snapshot))
        elif not looks and tab.dialog is None:
            answer["changed"] = "Not compared, because the page is large; 'browser_snapshot' compares."
        if tab.page.url != marks.url:
            answer["url"] = tab.page.url[:500]
        errors = [line.text[:200] for line in self.console if line.number > marks.console and line.level == "error"]
        if errors:
            answer["console_errors"] = errors[-_SHOWN:]
        opened = [tab_id for tab_id in self.tabs if tab_id not in marks.tabs]
        if opened:
            answer["opened_tabs"] = opened
        if tab.id not in self.tabs:
            answer["closed"] = f"The tab closed; the current one is '{self.current}'."
        blocked = self._blocked(marks.exchange)
        if blocked:
            answer["blocked"] = blocked[-_SHOWN:]
        dialogs = {key: text_of(other.dialog) for key, other in self.tabs.items() if other.dialog is not None}
        if dialogs:
            answer["dialog"] = dialogs.get(tab.id) or dialogs
        downloads = await self.stored_downloads(call)
        return {**answer, "downloads": downloads} if downloads else answer

    async def _changes(self, tab: Tab, before: Snapshot | None) -> dict[str, Any]:
        """Return the differences to the last snapshot, or the beginning of another page."""
        try:
            after = await tab.look()
        except ToolError as error:
            if tab.dialog is not None:
                return {}
            return {"changed": f"Not known: {error.message}"}
        if before is None or _is_other_page(before, after):
            text, left = cut([line.text for line in after.lines], _CHANGED_TOKENS)
            return {"page": text, "more_lines": left, "snapshot": after.id}
        changes = changes_between(before, after)
        text, left = cut(changes, _CHANGED_TOKENS)
        answer: dict[str, Any] = {"changed": text or "nothing", "snapshot": after.id}
        return {**answer, "more_lines": left} if left else answer

    async def stored_downloads(self, call: Call) -> list[dict[str, Any]]:
        """Store the files that were downloaded, and return their handles."""
        downloads, self._downloads[:] = list(self._downloads), []
        return [await self._store(call, download) for download in downloads]

    async def _store(self, call: Call, download: Download) -> dict[str, Any]:
        facts: dict[str, Any] = {"file": download.suggested_filename[:200]}
        try:
            path = Path(await asyncio.wait_for(download.path(), _DOWNLOAD_S))
            size = (await asyncio.to_thread(path.stat)).st_size
            if size > _MOST_BYTES:
                return {**facts, "bytes": size, "failed": "It has more than 32 MB."}
            content = await asyncio.to_thread(path.read_bytes)
            await download.delete()
            file = {"file": facts["file"], "base64": b64encode(content).decode()}
            return {**facts, "bytes": size, "handle": await call.store(file)}
        except TimeoutError:
            self._downloads.append(download)  # the next answer has it
            return {**facts, "status": "loading"}
        except ToolError as error:
            return {**facts, "failed": error.message}
        except (Error, OSError):
            return {**facts, "failed": "It did not arrive."}

    async def close(self) -> None:
        """End the browser, or leave the one that was attached."""
        self._gone()
        await self.started.close()
        for task in list(self._answering):
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)


async def _was_other(element: ElementHandle) -> bool:
    """Return whether the element had become another one, so that nothing happened."""
    with contextlib.suppress(Error):  # the action may have removed it, or loaded another page
        return bool(await asyncio.wait_for(element.evaluate(UNGUARD), 1))
    return False


def _is_other_page(before: Snapshot, after: Snapshot) -> bool:
    """Return whether two snapshots are of different documents: no element is in both."""
    return bool(before.by_ref) and not any(ref in before.by_ref for ref in after.by_ref)
