"""The page 'Disabled', and the buttons of tools and upstreams: who may use them, and what they do."""

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from callyard import Profile, Toolset, Yard, tool
from callyard.testing import FakeProvider
from callyard.transports.auth import digest_of

MARKUP = "<img src=x onerror=alert(1)>"


@tool(operation="query")
async def find() -> str:
    """Find a thing."""
    return "found"


@tool(operation="query")
async def other() -> int:
    """Return one."""
    return 1


def yard_of(**options: Any) -> Yard:
    return Yard("shop", tools=[other], providers=[FakeProvider("pack", [find])], **options)


async def post(served: Any, person: Any, action: str, **fields: str) -> Any:
    headers, csrf = person
    return await served.client.post(f"/console/disabled/{action}", data={"csrf": csrf, **fields}, headers=headers)


async def test_a_tool_is_disabled_and_enabled_with_buttons(serve: Any, look: Any) -> None:
    async with serve(yard_of()) as served:
        page: Page = await look(served.login_to("tools?open=find"))
        form = page.get_by_role("region", name="Disable")
        await form.get_by_label("For how long").select_option("3600")
        await form.get_by_label("Why").fill(f"Wrong. {MARKUP}")
        await form.get_by_role("button", name="Disable find").click()
        await expect(page.get_by_text("It is disabled.")).to_be_visible()
        await expect(page.locator("#nav").get_by_role("link", name="Disabled")).to_contain_text("1")
        refused = await served.call("find")
        await page.goto(f"{served.base}/console/disabled")
        row = page.get_by_role("row", name="find")
        await expect(row).to_contain_text(MARKUP)
        await row.get_by_role("button", name="Enable").click()
        await expect(page.get_by_text("Nothing is disabled")).to_be_visible()
        found = await served.call("find")

    assert refused["error"]["details"]["reason"] == "disabled"
    assert MARKUP in refused["error"]["message"]
    assert found["success"]


async def test_a_source_is_disabled_by_its_name_and_the_page_shows_what_that_covers(serve: Any, look: Any) -> None:
    async with serve(yard_of()) as served:
        page: Page = await look(served.login_to("tools?open=find"))
        await page.get_by_role("link", name="All of 'pack'").click()
        await page.get_by_role("button", name="Disable").click()
        await expect(page.get_by_role("row", name="pack")).to_contain_text("find")
        tools = await served.person()
        listed = (await served.client.get("/console/tools", headers=tools[0])).text
        refused = await served.call("find")
        kept = await served.call("other")

    assert "find" not in re.findall(r'class="name" href="[^"]*">(\w+)<', listed)
    assert refused["error"]["details"]["reason"] == "disabled"
    assert kept["success"]


async def test_only_a_person_with_a_login_disables_and_sees_who_did_and_why(serve: Any) -> None:
    async with serve(yard_of()) as served:
        person = await served.person()
        nobody: tuple[dict[str, str], str] = {}, ""
        forbidden = [await post(served, nobody, action, target="find") for action in ("disable", "enable")]
        stolen = await post(served, (person[0], "x"), "disable", target="find")
        assert (await served.call("find"))["success"]
        done = await post(served, person, "disable", target="find", reason="A private reason.")
        read = (await served.client.get("/console/disabled")).text
        seen = (await served.client.get("/console/disabled", headers=person[0])).text
        own = served.yard.switches.active[0].by
        tool_page = (await served.client.get("/console/tools?open=find")).text

    assert [answer.status_code for answer in (*forbidden, stolen)] == [403] * 3
    assert done.status_code == 303
    assert "find" in read
    assert "A private reason." not in read
    assert own not in read
    assert "A private reason." in seen
    assert own in seen
    assert "Enable" not in tool_page
    assert "It is disabled." in tool_page
    assert "A private reason." not in tool_page


async def test_only_operators_log_in_with_credentials_and_disable(serve: Any) -> None:
    keys = "".join(
        f'[[auth.api_keys]]\nname = "{name}"\ndigest = "{digest_of(name)}"\n{extra}'
        for name, extra in (("boss", "operator = true\n"), ("guest", ""))
    )
    async with serve(yard_of(), keys) as served:
        guest = await served.log_in("guest")
        boss = await served.person("boss")
        done = await post(served, boss, "disable", target="find")
        by = served.yard.switches.active[0].by

    assert guest.status_code == 403
    assert done.status_code == 303
    assert by == "key:boss"


async def test_a_wrong_form_changes_nothing_and_gets_a_notice(serve: Any) -> None:
    async with serve(yard_of()) as served:
        person = await served.person()
        wrong = [
            await post(served, person, "disable", target="find", period="7"),
            await post(served, person, "disable", target="a b"),
            await post(served, person, "enable", target="find"),
        ]
        unknown = await post(served, person, "toggle", target="find")

    assert ["bad=1" in answer.headers["location"] for answer in wrong] == [True] * 3
    assert unknown.status_code == 404


async def test_a_tool_that_the_profile_denies_is_not_shown_as_disabled(serve: Any) -> None:
    hidden = Profile(name="narrow", toolsets=(Toolset(name="others", deny=("find",)),))
    async with serve(yard_of(profile=hidden)) as served:
        before = (await served.client.get("/console/tools?open=find")).text
        await served.yard.switches.disable("find", by="user:op")
        after = (await served.client.get("/console/tools?open=find")).text

    assert "It is disabled." not in before
    assert "It is disabled." not in after
    assert "An operator must enable it." not in after


@pytest.mark.parametrize("action", ["disable", "enable"])
async def test_an_upstream_shows_that_it_is_disabled(serve: Any, action: str) -> None:
    settings = '[upstreams.notes]\ncommand = "no-such-program"\n'
    async with serve(yard_of(), settings) as served:
        person = await served.person()
        if action == "enable":
            await served.yard.switches.disable("notes", by="user:op")
        page = (await served.client.get("/console/upstreams?open=notes", headers=person[0])).text

    assert f'action="/console/disabled/{action}"' in page
    assert ("It is disabled" in page) is (action == "enable")
