import asyncio
import os
import time
from pathlib import Path

from callyard_browser.processes import users_of
from page_server import Site, failure, needs_chromium, open_browser, runs_in

pytestmark = needs_chromium


async def test_a_dialog_is_reported_at_once_and_blocks_only_its_page(site: Site, tmp_path: Path) -> None:
    url = site.page(
        "<button onclick=\"document.querySelector('p').textContent = prompt('Name?', 'Ada')\">Ask</button><p>none</p>"
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        asked = await browser.do("click", ref=await browser.ref("Ask"))
        blocked = [
            await browser.try_to(tool, **arguments)
            for tool, arguments in (
                *(("snapshot", {}), ("read_text", {}), ("press", {"keys": ["a"]}), ("screenshot", {})),
                *(("expect_text", {"contains": "x"}), ("navigate", {"to": url})),
            )
        ]
        status = await browser.do("status")
        answered = await browser.do("answer_dialog", accept=True, text="Grace")
        none_open = await browser.try_to("answer_dialog")

    assert asked["dialog"] == {"kind": "prompt", "text": "Name?", "default": "Ada"}
    assert {failure(answer) for answer in blocked} == {("state_error", "dialog_open")}
    assert status["tabs"][0]["dialog"]["text"] == "Name?"
    assert "Grace" in answered["changed"]
    assert failure(none_open) == ("state_error", "no_dialog")


async def test_dialogs_of_a_load_and_a_hundred_in_a_row_are_answered(site: Site, tmp_path: Path) -> None:
    url = site.page(
        "<p>0</p><script>alert('first');"
        "for (let i = 1; i < 100; i++) if (confirm('more ' + i)) document.querySelector('p').textContent = i;"
        "</script>"
    )
    async with open_browser(tmp_path) as browser:
        launched = await browser.launch(url)
        second = await browser.do("answer_dialog")
        await browser.do("answer_dialog", accept=True, always=True)
        await browser.do("expect_text", contains="99", timeout_s=30)
        later = await browser.do("answer_dialog", accept=False, always=True)

    assert launched["dialog"] == {"kind": "alert", "text": "first"}
    assert second["dialog"] == {"kind": "confirm", "text": "more 1"}
    assert later == {"always": True}


async def test_leaving_a_page_that_asks_first_opens_its_dialog(site: Site, tmp_path: Path) -> None:
    url = site.page("<input aria-label=q><script>onbeforeunload = event => event.preventDefault()</script>")
    other = site.page("<p>other</p>", "/other")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        await browser.do("fill", ref=await browser.ref("q"), text="typed")
        await browser.do("press", keys=["a"])
        left = await browser.do("navigate", to=other)
        answered = await browser.do("answer_dialog", accept=True)
        await browser.do("expect_url", contains="/other", timeout_s=30)

    assert left["dialog"]["kind"] == "beforeunload"
    assert answered["answered"]["kind"] == "beforeunload"


async def test_a_hung_page_answers_and_another_tab_still_works(site: Site, tmp_path: Path) -> None:
    url = site.page('<button onclick="while (true) {}">Loop</button>')
    other = site.put("/other", b"<p>fine</p>", Content_Type="text/html")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        clicked = await browser.try_to("click", ref=await browser.ref("Loop"))
        looked = await browser.try_to("snapshot")
        opened = await browser.do("navigate", to=other, new_tab=True)
        stopped = await browser.do("stop")

    assert failure(clicked) == failure(looked) == ("timeout", "page_hung")
    assert clicked.error is not None
    assert clicked.error.may_have_run
    assert "fine" in opened["page"]
    assert stopped == {"stopped": True}


async def test_a_crashed_page_is_reported_and_the_next_address_opens(site: Site, tmp_path: Path) -> None:
    url = site.page("<button>Go</button>")
    async with open_browser(tmp_path, hosts=["127.0.0.1", "chrome:"]) as browser:
        await browser.launch(url)
        ref = await browser.ref("Go")
        await browser.try_to("navigate", to="chrome://crash")
        clicked = await browser.try_to("click", ref=ref)
        opened = await browser.do("navigate", to=url)

    assert failure(clicked) in {("state_error", "page_crashed"), ("not_found", "ref_gone")}
    assert 'button "Go"' in opened["page"]


async def test_a_hundred_tabs_are_bounded_and_reported(site: Site, tmp_path: Path) -> None:
    url = site.page(
        "<button onclick=\"let count = 0; const timer = setInterval(() => { open('/small', '_blank', 'noopener');"
        " if (++count === 100) { clearInterval(timer); document.title = 'all' } }, 20)\">Open</button>"
    )
    site.page("<p>small</p>", "/small")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        clicked = await browser.do("click", ref=await browser.ref("Open"))
        async with asyncio.timeout(120):
            while (await browser.do("status"))["tabs"][0].get("title") != "all":
                continue
        tabs = (await browser.do("status"))["tabs"]
        await browser.do("select_tab", tab=tabs[1]["tab"])
        shown = await browser.do("snapshot")
        closed = await browser.do("stop", tab=tabs[1]["tab"])
        missing = await browser.try_to("select_tab", tab="t999")

    assert len(clicked.get("opened_tabs", [])) <= 20
    assert len(tabs) == 20
    assert "small" in shown["page"]
    assert tabs[1]["tab"] not in closed["tabs"]
    assert failure(missing) == ("not_found", "tab_gone")


async def test_a_page_that_never_ends_opening_windows_ends_with_its_session(site: Site, tmp_path: Path) -> None:
    url = site.page("<button onclick=\"for (let i = 0; i < 100; i++) open('/small')\">Open</button>")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        await browser.do("click", ref=await browser.ref("Open"))
        await browser.try_to("snapshot")
        stopped = await browser.do("stop")

    assert stopped == {"stopped": True}
    assert users_of(tmp_path) == set()


async def test_a_cancelled_call_leaves_a_session_that_answers(site: Site, tmp_path: Path) -> None:
    url = site.page("<button disabled>Later</button><button onclick=\"document.title = 'clicked'\">Now</button>")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        now, later = await browser.ref("Now"), await browser.ref("Later")
        waiting = asyncio.create_task(browser.try_to("click", ref=later))
        await asyncio.sleep(0.5)  # until the click waits for the button; no state shows that from outside
        waiting.cancel()
        await asyncio.wait((waiting,))
        clicked = await browser.do("click", ref=now)
        title = (await browser.do("status"))["tabs"][0]["title"]

    assert "changed" in clicked
    assert title == "clicked"


async def test_a_large_page_is_shown_in_part_and_acted_on(site: Site, tmp_path: Path) -> None:
    rows = "".join(
        f"<tr><td>{number}<td><button onclick=\"document.title = 'hit {number}'\">Open {number}</button>"
        for number in range(5000)
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(site.page(f"<table>{rows}</table>"))
        shown = await browser.do("snapshot")
        clicked = await browser.do("click", ref=await browser.ref("Open 4999"))
        picture = await browser.try_to("screenshot", full_page=True)
        title = (await browser.do("status"))["tabs"][0]["title"]
        whole = await browser.client.call("read_result", handle=shown["whole"])

    assert shown["more_lines"] > 4000
    assert whole.success
    assert "changed" in clicked
    assert title == "hit 4999"
    assert failure(picture)[0] == "too_large"


async def test_a_slow_server_does_not_block_the_session(site: Site, tmp_path: Path) -> None:
    site.page("<p>late</p>", "/slow")
    url = site.page("<button onclick=\"fetch('/slow').then(() => document.title = 'came')\">Ask</button>")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        await browser.do("click", ref=await browser.ref("Ask"))
        waited = await browser.try_to("network", match="/never", timeout_s=0.3)
        site.release.set()
        found = await browser.do("network", match="/slow", timeout_s=30)

    assert failure(waited) == ("state_error", "expectation_failed")
    assert found["count"] == 1


async def test_a_full_disk_or_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        run = runs_in(tmp_path)[0]
        await asyncio.to_thread(os.rename, run, run.with_name("away"))
        answer = await browser.try_to("launch")
        await asyncio.to_thread(os.rename, run.with_name("away"), run)

    assert failure(answer)[0] == "upstream_unavailable"


async def test_a_ref_that_is_gone_is_reported_soon_with_similar_ones(site: Site, tmp_path: Path) -> None:
    url = site.page("<button onclick='this.remove()'>Save draft</button><button>Save all</button>")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        ref = await browser.ref("Save draft")
        await browser.do("click", ref=ref)
        started = time.monotonic()
        answer = await browser.try_to("click", ref=ref)
        elapsed = time.monotonic() - started
        unknown = await browser.try_to("get_state", ref="e999")
        page = site.page("<button>Save draft</button>", "/next")
        await browser.do("navigate", to=page)
        of_before = await browser.try_to("click", ref=ref)

    assert answer.error is not None
    assert failure(answer) == failure(unknown) == failure(of_before) == ("not_found", "ref_gone")
    assert 'button "Save all"' in str(answer.error.details["similar"])
    assert elapsed < 60  # the figure is measured in 'bench/'
