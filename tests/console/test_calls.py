"""The page 'Calls': calls as live trees, filters, cancelling, one call in full, and the facts that it never shows."""

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from callyard import Call, Caller, ToolError, Yard, tool
from callyard.console.page import timeline
from callyard.console.pages import calls

MARKUP = "<img src=x onerror=alert(1)>"
PAGE_BYTES = 200_000


@tool(operation="query")
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@tool(operation="query")
async def outer(call: Call, times: int = 2) -> int:
    """Call another tool, and once wrongly."""
    for number in range(times):
        await call.invoke("echo", {"text": str(number)})
    await call.invoke("echo", {})
    return times


@tool
async def wait() -> None:
    """Wait until it is cancelled."""
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def calls_in_flight_are_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_LONG_MS", 0.0)


def rows_in(page: str, part: str = "finished") -> list[str]:
    """Return the tools in the rows of a part of the page, inner calls with a mark."""
    table = page.partition(f'id="{part}"')[2].partition("</table>")[0]
    rows = table.partition("<tbody>")[2].split("<tr class=")[1:]
    return [
        ("> " if row.startswith('"inner"') else "")
        + row.partition('class="name"')[2].partition(">")[2].partition("<")[0]
        for row in rows
    ]


async def start_waiting(served: Any, count: int = 1) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(served.call("wait")) for _ in range(count)]
    async with asyncio.timeout(60):
        while served.yard.calls_in_flight < count:  # noqa: ASYNC110 - the tool cannot tell
            await asyncio.sleep(0.005)
    return tasks


async def test_calls_are_listed_newest_first_with_their_inner_calls_below_them(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, outer])) as served:
        empty = (await served.client.get("/console/calls")).text
        await served.call("outer")
        await served.call("echo", {"text": "x"})
        page = (await served.client.get("/console/calls")).text

    assert "No call yet" in empty
    assert f"{served.base}/mcp" in empty
    assert rows_in(page) == ["echo", "outer", "> echo", "> echo", "> echo"]
    assert page.count('<svg class="timeline"') == 5


async def test_calls_are_filtered_by_tool_caller_and_code_in_the_url(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, outer])) as served:

        async def rows(query: str) -> list[str]:
            return rows_in((await served.client.get(f"/console/calls?{query}")).text)

        await served.yard.call("echo", {"text": "x"}, caller=Caller(identity="ada"))
        await served.yard.call("echo", {}, caller=Caller(identity="bob"))
        await served.yard.call("outer", {}, caller=Caller(identity="bob"))
        assert len(await rows("")) == 6
        assert await rows("caller=ada") == ["echo"]
        assert await rows("caller=bob&tool=outer") == ["outer", "> echo", "> echo", "> echo"]
        assert await rows("code=invalid_input") == ["outer", "> echo", "> echo", "> echo", "echo"]
        assert await rows("code=ok&caller=ada") == ["echo"]
        assert await rows("code=timeout") == []


async def test_a_thousand_records_make_no_longer_page_than_fifty(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, outer])) as served:
        for _ in range(60):
            await served.yard.call("outer", {"times": 20})
        page = (await served.client.get("/console/calls")).text
        opened = page.partition("?open=")[2].partition('"')[0]
        drawer = (await served.client.get(f"/console/calls?open={opened}")).text

    rows = rows_in(page)
    assert 100 <= len(rows) <= 120
    assert rows.count("outer") == len(rows) - rows.count("> echo") - rows.count("> ")
    assert "15 more inner calls" in page
    assert len(page) < len(drawer) < PAGE_BYTES
    assert len(rows_in(drawer, "call")) == 22


async def test_an_opened_call_stays_open_when_its_record_is_gone(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, outer])) as served:
        call_id = (await served.yard.call("outer")).meta.call_id
        before = (await served.client.get(f"/console/calls?open={call_id}")).text
        for _ in range(1200):
            await served.yard.call("echo", {"text": "x"})
        after = (await served.client.get(f"/console/calls?open={call_id}")).text
        never = (await served.client.get("/console/calls?open=c_unknown")).text

    assert rows_in(after, "call") == rows_in(before, "call") == ["outer", "> echo", "> echo", "> echo"]
    assert "no longer among the last" in never


async def test_one_call_is_shown_with_its_facts(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, outer])) as served:
        trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        await served.call("echo", {}, **trace)
        call_id = (await served.client.get("/console/calls")).text.partition("?open=")[2].partition('"')[0]
        page = (await served.client.get(f"/console/calls?open={call_id}")).text

    drawer = page.partition('id="call"')[2]
    for text in (
        "invalid_input",
        "query",
        "echo",
        "http",
        "everything",
        "a" * 32,
        "To blame: caller",
        "tokens",
        "Repaired",
        "May have run",
    ):
        assert text in drawer


async def test_a_call_in_flight_is_cancelled_by_a_person_with_a_login_alone(serve: Any) -> None:
    async with serve(Yard("shop", tools=[wait])) as served:
        [answer] = await start_waiting(served)
        cookie, csrf = await served.person()
        read = (await served.client.get("/console/calls")).text
        page = (await served.client.get("/console/calls", headers=cookie)).text
        call_id = page.partition('name="call" value="')[2].partition('"')[0]
        refused = await served.client.post("/console/calls/cancel", data={"call": call_id})
        form = {"csrf": csrf, "call": call_id, "back": "/console/calls?tool=wait"}
        done = await served.client.post("/console/calls/cancel", data=form, headers=cookie)
        envelope = await answer
        again = await served.client.post("/console/calls/cancel", data=form, headers=cookie)
        unknown = await served.client.post("/console/calls/dance", data=form, headers=cookie)

    assert rows_in(page, "running") == rows_in(read, "running") == ["wait"]
    assert call_id
    assert 'name="call"' not in read
    assert refused.status_code == 403
    assert done.headers["location"].startswith("/console/calls?tool=wait&notice=")
    assert envelope["error"]["code"] == "cancelled"
    assert "bad=1" in again.headers["location"]
    assert unknown.status_code == 404


async def test_contents_are_shown_for_runs_of_the_same_login_alone(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        ada, bob = await served.person(), await served.person()
        form = {"csrf": ada[1], "tool": "echo", "arguments": '{"text": "planted"}', "back": "/console/tools"}
        await served.client.post("/console/tools/run", data=form, headers=ada[0])
        await served.call("echo", {"text": "planted by an agent"})
        listed = (await served.client.get("/console/calls", headers=ada[0])).text
        ids = [part.partition('"')[0] for part in listed.split("?open=")[1:]]
        everybody: list[dict[str, str]] = [ada[0], bob[0], {}]
        pages = [
            [(await served.client.get(f"/console/calls?open={one}", headers=headers)).text for headers in everybody]
            for one in ids
        ]

    by_agent, by_ada = pages
    assert "planted" in by_ada[0]
    assert "/console/tools?open=echo&amp;run=" in by_ada[0]
    assert not any("planted" in page for page in (listed, *by_ada[1:], *by_agent))


async def test_a_call_that_still_runs_leads_to_its_run(serve: Any) -> None:
    async with serve(Yard("shop", tools=[wait])) as served:
        cookie, csrf = await served.person()
        await served.client.post(
            "/console/tools/run", data={"csrf": csrf, "tool": "wait", "arguments": "{}"}, headers=cookie
        )
        call_id = next(iter(served.yard.dispatcher.in_flight))
        page = (await served.client.get(f"/console/calls?open={call_id}", headers=cookie)).text

    assert "Watch it run" in page
    assert "running" in page.partition('id="call"')[2]


async def test_the_session_of_a_call_is_shown_to_people_with_a_login_alone(serve: Any) -> None:
    @tool
    async def begin(call: Call) -> str:
        """Start a session."""
        return call.start_session().id

    async with serve(Yard("shop", tools=[begin])) as served:
        answer = await served.yard.call("begin")
        cookie, _ = await served.person()
        everybody: list[dict[str, str]] = [cookie, {}]
        pages = [
            (await served.client.get(f"/console/calls?open={answer.meta.call_id}", headers=headers)).text
            for headers in everybody
        ]
        link = re.findall(r'href="(/console/sessions\?open=[^"]+)"', pages[0])[0]
        opened, gone = [
            (await served.client.get(target, headers=cookie)).text
            for target in (link.partition("#")[0], "/console/sessions?open=x")
        ]

    assert [answer.data in page for page in pages] == [True, False]
    assert answer.data not in link
    assert f'id="{link.partition("#")[2]}" aria-selected="true"' in opened
    assert "has ended" in gone


async def test_long_codes_do_not_run_into_the_names_of_tools(serve: Any, look: Any) -> None:
    @tool(operation="query")
    async def unavailable() -> str:
        """Fail."""
        raise ToolError("upstream_unavailable", "No.")

    @tool(operation="query")
    async def outer(call: Call) -> str:
        """Call another tool."""
        await call.invoke("unavailable")
        return ""

    async with serve(Yard("shop", tools=[unavailable, outer])) as served:
        answer = await served.yard.call("outer")
        page: Page = await look(f"{served.base}/console/calls?open={answer.meta.call_id}")
        fits = await page.locator("td.w-status").evaluate_all(
            "cells => cells.map((e) => e.firstElementChild.getBoundingClientRect().right <= "
            "e.getBoundingClientRect().right)"
        )

    assert len(fits) == 4
    assert all(fits)


async def test_names_of_callers_show_as_text(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        answer = await served.yard.call("echo", {"text": "x"}, caller=Caller(identity=MARKUP))
        pages = [
            (await served.client.get(f"/console/calls?open={answer.meta.call_id}&tool={query}")).text
            for query in ("", MARKUP)
        ]

    assert all("<img src=x" not in page and "&lt;img src=x" in page for page in pages)


@pytest.mark.parametrize(
    ("start", "length", "waited"), [(0, 1, 0), (-1, 5, 9), (2, 0, 0), (0.5, 0.5, 0.25), (0.999, 0, 0)]
)
def test_a_bar_stays_in_its_span(start: float, length: float, waited: float) -> None:
    bar = str(timeline(start, length, waited=waited, kind="done", label=MARKUP))
    shares = [float(part.partition("%")[0]) for key in (' x="', ' width="') for part in bar.split(key)[1:]]

    assert all(0 <= share <= 100 for share in shares)
    assert "<img" not in bar


# In a browser


async def test_calls_appear_while_the_page_is_open_and_stand_still_under_the_mouse(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[echo, outer])) as served:
        page: Page = await look(f"{served.base}/console/calls")
        rows = page.locator("#finished tbody tr")
        await served.yard.call("outer")
        await expect(rows).to_have_count(4)
        await rows.first.hover()
        async with page.expect_event("console", lambda message: message.text == "an event came"):
            tell = "if (id === 'finished') console.log('an event came');"
            watch = f"const swaps = swap; window.swap = (id, html) => {{ swaps(id, html); {tell} }};"
            await page.evaluate(f"() => {{ {watch} }}")
            await served.yard.call("echo", {"text": "x"})
        await expect(rows).to_have_count(4)
        await page.locator("h1").first.hover()
        await expect(rows).to_have_count(5)


async def test_a_call_opens_in_a_drawer_with_its_tree(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[echo, outer])) as served:
        await served.yard.call("outer", caller=Caller(identity=MARKUP))
        page: Page = await look(f"{served.base}/console/calls")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator(".drawer tbody tr")).to_have_count(4)
        await expect(page.locator(".drawer .facts")).to_contain_text(MARKUP)
        assert await page.locator("img[src=x]").count() == 0
        await page.locator(".drawer tr.inner .name").last.click()
        await expect(page.locator(".drawer .facts")).to_contain_text("Inside")
        await page.go_back()
        await expect(page.locator(".drawer tbody tr")).to_have_count(4)


async def test_a_person_cancels_a_call_in_the_page(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[wait])) as served:
        page: Page = await look(served.login_to("calls"))
        answers = await start_waiting(served, 2)
        await expect(page.locator("#running tbody tr")).to_have_count(2)
        await page.locator("#running").get_by_role("button", name="Cancel").first.click()
        await expect(page.locator("#running tbody tr")).to_have_count(1)
        await page.locator("#running").get_by_role("button", name="Cancel").first.click()
        await expect(page.locator("#finished tbody tr")).to_have_count(2)
        codes = [(await answer)["error"]["code"] for answer in answers]

    assert codes == ["cancelled", "cancelled"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_on_a_phone_calls_are_cards(serve: Any, look: Any, scheme: str) -> None:
    fits = (
        "() => [document.documentElement, ...document.querySelectorAll('.drawer')]"
        ".every((part) => part.scrollWidth <= part.clientWidth)"
    )
    async with serve(Yard("shop", tools=[echo, outer])) as served:
        answer = await served.yard.call(
            "outer", {"times": 20}, caller=Caller(identity="somebody with a very long name" * 3)
        )
        page: Page = await look(f"{served.base}/console/calls", width=390, scheme=scheme)
        assert await page.evaluate(fits)
        await page.goto(f"{served.base}/console/calls?open={answer.meta.call_id}")
        await expect(page.locator(".drawer tbody tr")).to_have_count(22)
        assert await page.evaluate(fits)
