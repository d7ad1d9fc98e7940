"""Settings and runtimes in the console: values and their origins, masked secrets, the sandboxes of this machine."""

from typing import Any

from backends import require
from playwright.async_api import Page, expect

from callyard import Limits, Yard
from callyard.transports.auth import digest_of

SECRETS = f"""
[auth]
api_keys = [{{ name = "ada", digest = "{digest_of("cy_secret")}", operator = true }}]
[approvals]
webhook = "https://hook.example/x"
webhook_secret = "planted-secret-of-the-webhook"
[upstreams.notes]
url = "https://ada:planted-password@notes.example/mcp"
headers = {{ Authorization = "Bearer planted-token" }}
enabled = false
"""


def login_to(served: Any, page: str) -> str:
    return served.login_to(page)


async def test_every_setting_has_its_value_its_origin_and_its_meaning(serve: Any) -> None:
    async with serve(Yard("shop", limits=Limits(stored_results=737)), "[serve]\nsessions = 54321\n") as served:
        page = (await served.client.get("/console/settings")).text
        only_set = (await served.client.get("/console/settings?set=1")).text
        found = (await served.client.get("/console/settings?q=approval_hold")).text

    assert "54321" in page
    assert "callyard.toml" in page
    assert "CALLYARD_ALLOWED_HOSTS" in page
    assert "54321" in only_set
    assert "737" in only_set
    assert "Seconds until an approval expires" in page
    assert "limits.approval_hold_s" in found
    assert "serve.allowed_hosts" not in only_set
    assert "serve.allowed_hosts" not in found


async def test_secrets_among_the_settings_are_masked(serve: Any) -> None:
    async with serve(Yard("shop"), SECRETS) as served:
        cookie, _ = await served.person()
        page = (await served.client.get("/console/settings", headers=cookie)).text
        json_of_key = digest_of("cy_secret")

    assert "webhook_secret" in page
    assert "upstreams.notes.url" in page
    assert "planted" not in page
    assert json_of_key not in page


async def test_typing_filters_the_settings(serve: Any, look: Any) -> None:
    async with serve(Yard("shop")) as served:
        page: Page = await look(login_to(served, "settings"))
        await expect(page.get_by_text("serve.allowed_hosts", exact=True)).to_be_visible()
        await page.get_by_label("Filter settings").press_sequentially("approval_hold")
        await expect(page.get_by_text("limits.approval_hold_s", exact=True)).to_be_visible()
        await expect(page.get_by_text("serve.allowed_hosts", exact=True)).to_be_hidden()
        await expect(page.get_by_role("heading", name="search")).to_have_count(0)


async def test_runtimes_are_probed_and_attacked_in_the_background(serve: Any, look: Any) -> None:
    await require("bubblewrap")
    async with serve(Yard("shop")) as served:
        refused = await served.client.post("/console/runtimes/attack", data={"csrf": ""})
        page: Page = await look(login_to(served, "runtimes"))
        await expect(page.get_by_text("Agents cannot run programs here.")).to_be_visible()
        tile = page.get_by_role("article").filter(has=page.get_by_role("heading", name="subprocess"))
        await expect(tile).to_contain_text("Does not enforce", timeout=60_000)
        await page.get_by_role("button", name="Attack each sandbox").click()
        await page.mouse.move(1, 1)
        await expect(page.get_by_text("Probed")).to_be_visible(timeout=60_000)
        sandbox = page.get_by_role("article").filter(has=page.get_by_role("heading", name="bubblewrap"))
        await expect(sandbox).to_contain_text("stopped")

    assert refused.status_code == 403
