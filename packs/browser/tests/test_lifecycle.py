import asyncio
from pathlib import Path

from page_server import Site, failure, needs_chromium, open_browser, runs_in

pytestmark = needs_chromium


async def test_a_browser_starts_and_shows_a_page_and_stops(site: Site, tmp_path: Path) -> None:
    url = site.page("<h1>Orders</h1><button onclick=\"this.textContent='Sold'\">Sell</button>")
    async with open_browser(tmp_path) as browser:
        launched = await browser.launch(url)
        shown = await browser.do("snapshot")
        clicked = await browser.do("click", ref=await browser.ref("Sell"))
        stopped = await browser.do("stop")
        after = await browser.try_to("snapshot")

    assert launched["tab"] == "t1"
    assert 'button "Sell"' in shown["page"]
    assert 'button "Sold"' in clicked["changed"]
    assert stopped == {"stopped": True}
    assert failure(after)[0] == "not_running"
    assert runs_in(tmp_path) == []


async def test_without_a_browser_the_yard_opens_and_says_how_to_install_one(tmp_path: Path) -> None:
    async with open_browser(tmp_path, executable="no-such-browser") as browser:
        answer = await browser.try_to("launch")

    assert failure(answer) == ("upstream_unavailable", "no_browser")


async def test_the_fifth_browser_is_refused_until_one_stops(site: Site, tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        started = [await browser.try_to("launch") for _ in range(5)]
        ids = [answer.data["session_id"] for answer in started[:4]]
        await asyncio.gather(*(browser.do("stop", session_id=one) for one in ids))
        again = await browser.try_to("launch")

    assert failure(started[4])[0] == "overloaded"
    assert again.success
