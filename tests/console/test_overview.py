"""The overview: first steps, live numbers, what needs attention, and how the page behaves in a browser."""

import asyncio
from typing import Any

import httpx2
import pytest
from playwright.async_api import Page, expect

from callyard import ToolError, Yard, tool

MARKUP = "<img src=x onerror=alert(1)>"


@tool(operation="query")
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@tool(operation="query")
async def break_down() -> str:
    """Fail by its own fault."""
    raise ToolError("internal_error", "It broke.", blame="tool")


@tool(operation="destroy")
async def wipe() -> str:
    """Delete everything."""
    return "gone"


async def read_events(client: httpx2.AsyncClient, url: str, count: int) -> list[str]:
    """Return the first events of a stream."""
    events: list[str] = []
    async with client.stream("GET", url, timeout=60) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                events.append(line)
            if len(events) == count:
                break
    return events


async def test_a_new_yard_shows_the_first_three_steps_until_the_first_call(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, wipe])) as served:
        before = (await served.client.get("/console")).text
        await served.call("echo", {"text": "x"})
        after = (await served.client.get("/console")).text

    assert "Three steps" in before
    assert f"{served.base}/mcp" in before
    assert "/console/tools?open=echo" in before
    assert "/console/tools?open=wipe" in before
    assert "Three steps" not in after


async def test_failures_of_a_tool_need_attention_and_failures_of_callers_do_not(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, break_down])) as served:
        for _ in range(6):
            await served.call("break_down")
            await served.call("echo")
        page = (await served.client.get("/console")).text

    assert "100% of the latest calls of &#39;break_down&#39; failed." in page
    assert "&#39;echo&#39; fail." not in page
    assert "invalid_input" in page


async def test_a_held_call_needs_attention(serve: Any) -> None:
    async with serve(Yard("shop", tools=[wipe]), "[limits]\napproval_hold_s = 0\n") as served:
        answer = await served.call("wipe")
        page = (await served.client.get("/console")).text

    assert answer["data"]["status"] == "approval_required"
    assert "1 call waits for approval." in page


async def test_live_blocks_are_sent_when_they_change(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        reading = asyncio.ensure_future(read_events(served.client, "/console/live", 2))
        await served.call("echo", {"text": "x"})
        first, second = await reading

    assert '"numbers"' in first
    assert '"numbers"' in second
    assert '"codes"' not in second


async def test_a_stream_ends_with_its_login(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        cookie, csrf = await served.person()
        async with served.client.stream("GET", "/console/live", headers=cookie, timeout=60) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await served.client.post("/console/logout", data={"csrf": csrf}, headers=cookie)
            rest = [line async for line in lines]

    assert response.status_code == 200
    assert all("csrf" not in line for line in rest)


async def test_the_server_ends_while_pages_are_open(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        reading = asyncio.ensure_future(read_events(served.client, "/console/live", 100))
        await served.call("echo", {"text": "x"})

    with pytest.raises(httpx2.HTTPError):
        await asyncio.wait_for(reading, 60)


async def test_a_page_in_a_browser_updates_by_itself_and_shows_markup_as_text(serve: Any, look: Any) -> None:
    async with serve(Yard(MARKUP, tools=[echo])) as served:
        page: Page = await look(served.login)
        await expect(page.locator(".brand")).to_contain_text(MARKUP)
        await expect(page.get_by_text("Three steps to start")).to_be_visible()
        await served.call("echo", {"text": "x"})
        await expect(page.get_by_role("cell", name="echo")).to_be_visible()
        await expect(page.get_by_text("Three steps to start")).to_be_hidden()

    assert "token" not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_needs_no_scrolling_sideways(serve: Any, look: Any, scheme: str) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        await served.call("echo", {"text": "x"})
        page: Page = await look(served.login, width=360, scheme=scheme)
        widths: Any = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        background: Any = await page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert widths[0] <= widths[1]
    assert (background == "rgb(15, 18, 23)") is (scheme == "dark")


async def test_keys_reach_the_search_and_all_actions(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        page: Page = await look(served.login)
        await page.keyboard.press("/")
        await expect(page.locator("#find")).to_be_focused()
        await page.keyboard.press("Control+k")
        await expect(page.get_by_role("dialog", name="Actions")).to_be_visible()
        await page.keyboard.type("over")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


async def test_the_first_steps_lead_to_all_tools_where_none_only_reads(serve: Any) -> None:
    async with serve(Yard("shop", tools=[wipe])) as served:
        page = (await served.client.get("/console")).text

    assert '<a class="button primary" href="/console/tools">' in page


async def test_hidden_tabs_leave_the_connections_to_others(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        page: Page = await look(served.login)
        tabs = [page, *[await page.context.new_page() for _ in range(7)]]
        for tab in tabs[1:]:
            await tab.goto(f"{served.base}/console/calls", timeout=60_000)
            await hide(tab, is_hidden=True)
        await hide(tabs[1], is_hidden=False)
        await served.call("echo", {"text": "x"})
        await expect(tabs[1].locator("#finished").get_by_text("echo")).to_be_visible()
        await expect(tabs[2].locator("#finished").get_by_text("echo")).to_have_count(0)


async def hide(page: Page, *, is_hidden: bool) -> None:
    """Hide or show a tab as the browser does when a person chooses another one, which a headless browser never does."""
    await page.evaluate(
        """(isHidden) => {
          Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


@pytest.mark.parametrize("width", [390, 1280])
async def test_a_page_says_that_its_server_is_gone_and_recovers(serve: Any, look: Any, width: int) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        page: Page = await look(served.login, width=width)
        await expect(page.locator("#numbers")).to_be_visible()
        port = served.base.rpartition(":")[2]
    await expect(page.locator("#state")).to_have_text("Disconnected", timeout=60_000)
    await expect(page.locator("#state")).to_be_visible()
    await page.locator("#nav").get_by_text("Tools").click()
    await expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    async with serve(Yard("shop", tools=[echo]), **{"serve.port": port}):
        await expect(page.locator("#state")).to_have_text("Running", timeout=60_000)


async def test_a_form_that_reaches_nobody_can_be_sent_again(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[wipe]), "[limits]\napproval_hold_s = 0\n") as served:
        await served.call("wipe")
        page: Page = await look(served.login_to("approvals"))
        await page.route("**/approvals/decide/**", lambda route: route.abort())
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await expect(page.get_by_role("button", name="Approve")).to_be_enabled()


async def test_all_actions_open_a_tool_run_it_and_select_the_first_call(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[echo, wipe]), "[limits]\napproval_hold_s = 0\n") as served:
        await served.call("wipe")
        page: Page = await look(served.login)
        actions = page.get_by_role("dialog", name="Actions").get_by_role("listitem")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("wip")
        await expect(actions.first).to_contain_text("wipe")
        await page.keyboard.press("Enter")
        await expect(page.locator(".drawer h1")).to_contain_text("wipe")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("run wipe")
        await page.keyboard.press("Enter")
        await expect(page.locator("#run_question")).to_contain_text("wipe")
        await page.keyboard.press("Control+k")
        await page.keyboard.type("approvals")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("article").first).to_be_visible()
        await page.keyboard.press("Control+k")
        await expect(actions.first).to_contain_text("Overview")  # Enter alone decides nothing
        await page.keyboard.type("decide")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("article").first).to_be_focused()  # and nothing is decided yet
        await page.keyboard.press("a")
        await expect(page.get_by_role("article").first).to_contain_text("Approved")


async def test_on_a_phone_without_scripts_all_pages_can_be_reached(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        page: Page = await look(f"{served.base}/console", width=390, scripts=False)
        await expect(page.locator("#nav").get_by_role("link", name="Settings")).to_be_hidden()
        await page.get_by_role("link", name="More").click()
        await page.locator("#nav").get_by_role("link", name="Settings").click()
        await expect(page.get_by_role("heading", name="Settings")).to_be_visible()


async def test_a_long_name_of_the_yard_is_cut_with_an_ellipsis_and_whole_on_hover(serve: Any, look: Any) -> None:
    name = "a-yard-with-quite-a-long-name-" * 3
    async with serve(Yard(name, tools=[echo])) as served:
        page: Page = await look(served.login)
        brand = page.locator(".brand span")

        assert await brand.evaluate("e => [getComputedStyle(e).textOverflow, e.scrollWidth > e.clientWidth]") == [
            "ellipsis",
            True,
        ]
        assert await brand.get_attribute("title") == name


async def test_a_page_weighs_under_200_kb(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        page = await served.client.get("/console")
        files = [
            await served.client.get(f"/console/static/{name}")
            for name in ("console.css", "access.js", "console.js", "theme.js", "icon.svg")
        ]

    assert sum(len(response.content) for response in (page, *files)) < 200_000
