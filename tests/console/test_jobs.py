"""Jobs and sessions in the console: what readers see, and what people with a login can end, answer and read."""

import asyncio
import itertools
import re
import time
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest
from mcp import Client
from playwright.async_api import Page, expect

from callyard import Call, Caller, Channel, MemoryStore, Yard, tool
from callyard.jobs.job import JOBS, RUNNING, TASKS, Job, new_job_id

MARKUP = "<img src=x onerror=alert(1)>"
FORM = {
    "type": "object",
    "properties": {
        "coach": {"type": "string", "enum": ["first", "second"], "title": "Coach"},
        "seats": {"type": "integer", "title": "Seats", "minimum": 1},
        "quiet": {"type": "boolean", "title": "Quiet"},
        "extras": {
            "type": "array",
            "title": "Extras",
            "items": {"anyOf": [{"const": "t", "title": "tea"}, {"const": "b", "title": "bike"}]},
        },
        "side": {
            "type": "string",
            "oneOf": [{"const": "l", "title": "left"}, {"const": "r", "title": "right"}],
            "default": "r",
        },
    },
    "required": ["coach", "seats"],
}


@tool(job="always")
async def report(call: Call) -> str:
    """Write a report until it is cancelled."""
    call.progress(1, 4, MARKUP)
    call.log("warning", f"planted {MARKUP} with password=hunter22", api_key="hunter23")
    await asyncio.Event().wait()
    return "never"


@tool(job="always")
async def book(call: Call) -> dict[str, Any]:
    """Ask which seat to book."""
    return await call.ask(FORM, f"Which seat? {MARKUP}")


@tool(job="always")
async def plan(call: Call) -> list[Any]:
    """Ask two things at once."""
    names = ("Coach", "Meal")
    forms = ({"type": "object", "properties": {name.lower(): {"type": "string", "title": name}}} for name in names)
    return await asyncio.gather(*(call.ask(form, f"Which {name}?") for form, name in zip(forms, names, strict=True)))


@tool
async def start_basket(call: Call) -> str:
    """Start a session."""
    return call.start_session(kind=MARKUP).id


def shop() -> Yard:
    return Yard("shop", tools=[report, book, plan, start_basket])


def login_to(served: Any, page: str) -> str:
    return served.login_to(page)


async def start(served: Any, name: str, identity: str = "key:bot") -> str:
    """Start a job of a client that can be asked, and return its id."""
    channel = Channel(name="http", capabilities=frozenset({"elicitation", TASKS}))
    answer = await served.yard.call(name, {}, caller=Caller(identity=identity), channel=channel)
    return answer.data["job_id"]


async def wait_until(served: Any, job_id: str, status: str) -> Any:
    async with asyncio.timeout(60):
        while (job := await served.yard.jobs.wait(job_id, None, seconds=1)).status != status:
            pass
    return job


async def post(served: Any, person: Any, path: str, **fields: str) -> httpx2.Response:
    cookie, csrf = person
    return await served.client.post(f"/console/{path}", data={"csrf": csrf, **fields}, headers=cookie)


async def test_a_job_is_followed_and_cancelled_in_the_browser(serve: Any, look: Any) -> None:
    async with serve(shop()) as served:
        page: Page = await look(login_to(served, "jobs"))
        await expect(page.get_by_role("heading", name="There are no jobs")).to_be_visible()
        job_id = await start(served, "report")
        await page.get_by_role("link", name="report").click()
        drawer = page.get_by_role("complementary")
        await expect(drawer.get_by_role("log")).to_contain_text(f"planted {MARKUP}")
        assert "hunter" not in await page.content()
        await expect(drawer.get_by_role("progressbar")).to_have_attribute("value", "1")
        await drawer.get_by_role("button", name="Cancel the job").click()
        await expect(page.get_by_role("complementary")).to_contain_text("Cancelled")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("complementary")).to_have_count(0)
        job = await served.yard.jobs.get(job_id, None)

    assert job.status == "cancelled"


async def test_a_reader_sees_that_a_job_runs_and_neither_its_id_nor_its_texts(serve: Any) -> None:
    async with serve(shop()) as served:
        job_id = await start(served, "report")
        ask_id = await start(served, "book")
        await wait_until(served, ask_id, "input_required")
        person = await served.person()
        async with asyncio.timeout(60):  # the texts are stored a moment later
            while "planted" not in (await served.client.get(f"/console/jobs?open={job_id}", headers=person[0])).text:
                pass
        read = (await served.client.get(f"/console/jobs?open={job_id}")).text
        refused = await served.client.post(f"/console/jobs/cancel/{job_id}", data={})

    assert "report" in read
    assert job_id not in read.replace(f"open={job_id}", "")
    assert "planted" not in read
    assert "Which seat" not in read
    assert refused.status_code == 403


async def test_a_question_of_a_job_is_answered_in_the_browser(serve: Any, look: Any) -> None:
    async with serve(shop()) as served:
        job_id = await start(served, "book")
        await wait_until(served, job_id, "input_required")
        page: Page = await look(login_to(served, f"jobs?open={job_id}"))
        await expect(page.get_by_text(f"Which seat? {MARKUP}")).to_be_visible()
        await page.get_by_label("Coach").select_option("first")
        await page.get_by_label("Seats").fill("2")
        await page.get_by_label("Quiet").check()
        await page.get_by_label("bike").check()
        await page.get_by_role("button", name="Answer").click()
        await expect(page.get_by_role("complementary")).to_contain_text("Completed")
        await expect(page.get_by_role("button", name="Answer")).to_have_count(0)
        result = await served.yard.jobs.result(await served.yard.jobs.get(job_id, None))

    assert result.data == {"coach": "first", "seats": 2, "quiet": True, "extras": ["b"], "side": "r"}


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "answer", "content": '{"coach": "first", "seats": 0}'},
        {"key": "answer", "content": '{"coach": "first"'},
        {"key": "other", "content": '{"coach": "first", "seats": 1}'},
    ],
)
async def test_an_answer_that_does_not_fit_is_not_delivered(serve: Any, fields: dict[str, str]) -> None:
    async with serve(shop()) as served:
        job_id = await start(served, "book")
        await wait_until(served, job_id, "input_required")
        person = await served.person()
        refused = await post(served, person, f"jobs/answer/{job_id}", action="accept", **fields)
        still = await served.yard.jobs.get(job_id, None)
        await post(served, person, f"jobs/answer/{job_id}", action="decline", key="answer")
        ended = await wait_until(served, job_id, "completed")
        result = await served.yard.jobs.result(ended)
        page = (await served.client.get("/console/jobs", headers=person[0])).text

    assert "bad=1" in refused.headers["location"]
    assert still.status == "input_required"
    assert result.error.code == "approval_denied"
    assert "Failed: approval_denied" in page


async def test_an_answer_that_does_not_fit_stays_in_its_form_with_the_reason(serve: Any, look: Any) -> None:
    async with serve(shop()) as served:
        job_id = await start(served, "book")
        await wait_until(served, job_id, "input_required")
        page: Page = await look(login_to(served, f"jobs?open={job_id}"))
        await page.get_by_label("Seats").fill("7")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator("[data-other]")).to_contain_text("coach")

        assert await page.get_by_label("Seats").input_value() == "7"


async def test_an_answer_to_one_question_leaves_what_is_typed_for_another(serve: Any, look: Any) -> None:
    async with serve(shop()) as served:
        job_id = await start(served, "plan")
        await wait_until(served, job_id, "input_required")
        page: Page = await look(login_to(served, f"jobs?open={job_id}"))
        await page.get_by_label("Meal").fill("soup")
        await page.get_by_label("Coach").fill("first")
        await page.locator("form", has_text="Coach").get_by_role("button", name="Answer").click()
        await expect(page.get_by_label("Coach")).to_have_count(0)
        await page.mouse.move(0, 0)  # what is under the mouse waits
        await expect(page.get_by_text("Which Coach?")).to_have_count(0)

        assert await page.get_by_label("Meal").input_value() == "soup"
        await page.get_by_role("button", name="Answer").click()
        await expect(page.get_by_role("complementary")).to_contain_text("Completed")
        result = await served.yard.jobs.result(await served.yard.jobs.get(job_id, None))

    assert result.data == [{"coach": "first"}, {"meal": "soup"}]


async def test_a_list_of_many_jobs_is_read_page_by_page(serve: Any) -> None:
    read: list[str] = []

    class Watched(MemoryStore):
        async def get(self, key: str) -> bytes | None:
            read.append(key)
            return await super().get(key)

    store = Watched()
    now = time.time()
    for number in range(3000):
        at = now - number
        job_id = f"j_{2**48 - int(at * 1000):012x}{number:04}"
        facts: dict[str, Any] = {"owner": "key:bot", "created_at": at, "updated_at": at, "ttl": 60, "lease": 1}
        job = Job(id=job_id, tool=f"tool_{number}", status="working" if number < 120 else "failed", **facts)
        await store.put(JOBS + job_id, msgspec.json.encode(job))
        if number < 120:
            await store.put(RUNNING + job_id, b"")

    async with serve(Yard("shop", tools=[report], store=store)) as served:

        async def tools_of(query: str) -> list[str]:
            read.clear()
            return re.findall(r'class="name">(\w+)<', (await served.client.get(f"/console/jobs?{query}")).text)

        first, first_read = await tools_of(""), [key for key in read if key.startswith("job/")]
        later, later_read = await tools_of("page=3"), [key for key in read if key.startswith("job/")]
        working = await tools_of("status=working&page=3")
        found = await tools_of("q=tool_77")
        beyond = await tools_of("page=61") + await tools_of("page=99999999999999999999")

    assert first == [f"tool_{number}" for number in range(50)]
    assert later == [f"tool_{number}" for number in range(100, 150)]
    assert (len(first_read), len(later_read)) == (51, 51)
    assert working == [f"tool_{number}" for number in range(100, 120)]
    assert found == ["tool_77", *(f"tool_77{number}" for number in range(10))]
    assert beyond == []


def test_ids_in_order_are_jobs_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr("callyard.jobs.job.time", SimpleNamespace(time=lambda: next(seconds)))
    ids = [new_job_id() for _ in range(300)]

    assert ids == sorted(ids, reverse=True)


async def test_a_question_of_a_job_is_none_about_an_approval_whatever_its_key_is(serve: Any) -> None:
    @tool(job="always")
    async def fill_in(call: Call) -> dict[str, Any]:
        """Ask with a key that looks like that of an approval."""
        return await call.ask(FORM, "Which seat?", key="approval-form")

    async with serve(Yard("shop", tools=[fill_in])) as served:
        job_id = await start(served, "fill_in")
        await wait_until(served, job_id, "input_required")
        answer = {"key": "approval-form", "content": '{"coach": "second", "seats": 2}'}
        await post(served, await served.person(), f"jobs/answer/{job_id}", action="accept", **answer)
        ended = await wait_until(served, job_id, "completed")
        result = await served.yard.jobs.result(ended)

    assert result.data["seats"] == 2


async def test_the_result_of_a_job_is_for_the_identity_that_started_it(serve: Any) -> None:
    async with serve(shop()) as served:
        person = await served.person()
        mine = served.yard.gate is not None and (await served.client.get("/console", headers=person[0])).text
        identity = str(mine).partition('class="quiet" title="')[2].partition('"')[0]
        texts: list[str] = []
        for owner in (identity, "key:bot"):
            job_id = await start(served, "book", owner)
            await wait_until(served, job_id, "input_required")
            answer = {"key": "answer", "content": '{"coach": "second", "seats": 987654321}'}
            await post(served, person, f"jobs/answer/{job_id}", action="accept", **answer)
            await wait_until(served, job_id, "completed")
            texts.append((await served.client.get(f"/console/jobs?open={job_id}", headers=person[0])).text)

    assert "987654321" in texts[0]
    assert "987654321" not in texts[1]
    assert "Completed" in texts[1]


async def test_sessions_are_listed_without_their_ids_and_can_be_ended(serve: Any, look: Any) -> None:
    async with serve(shop()) as served:
        page: Page = await look(login_to(served, "sessions"))
        await expect(page.get_by_role("heading", name="There are no sessions")).to_be_visible()
        started = await served.call("start_basket")
        await expect(page.get_by_role("cell", name=MARKUP)).to_be_visible()
        content = await page.content()
        await page.get_by_role("button", name="End").click()
        await expect(page.get_by_role("heading", name="There are no sessions")).to_be_visible()
        left = served.yard.sessions.all()

    assert started["data"] not in content
    assert left == []


async def test_sessions_are_filtered_by_kind_and_owner(serve: Any, look: Any) -> None:
    async with serve(shop()) as served:
        await served.call("start_basket")
        page: Page = await look(login_to(served, "sessions"))
        await page.get_by_label("Filter by kind or owner").fill("nothing like it")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="No session fits")).to_be_visible()
        await page.get_by_label("Filter by kind or owner").fill(MARKUP)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("cell", name=MARKUP)).to_be_visible()


async def test_a_client_with_a_handshake_is_shown_and_can_be_disconnected(serve: Any) -> None:
    async with serve(shop()) as served:
        person = await served.person()
        async with Client(f"{served.base}/mcp", mode="legacy") as client:
            await client.call_tool("start_basket", {})
            page = (await served.client.get("/console/sessions", headers=person[0])).text
            number = page.partition("sessions/disconnect/")[2].partition('"')[0]
            done = await post(served, person, f"sessions/disconnect/{number}")
            again = await post(served, person, f"sessions/disconnect/{number}")
            unknown = await post(served, person, "sessions/end/nothing")
            after = (await served.client.get("/console/sessions", headers=person[0])).text

    assert "2025-11-25" in page
    assert "bad=1" not in done.headers["location"]
    assert "bad=1" in again.headers["location"]
    assert "bad=1" in unknown.headers["location"]
    assert "2025-11-25" not in after


@pytest.mark.parametrize("path", ["jobs/other/x", "sessions/end", "sessions/disconnect/x"])
async def test_an_action_that_does_not_exist_is_refused(serve: Any, path: str) -> None:
    async with serve(shop()) as served:
        assert (await post(served, await served.person(), path)).status_code == 404


@pytest.mark.parametrize("name", ["jobs", "sessions", "upstreams", "runtimes", "settings"])
async def test_no_page_scrolls_sideways_on_a_phone(serve: Any, look: Any, name: str) -> None:
    async with serve(shop()) as served:
        await served.call("start_basket")
        await start(served, "report")
        page: Page = await look(login_to(served, name), width=390, scheme="dark")
        await expect(page.get_by_role("heading", level=1)).to_be_visible()

        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
