"""Tools that read a page: what it shows, what it wrote to its console, and what it loaded."""

import asyncio
import contextlib
import time
from base64 import b64decode
from typing import Any, Final, cast

from playwright.async_api import Error, Request

from callyard import Call, EvalRule, Image, Session, ToolError, tool
from callyard_browser.browsers import Browsers
from callyard_browser.failures import REASONS
from callyard_browser.session import BrowserSession, Exchange
from callyard_browser.snapshot import Node, changes_between, cut
from callyard_browser.tab import Tab

__all__ = ["STATE", "Reading", "state_of", "text_in"]

_NAMES: Final = ("browser_gone", "dialog_open", "page_crashed", "page_hung", "ref_gone", "tab_gone")
_REASONS: Final = {name: REASONS[name] for name in _NAMES}
_NETWORK_REASONS: Final = {**_REASONS, "expectation_failed": REASONS["expectation_failed"]}
_EVAL_REASONS: Final = {**_REASONS, "wrong_element": REASONS["wrong_element"]}
_TEXT_TOKENS: Final = 2000
_BODY: Final = 4000
_LONGEST_SIDE: Final = 1568
_MOST_PIXELS: Final = 16_384
_PICTURE_S: Final = 20.0
_POLL_S: Final = 0.1
_PRIVATE_HEADERS: Final = frozenset({"authorization", "cookie", "set-cookie", "proxy-authorization"})
_SIZE: Final = """() => [Math.max(document.documentElement.scrollWidth, innerWidth),
  Math.max(document.documentElement.scrollHeight, innerHeight), scrollX, scrollY, innerWidth, innerHeight]"""
_TEXT: Final = "() => document.body ? document.body.innerText : ''"
STATE: Final = """element => {
  const box = element.getBoundingClientRect(), style = getComputedStyle(element);
  const is = (name) => element.getAttribute('aria-' + name);
  const state = {
    visible: box.width > 0 && box.height > 0 && style.visibility === 'visible',
    enabled: !element.matches(':disabled') && is('disabled') !== 'true',
    focused: element.getRootNode().activeElement === element,
    editable: element.isContentEditable || ('readOnly' in element && !element.readOnly && !element.disabled),
    text: (element.innerText || '').slice(0, 500), box: [box.x, box.y, box.width, box.height].map(Math.round),
  };
  if (typeof element.value === 'string')
    state.value = element.type === 'password' ? '***' : element.value.slice(0, 500);
  if (element.type === 'checkbox' || element.type === 'radio') state.checked = element.checked;
  if (element.localName === 'select') state.selected = [...element.selectedOptions].map(option => option.label);
  for (const name of ['checked', 'expanded', 'pressed', 'selected'])
    if (is(name) !== null && !(name in state)) state[name] = is(name) === 'true';
  return state; }"""
"""What an element is like now."""


class Reading:
    """The tools of this group, for one yard."""

    def __init__(self, browsers: Browsers) -> None:
        self._browsers = browsers

    @tool(name="browser_snapshot", operation="query", timeout=45, reasons=_REASONS)
    async def snapshot(
        self, call: Call, session: Session, *, since: str = "", ref: str = "", max_tokens: int = 2000
    ) -> dict[str, Any]:
        """Show the page with refs; 'since' a snapshot only what changed."""

        async def look(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            before = next((snapshot for snapshot in tab.snapshots if snapshot.id == since), None)
            element = (await tab.find(ref)).node.ref if ref else ""
            after = await tab.look()
            answer = {"snapshot": after.id, "url": after.url[:500]}
            if since and before is not None and not ref:
                lines = changes_between(before, after) or ["nothing"]
                name = "changed"
            else:
                found = after.lines_of(element) if element in after.by_ref else after.lines
                lines, name = [" " * line.depth + line.text for line in found], "page"
            return {**answer, **await _shown(call, lines, name, max(100, min(max_tokens, 10_000)))}

        return await self._browsers.read(call, session, look)

    @tool(name="browser_find", operation="query", timeout=45, reasons=_REASONS)
    async def find(
        self, call: Call, session: Session, *, role: str = "", name: str = "", text: str = "", limit: int = 10
    ) -> dict[str, Any]:
        """Find elements, by parts of name or text."""

        async def search(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            nodes = [node for node in (await tab.look()).nodes if node.ref and _fits(node, role, name, text)]
            shown = [f"{node.described()}{'' if node.can_act else f' [{node.ref}]'}" for node in nodes]
            return {"found": shown[: max(1, min(limit, 100))], "count": len(nodes)}

        return await self._browsers.read(call, session, search)

    @tool(name="browser_get_state", operation="query", reasons=_REASONS)
    async def get_state(self, call: Call, session: Session, ref: str) -> dict[str, Any]:
        """Tell value, checked, visible and so on."""
        return await self._browsers.read(call, session, lambda _, tab: state_of(tab, ref))

    @tool(name="browser_read_text", operation="query", reasons=_REASONS)
    async def read_text(self, call: Call, session: Session, ref: str = "") -> dict[str, Any]:
        """Read the text of an element or the page."""

        async def read(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            await tab.sample()
            text = tab.masked(await text_in(tab, ref))
            return await _shown(call, text.splitlines(), "text", _TEXT_TOKENS)

        return await self._browsers.read(call, session, read)

    @tool(name="browser_screenshot", operation="query", timeout=45, reasons=_REASONS)
    async def screenshot(self, call: Call, session: Session, *, ref: str = "", full_page: bool = False) -> Image:
        """Take a picture of the view, an element or the page."""

        async def take(browser: BrowserSession, tab: Tab) -> Image:
            left, top, width, height = await _area(tab, ref, full_page=full_page)
            if max(width, height) > _MOST_PIXELS:
                message = f"The page has {round(height)} pixels; at most {_MOST_PIXELS} can be shown."
                raise ToolError("too_large", message, limit=_MOST_PIXELS)
            scale = min(1.0, _LONGEST_SIDE / max(width, height, 1))
            clip = {"x": left, "y": top, "width": max(width, 1), "height": max(height, 1), "scale": scale}
            client = await tab.run(browser.started.context.new_cdp_session(tab.page))
            try:
                options = {"format": "jpeg", "quality": 70, "clip": clip, "captureBeyondViewport": True}
                sending = cast("Any", client).send("Page.captureScreenshot", options)
                taken = await tab.run(sending, seconds=_PICTURE_S)
            finally:
                with contextlib.suppress(Error, TimeoutError):
                    await asyncio.wait_for(client.detach(), 1)
            return Image(b64decode(taken["data"]), "image/jpeg")

        return await self._browsers.read(call, session, take)

    @tool(name="browser_console", operation="query")
    async def console(
        self, call: Call, session: Session, *, level: str = "", match: str = "", since: int = 0
    ) -> dict[str, Any]:
        """List lines of the console."""
        async with self._browsers.use(call, session) as browser:
            await _sampled(browser)
            lines = [
                {"id": line.number, "level": line.level, "text": line.text[:500]}
                for line in browser.console
                if line.number > since and level in {"", line.level} and match in line.text
            ]
            return browser.masks.masked({"lines": lines[-50:], "count": len(lines)})

    @tool(name="browser_network", operation="query", timeout=75, reasons=_NETWORK_REASONS)
    async def network(
        self,
        call: Call,
        session: Session,
        *,
        match: str = "",
        failed: bool = False,
        request: int = 0,
        timeout_s: float = 0,
    ) -> dict[str, Any]:
        """List requests, wait for one, or show one by id."""
        async with self._browsers.use(call, session) as browser:
            await _sampled(browser)
            if request:
                return browser.masks.masked(await _details(browser, request))
            deadline = time.monotonic() + min(timeout_s, 60)
            found = _matching(browser, match, failed=failed)
            while not found and time.monotonic() < deadline:
                browser.tab.check()
                await asyncio.sleep(_POLL_S)
                found = _matching(browser, match, failed=failed)
            if not found and timeout_s:
                raise ToolError(
                    "state_error", "No such request came.", reason="expectation_failed", expected=match, actual=None
                )
            await _sampled(browser)
            return browser.masks.masked({"requests": [item.described() for item in found[-30:]], "count": len(found)})

    @tool(
        name="browser_eval",
        operation="eval",
        eval=EvalRule("code", language="javascript"),
        eval_target="page",
        serial=True,
        reasons=_EVAL_REASONS,
    )
    async def evaluate(self, call: Call, session: Session, code: str, ref: str = "") -> dict[str, Any]:
        """Run JavaScript in the page: an expression, or a function of the element."""

        async def run(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            if ref:
                found = await tab.find(ref)
                return {"result": await tab.run(found.handle.evaluate(code))}
            return {"result": await tab.run(tab.page.evaluate(code))}

        return await self._browsers.read(call, session, run)


async def state_of(tab: Tab, ref: str) -> dict[str, Any]:
    """Return what the element of a ref is like now."""
    found = await tab.find(ref)
    state = await tab.run(found.handle.evaluate(STATE))
    facts = {"element": found.node.described(), **state}
    return {**facts, "healed": found.node.ref} if found.healed else facts


async def text_in(tab: Tab, ref: str) -> str:
    """Return the text of an element, or of the page with its frames."""
    if ref:
        found = await tab.find(ref)
        return str(await tab.run(found.handle.evaluate("element => element.innerText ?? element.textContent ?? ''")))
    texts = [str(await tab.run(tab.page.evaluate(_TEXT)))]
    for frame in tab.page.frames[1:50]:
        with contextlib.suppress(ToolError):
            texts.append(str(await tab.run(frame.evaluate(_TEXT), seconds=1)))
    return "\n".join(text for text in texts if text)


async def _shown(call: Call, lines: list[str], name: str, max_tokens: int) -> dict[str, Any]:
    """Return the beginning of some lines, and a handle of the whole where that is longer."""
    text, left = cut(lines, max_tokens - 60)
    if not left:
        return {name: text}
    return {name: text, "more_lines": left, "whole": await call.store("\n".join(lines))}


def _fits(node: Node, role: str, name: str, text: str) -> bool:
    if role and node.role != role:
        return False
    return name.lower() in node.name.lower() and text.lower() in f"{node.name} {node.text}".lower()


async def _area(tab: Tab, ref: str, *, full_page: bool) -> tuple[float, float, float, float]:
    """Return the part of the document to show: left, top, width and height."""
    handle = None
    if ref:
        handle = (await tab.find(ref)).handle
        with contextlib.suppress(ToolError):
            await tab.run(handle.scroll_into_view_if_needed(timeout=2000))
    width, height, left, top, view_width, view_height = await tab.run(tab.page.evaluate(_SIZE))
    if full_page and not ref:
        return 0, 0, width, height
    box = await tab.run(handle.bounding_box()) if handle is not None else None
    if box is None:
        return left, top, view_width, view_height
    return left + box["x"], top + box["y"], box["width"], box["height"]


async def _sampled(browser: BrowserSession) -> None:
    """Mask what password fields hold; a page that does not answer cannot add to it."""
    with contextlib.suppress(ToolError):
        await browser.tab.sample()


def _matching(browser: BrowserSession, match: str, *, failed: bool) -> list[Exchange]:
    return [
        item
        for item in browser.exchanges
        if match in item.request.url and (not failed or item.failure or item.status >= 400)  # noqa: PLR2004 - HTTP's
    ]


async def _details(browser: BrowserSession, number: int) -> dict[str, Any]:
    exchange = next((item for item in browser.exchanges if item.number == number), None)
    if exchange is None:
        raise ToolError("not_found", f"There is no request {number}.", kind="request")
    request = exchange.request
    facts = exchange.described()
    with contextlib.suppress(Error, TimeoutError):
        facts["headers"] = _public(await asyncio.wait_for(request.all_headers(), 1))
    with contextlib.suppress(Error, UnicodeDecodeError):
        facts["body"] = browser.masks.masked(request.post_data or "")[:_BODY]
    with contextlib.suppress(Error, TimeoutError):
        facts["response"] = await asyncio.wait_for(_response(browser, request), 3)
    return facts


async def _response(browser: BrowserSession, request: Request) -> dict[str, Any] | None:
    response = await request.response()
    if response is None:
        return None
    facts: dict[str, Any] = {"status": response.status, "headers": _public(await response.all_headers())}
    with contextlib.suppress(Error, UnicodeDecodeError):
        facts["body"] = browser.masks.masked(await response.text())[:_BODY]
    return facts


def _public(headers: dict[str, str]) -> dict[str, str]:
    return {name: value[:500] for name, value in headers.items() if name.lower() not in _PRIVATE_HEADERS}
