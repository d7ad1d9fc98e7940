"""The page 'Incidents': who sees what is wrong, and who silences it."""

from collections.abc import Awaitable, Callable
from typing import Any

from playwright.async_api import Page, expect

from callyard import ToolError, Yard, tool

Until = Callable[[Callable[[], object]], Awaitable[None]]
MARKUP = "<img src=x onerror=alert(1)>"


@tool(operation="query")
async def failing() -> str:
    """Fail."""
    raise ToolError("upstream_error", "No.")


async def post(served: Any, person: Any, action: str, **fields: str) -> Any:
    headers, csrf = person
    return await served.client.post(f"/console/incidents/{action}", data={"csrf": csrf, **fields}, headers=headers)


async def fail(served: Any, until: Until) -> None:
    for _ in range(6):
        await served.call("failing")
    await until(lambda: "errors/failing" in served.incidents.problems)
    await until(lambda: served.incidents.leads)


async def test_an_incident_is_silenced_with_a_button(serve: Any, look: Any, until: Until) -> None:
    async with serve(Yard("shop", tools=[failing])) as served:
        page: Page = await look(served.login_to("incidents"))
        await expect(page.get_by_text("Nothing is wrong")).to_be_visible()
        await fail(served, until)
        row = page.get_by_role("row", name="errors failing")
        await expect(row).to_contain_text("warning")
        await expect(page.locator("#nav").get_by_role("link", name="Incidents")).to_contain_text("1")
        await page.reload()
        await page.get_by_role("button", name="Silence errors/failing").click()
        await expect(page.get_by_role("row", name="errors failing")).to_contain_text("silenced")
        await page.get_by_role("region", name="Silences").get_by_role("button", name="End").click()
        await expect(page.get_by_role("row", name="errors failing")).to_contain_text("warning")
        form = page.get_by_role("region", name="Silence", exact=True)
        await form.get_by_label("Pattern").fill("hung/*")
        await form.get_by_label("Why").fill(f"Known. {MARKUP}")
        await form.get_by_role("button", name="Silence", exact=True).click()
        await expect(page.get_by_role("region", name="Silences")).to_contain_text(MARKUP)


async def test_only_a_person_with_a_login_sees_incidents_and_silences_them(serve: Any, until: Until) -> None:
    async with serve(Yard("shop", tools=[failing])) as served:
        await fail(served, until)
        person = await served.person()
        nobody: tuple[dict[str, str], str] = {}, ""
        forbidden = [await post(served, nobody, action, pattern="*", period="900") for action in ("silence", "end")]
        wrong = await post(served, person, "silence", pattern="*", period="7")
        unknown = await post(served, person, "toggle", pattern="*")
        done = await post(served, person, "silence", pattern="*", period="900")
        read = (await served.client.get("/console/incidents")).text
        seen = (await served.client.get("/console/incidents", headers=person[0])).text

    assert [answer.status_code for answer in forbidden] == [403, 403]
    assert "bad=1" in wrong.headers["location"]
    assert (unknown.status_code, done.status_code) == (404, 303)
    assert "errors/failing" not in read
    assert "failed in 6 of 6 calls" not in read
    assert "failed in 6 of 6 calls" in seen


async def test_a_server_that_judges_nothing_has_no_such_page(serve: Any) -> None:
    async with serve(Yard("shop"), "[alerts]\nenabled = false\n") as served:
        person = await served.person()
        page = await served.client.get("/console/incidents", headers=person[0])
        posted = await post(served, person, "silence", pattern="*", period="900")
        overview = (await served.client.get("/console", headers=person[0])).text

    assert (page.status_code, posted.status_code) == (404, 404)
    assert "Incidents" not in overview
