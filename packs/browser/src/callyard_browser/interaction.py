"""Tools that act on a page; each answers with what changed."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from playwright.async_api import ElementHandle, Error

from callyard import Call, Session, ToolError, tool
from callyard_browser.browsers import Browsers
from callyard_browser.failures import REASONS, failure_of
from callyard_browser.session import BrowserSession
from callyard_browser.tab import Found

__all__ = ["Interaction"]

_REASONS: Final = {
    name: REASONS[name]
    for name in (
        "browser_gone",
        "dialog_open",
        "element_covered",
        "element_disabled",
        "element_hidden",
        "page_crashed",
        "page_hung",
        "ref_gone",
        "tab_gone",
        "wrong_element",
    )
}
_FILL_REASONS: Final = {**_REASONS, "secret_not_allowed": REASONS["secret_not_allowed"]}
_UPLOAD_REASONS: Final = {**_REASONS, "unknown_file": REASONS["unknown_file"]}
_ACT_MS: Final = 3500
_IS_MASKED: Final = "field => field instanceof HTMLInputElement && field.type === 'password'"
_KIND: Final = "field => field.localName === 'select' ? 'select' : field.type || ''"
_TRUE: Final = frozenset({"true", "yes", "on", "1", "checked"})
_STEPS: Final = 5

Operate = Callable[[ElementHandle], Awaitable[Any]]


class Interaction:
    """The tools of this group, for one yard."""

    def __init__(self, browsers: Browsers) -> None:
        self._browsers = browsers

    async def _on(self, call: Call, session: Session, ref: str, operate: Operate) -> dict[str, Any]:
        return await self._browsers.act(call, session, lambda browser: browser.on_element(ref, operate))

    @tool(name="browser_click", operation="command", serial=True, reasons=_REASONS)
    async def click(
        self,
        call: Call,
        session: Session,
        *,
        ref: str,
        button: Literal["left", "right", "middle"] = "left",
        count: int = 1,
    ) -> dict[str, Any]:
        """Click an element."""
        times = max(1, min(count, 3))
        return await self._on(
            call, session, ref, lambda element: element.click(button=button, click_count=times, timeout=_ACT_MS)
        )

    @tool(name="browser_fill", operation="command", serial=True, reasons=_FILL_REASONS)
    async def fill(
        self, call: Call, session: Session, *, ref: str, text: str = "", secret: str = "", submit: bool = False
    ) -> dict[str, Any]:
        """Replace a field's text, or type a configured secret."""

        async def operate(element: ElementHandle, browser: BrowserSession) -> None:
            value = text
            if secret:
                frame = await element.owner_frame()
                value = self._browsers.secret_for(secret, frame.url if frame is not None else "")
            await _fill(browser, element, value)
            if submit:
                await element.press("Enter", timeout=_ACT_MS)

        return await self._browsers.act(
            call, session, lambda browser: browser.on_element(ref, lambda element: operate(element, browser))
        )

    @tool(name="browser_fill_form", operation="command", serial=True, reasons=_REASONS)
    async def fill_form(self, call: Call, session: Session, fields: list[dict[str, str]]) -> dict[str, Any]:
        """Fill several fields, each {ref, value}."""
        wrong = next((field for field in fields if set(field) != {"ref", "value"}), None)
        if wrong is not None or not fields:
            issue = {"field": "fields", "code": "value_error", "message": "Each field has 'ref' and 'value'."}
            raise ToolError("invalid_input", "Each field has 'ref' and 'value'.", issues=[issue])

        async def fill_all(browser: BrowserSession) -> Found | None:
            for field in fields:  # all, before the first is filled
                await browser.tab.find(field["ref"])
            found = None
            for field in fields:
                found = await browser.on_element(
                    field["ref"], lambda element, value=field["value"]: _set(browser, element, value)
                )
            return found

        return await self._browsers.act(call, session, fill_all)

    @tool(name="browser_type", operation="command", serial=True, reasons=_REASONS)
    async def type_text(self, call: Call, session: Session, text: str, ref: str = "") -> dict[str, Any]:
        """Type key by key."""
        return await self._keys(call, session, ref, lambda browser: browser.tab.page.keyboard.type(text))

    @tool(name="browser_press", operation="command", serial=True, reasons=_REASONS)
    async def press(self, call: Call, session: Session, keys: list[str], ref: str = "") -> dict[str, Any]:
        """Press keys, such as 'Enter' or 'Control+a'."""

        async def press_all(browser: BrowserSession) -> None:
            for key in keys[:100]:
                await browser.tab.page.keyboard.press(key)

        return await self._keys(call, session, ref, press_all)

    async def _keys(
        self, call: Call, session: Session, ref: str, work: Callable[[BrowserSession], Awaitable[None]]
    ) -> dict[str, Any]:
        """Use the keyboard, in an element if there is one."""

        async def operate(browser: BrowserSession) -> Found | None:
            found = await browser.on_element(ref, lambda element: element.focus()) if ref else None
            try:
                await work(browser)
            except Error as error:
                raise failure_of(error) from error
            return found

        return await self._browsers.act(call, session, operate)

    @tool(name="browser_select_option", operation="command", serial=True, reasons=_REASONS)
    async def select_option(self, call: Call, session: Session, ref: str, values: list[str]) -> dict[str, Any]:
        """Choose options of a list, by value or label."""
        return await self._on(call, session, ref, lambda element: element.select_option(values, timeout=_ACT_MS))

    @tool(name="browser_check", operation="command", serial=True, idempotent=True, reasons=_REASONS)
    async def check(self, call: Call, session: Session, *, ref: str, checked: bool = True) -> dict[str, Any]:
        """Check or uncheck a box."""
        return await self._on(call, session, ref, lambda element: element.set_checked(checked, timeout=_ACT_MS))

    @tool(name="browser_hover", operation="command", serial=True, reasons=_REASONS)
    async def hover(self, call: Call, session: Session, ref: str) -> dict[str, Any]:
        """Move the mouse over an element."""
        return await self._on(call, session, ref, lambda element: element.hover(timeout=_ACT_MS))

    @tool(name="browser_drag", operation="command", serial=True, reasons=_REASONS)
    async def drag(self, call: Call, session: Session, ref: str, to: str) -> dict[str, Any]:
        """Drag an element to another."""

        async def operate(browser: BrowserSession) -> Found | None:
            await browser.tab.find(to)
            mouse = browser.tab.page.mouse
            found = await browser.on_element(ref, lambda element: element.hover(timeout=_ACT_MS))
            await mouse.down()
            try:
                await browser.on_element(to, lambda element: _move_over(browser, element))
            finally:
                await mouse.up()
            return found

        return await self._browsers.act(call, session, operate)

    @tool(name="browser_upload", operation="command", serial=True, reasons=_UPLOAD_REASONS)
    async def upload(self, call: Call, session: Session, ref: str, paths: list[str]) -> dict[str, Any]:
        """Put files or handles into a file field."""
        files = await self._browsers.files(call, paths)
        return await self._on(call, session, ref, lambda element: element.set_input_files(files, timeout=_ACT_MS))


async def _fill(browser: BrowserSession, element: ElementHandle, value: str) -> None:
    if await element.evaluate(_IS_MASKED):
        browser.masks.hold([value])
    await element.fill(value, timeout=_ACT_MS)


async def _set(browser: BrowserSession, element: ElementHandle, value: str) -> None:
    """Give a field a value as fits its kind."""
    kind = await element.evaluate(_KIND)
    if kind == "select":
        await element.select_option([value], timeout=_ACT_MS)
    elif kind in {"checkbox", "radio"}:
        await element.set_checked(value.lower() in _TRUE, timeout=_ACT_MS)
    else:
        await _fill(browser, element, value)


async def _move_over(browser: BrowserSession, element: ElementHandle) -> None:
    """Move the pressed mouse over an element, in steps as a hand does."""
    await element.scroll_into_view_if_needed(timeout=_ACT_MS)
    box = await element.bounding_box()
    if box is not None:
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        await browser.tab.page.mouse.move(*middle, steps=_STEPS)
