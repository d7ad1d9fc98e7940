"""Tools that wait until a page is as expected; each tries again until its time is over."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import jsonschema_rs
from playwright.async_api import expect

from callyard import Call, Session, ToolError, tool
from callyard_browser.browsers import Browsers
from callyard_browser.failures import REASONS
from callyard_browser.reading import state_of, text_in
from callyard_browser.session import BrowserSession
from callyard_browser.snapshot import cut
from callyard_browser.tab import Tab

__all__ = ["Expectations"]

_NAMES: Final = (
    "browser_gone",
    "dialog_open",
    "expectation_failed",
    "page_crashed",
    "page_hung",
    "ref_gone",
    "tab_gone",
)
_REASONS: Final = {name: REASONS[name] for name in _NAMES}
_MOST_S: Final = 60
_TIMEOUT: Final = 75
_POLL_S: Final = 0.1
_SHOWN: Final = 400
_SHOWN_TOKENS: Final = 300

Probe = Callable[[], Awaitable[tuple[bool, Any]]]
"""Returns whether it is as expected, and how it is."""
Holds = Callable[[str], bool]


class Expectations:
    """The tools of this group, for one yard."""

    def __init__(self, browsers: Browsers) -> None:
        self._browsers = browsers

    @tool(name="browser_expect_text", operation="query", timeout=_TIMEOUT, reasons=_REASONS)
    async def expect_text(
        self,
        call: Call,
        session: Session,
        *,
        ref: str = "",
        contains: str = "",
        equals: str = "",
        matches: str = "",
        absent: bool = False,
        timeout_s: float = 5,
    ) -> dict[str, Any]:
        """Wait for a text, or until it is absent."""
        holds, expected = _condition(contains, equals, matches)

        async def expect_it(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            async def probe() -> tuple[bool, Any]:
                await tab.sample()
                text = tab.masked(await text_in(tab, ref))
                return holds(text) != absent, text[:_SHOWN]

            shown = {**expected, "absent": True} if absent else expected
            return await _until(tab, timeout_s, shown, probe, may_be_gone=absent)

        return await self._browsers.read(call, session, expect_it)

    @tool(name="browser_expect_state", operation="query", timeout=_TIMEOUT, reasons=_REASONS)
    async def expect_state(
        self, call: Call, session: Session, *, ref: str, state: dict[str, str | bool], timeout_s: float = 5
    ) -> dict[str, Any]:
        """Wait until fields of get_state have values."""

        async def expect_it(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            async def probe() -> tuple[bool, Any]:
                found = await state_of(tab, ref)
                actual = {name: found.get(name) for name in state}
                return actual == state, actual

            return await _until(tab, timeout_s, state, probe)

        return await self._browsers.read(call, session, expect_it)

    @tool(name="browser_expect_count", operation="query", timeout=_TIMEOUT, reasons=_REASONS)
    async def expect_count(
        self,
        call: Call,
        session: Session,
        *,
        role: str = "",
        name: str = "",
        at_least: int = 1,
        at_most: int = 100_000,
        timeout_s: float = 5,
    ) -> dict[str, Any]:
        """Wait for a number of elements."""

        async def expect_it(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            async def probe() -> tuple[bool, Any]:
                nodes = (await tab.look()).nodes
                count = sum(1 for node in nodes if node.ref and role in {"", node.role} and name in node.name)
                return at_least <= count <= at_most, count

            return await _until(tab, timeout_s, {"at_least": at_least, "at_most": at_most}, probe)

        return await self._browsers.read(call, session, expect_it)

    @tool(name="browser_expect_url", operation="query", timeout=_TIMEOUT, reasons=_REASONS)
    async def expect_url(
        self, call: Call, session: Session, *, contains: str = "", matches: str = "", timeout_s: float = 5
    ) -> dict[str, Any]:
        """Wait for an address."""
        holds, expected = _condition(contains, "", matches)

        async def expect_it(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            async def probe() -> tuple[bool, Any]:
                url = tab.masked(tab.page.url)
                return holds(url), url[:_SHOWN]

            return await _until(tab, timeout_s, expected, probe)

        return await self._browsers.read(call, session, expect_it)

    @tool(name="browser_expect_snapshot", operation="query", timeout=_TIMEOUT, reasons=_REASONS)
    async def expect_snapshot(self, call: Call, session: Session, pattern: str, timeout_s: float = 5) -> dict[str, Any]:
        """Wait for an aria pattern, such as '- button "Save"'."""

        async def expect_it(_: BrowserSession, tab: Tab) -> dict[str, Any]:
            async def probe() -> tuple[bool, Any]:
                body = expect(tab.page.locator("body"))
                try:
                    await tab.run(body.to_match_aria_snapshot(pattern, timeout=500))
                except AssertionError:
                    text, _ = cut([line.text for line in (await tab.look()).lines], _SHOWN_TOKENS)
                    return False, text
                return True, None

            return await _until(tab, timeout_s, pattern, probe)

        return await self._browsers.read(call, session, expect_it)


def _condition(contains: str, equals: str, matches: str) -> tuple[Holds, dict[str, str]]:
    """Return a check of texts, and the same as data.

    Raises:
        ToolError: `invalid_input` if there is none or more than one, or the pattern is wrong.
    """
    given = {"contains": contains, "equals": equals, "matches": matches}
    expected = {name: value for name, value in given.items() if value}
    if len(expected) != 1:
        message = "Give exactly one of 'contains', 'equals' and 'matches'."
        raise ToolError("invalid_input", message, issues=[{"field": "contains", "code": "one_of", "message": message}])
    if contains:
        return lambda text: contains in text, expected
    if equals:
        return lambda text: text.strip() == equals.strip(), expected
    try:
        # an engine that takes linear time: a pattern of an agent must not stop the yard
        pattern = jsonschema_rs.validator_for({"pattern": matches}, pattern_options=jsonschema_rs.RegexOptions())
    except ValueError as error:
        message = "The pattern is no regular expression without look-around and back-references."
        issue = {"field": "matches", "code": "pattern", "message": message}
        raise ToolError("invalid_input", message, issues=[issue]) from error
    return pattern.is_valid, expected


async def _until(
    tab: Tab, timeout_s: float, expected: Any, probe: Probe, *, may_be_gone: bool = False
) -> dict[str, Any]:
    """Try until it is as expected; an element that is gone may come back, or is what was expected.

    Raises:
        ToolError: `state_error`, reason `expectation_failed`, with what was expected and what there is; `not_found`,
        reason `ref_gone`, if the element did not come back.
    """
    started = time.monotonic()
    deadline = started + max(0.0, min(timeout_s, _MOST_S))
    while True:
        gone: ToolError | None = None
        try:
            as_expected, actual = await probe()
        except ToolError as error:
            if error.details.get("reason") != "ref_gone":
                raise
            as_expected, actual, gone = may_be_gone, None, error
        if as_expected:
            return {"held_after_ms": round((time.monotonic() - started) * 1000)}
        if time.monotonic() >= deadline:
            if gone is not None:
                raise gone
            message = "The page is not as expected."
            raise ToolError("state_error", message, reason="expectation_failed", expected=expected, actual=actual)
        await asyncio.sleep(_POLL_S)
        tab.check()
