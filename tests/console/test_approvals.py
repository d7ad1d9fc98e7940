"""Approvals in the console: what people see of a call that waits, and what comes of their decision."""

import asyncio
import itertools
import json
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest
from mcp import Client
from playwright.async_api import Page, expect
from pydantic import BaseModel, Field

from callyard import Caller, Rule, Yard, resource, tool
from callyard.console.pages.approvals import ApprovalsPage
from callyard.dispatch.call import Channel
from callyard.policy.approvals import Approval, Approvals
from callyard.state.memory import MemoryStore
from callyard.state.sqlite import SqliteStore
from callyard.state.store import StoreUnavailableError
from callyard.transports.auth import digest_of

MARKUP = "<img src=x onerror=alert(1)>"
OPERATOR, OTHER, CALLER = "cy_operator", "cy_other", "cy_caller"
KEYS = f"""
[auth]
api_keys = [
  {{ name = "ada", digest = "{digest_of(OPERATOR)}", operator = true }},
  {{ name = "bob", digest = "{digest_of(OTHER)}", operator = true }},
  {{ name = "bot", digest = "{digest_of(CALLER)}" }},
]
"""
HELD = "[limits]\napproval_hold_s = 30\n"
NOT_HELD = "[limits]\napproval_hold_s = 0\n"

SERVED = Channel(asks_before_destroy=True)


@tool(operation="destroy")
async def close_account(account: str, note: str = "", password: str = "", amounts: tuple[int, ...] = ()) -> str:
    """Close an account for good."""
    del note, password, amounts
    return f"{account} is closed"


def bank() -> Yard:
    return Yard("bank", tools=[close_account])


async def waiting(yard: Yard) -> Approval:
    """Return the approval that waits, once there is one."""
    assert yard.gate is not None
    return await yard.gate.approvals.watch(set())


async def decide(served: Any, person: Any, approval_id: str, **fields: str) -> Any:
    cookie, csrf = person
    return await served.client.post(
        f"/console/approvals/decide/{approval_id}", data={"csrf": csrf, **fields}, headers=cookie
    )


def login_to(served: Any, page: str) -> str:
    return served.login_to(page)


async def log_in_with(served: Any, key: str) -> tuple[dict[str, str], str]:
    """Log in with the key of an operator, and return the headers of the login, and the CSRF token."""
    return await served.person(key)


async def test_a_click_on_approve_releases_a_held_call_of_the_official_client(serve: Any, look: Any) -> None:
    async with serve(bank(), HELD) as served:
        page: Page = await look(login_to(served, "approvals"))
        await expect(page.get_by_text("Nothing waits")).to_be_visible()
        async with Client(f"{served.base}/mcp") as client:
            call = asyncio.ensure_future(client.call_tool("close_account", {"account": "savings", "note": MARKUP}))
            card = page.get_by_role("article")
            await expect(card.get_by_role("heading")).to_contain_text("wants to close account savings")
            await expect(card).to_contain_text(MARKUP)
            await expect(page.locator("#nav .count")).to_have_text("1")
            await card.get_by_role("button", name="Approve").click()
            answer = await call
        await expect(page.get_by_role("article")).to_contain_text("Approved, and ran in")
        await expect(page.locator("#nav .count")).to_have_count(0)

    assert answer.structured_content is not None
    assert answer.structured_content["data"] == "savings is closed"


async def test_the_result_of_an_approved_call_appears_while_the_mouse_rests_on_its_card(serve: Any, look: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings"})
        page: Page = await look(login_to(served, "approvals"))
        card = page.get_by_role("article")
        await card.get_by_role("button", name="Approve").click()
        await card.get_by_role("button", name="Take back").hover()
        await served.call("close_account", {"account": "savings"})

        await expect(card).to_contain_text("Approved, and ran in")


async def test_a_stream_that_begins_replaces_nothing_that_is_there_already(serve: Any, look: Any) -> None:
    again = """() => new Promise((done) => {
      const button = document.querySelector("article button"), original = window.swap;
      window.swap = (id, html) => {
        original(id, html);
        if (id !== "cards") return;
        window.swap = original;
        setTimeout(() => done(document.contains(button)), 0);
      };
      listen();
    })"""
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings"})
        page: Page = await look(login_to(served, "approvals"))

        assert await page.evaluate(again)
        assert await page.evaluate(again)


async def test_the_key_d_denies_and_the_reason_reaches_the_client(serve: Any, look: Any) -> None:
    async with serve(bank(), HELD) as served:
        async with Client(f"{served.base}/mcp") as client:
            call = asyncio.ensure_future(client.call_tool("close_account", {"account": "savings"}))
            await waiting(served.yard)
            page: Page = await look(login_to(served, "approvals"))
            await page.get_by_label("Reason").fill("Ask Ada first.")
            await page.keyboard.press("Escape")
            await page.keyboard.press("d")
            answer = await call
        await expect(page.get_by_role("article")).to_contain_text("Denied")
        await expect(page.get_by_role("article")).to_contain_text("Ask Ada first.")

    assert answer.is_error
    assert answer.structured_content is not None
    assert answer.structured_content["error"]["code"] == "approval_denied"
    assert "Ask Ada first." in answer.structured_content["error"]["message"]


async def test_keys_decide_about_the_selected_card_alone_and_after_a_decision_none_is_selected(
    serve: Any, look: Any
) -> None:
    async with serve(bank(), NOT_HELD) as served:
        for number in range(6):
            await served.call("close_account", {"account": f"number {number}"})
        page: Page = await look(login_to(served, "approvals"))
        decisions: list[str] = []
        page.on("request", lambda request: decisions.append(request.url) if request.method == "POST" else None)
        cards = page.get_by_role("article")
        await expect(cards).to_have_count(6)
        await page.keyboard.press("a")  # nothing is selected
        for key in ("j", "j", "j", "j", "k"):
            await page.keyboard.press(key)
        await expect(cards.nth(2)).to_be_focused()
        await expect(cards.nth(2)).to_be_in_viewport(ratio=1)
        ring = await cards.nth(2).evaluate("card => getComputedStyle(card).outline")
        assert decisions == []
        await page.keyboard.press("a")
        await expect(page.get_by_text("Approved, not run yet")).to_be_visible()
        await expect(page.locator(".approval:focus, [aria-selected=true]")).to_have_count(0)
        await page.keyboard.press("a")
        await page.keyboard.press("d")
        pending = [json.loads(one.card.arguments)["account"] for one in await served.yard.gate.approvals.pending()]

    assert "solid 3px" in ring
    assert len(decisions) == 1
    assert sorted(pending) == [f"number {number}" for number in (0, 1, 3, 4, 5)]


async def test_a_key_brings_a_selected_card_that_is_out_of_view_back_and_decides_nothing(serve: Any, look: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        for number in range(6):
            await served.call("close_account", {"account": f"number {number}"})
        page: Page = await look(login_to(served, "approvals"))
        await expect(page.get_by_role("article")).to_have_count(6)
        await page.keyboard.press("j")
        await page.evaluate("scrollTo(0, document.body.scrollHeight)")
        await expect(page.get_by_role("article").first).not_to_be_in_viewport()
        await page.keyboard.press("a")
        await expect(page.get_by_role("article").first).to_be_in_viewport(ratio=1)
        before = await served.yard.gate.approvals.count()
        await page.keyboard.press("a")
        await expect(page.get_by_text("Approved, not run yet")).to_be_visible()
        after = await served.yard.gate.approvals.count()

    assert (before, after) == (6, 5)


async def test_a_card_and_the_decided_list_name_the_person_with_the_client_beside(serve: Any) -> None:
    keys = f"""
[auth]
api_keys = [{{ name = "bot", digest = "{digest_of(CALLER)}" }}]
"""
    async with serve(bank(), NOT_HELD + keys) as served:
        held = await served.call("close_account", {"account": "savings"}, Authorization=f"Bearer {CALLER}")
        person = await served.person()
        waits = (await served.client.get("/console/approvals", headers=person[0])).text
        await decide(served, person, held["data"]["approval_id"], decision="deny")
        decided = (await served.client.get("/console/approvals", headers=person[0])).text

    headline = '<b>key:bot</b> <span class="client">with Agent</span>'
    assert f"<h2>{headline} wants to" in waits
    assert f"{headline} wanted to" in decided


async def test_enter_in_the_reason_decides_nothing(serve: Any, look: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings"})
        page: Page = await look(login_to(served, "approvals"))
        decisions: list[str] = []
        page.on(
            "request", lambda request: decisions.append(request.post_data or "") if request.method == "POST" else None
        )
        await page.get_by_label("Reason").fill("No, people live there.")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Deny").click()
        await page.wait_for_load_state()

    assert len(decisions) == 1
    assert "decision=deny" in decisions[0]


async def test_typed_text_survives_a_live_update_and_a_new_card_appears_under_the_mouse(serve: Any, look: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings"})
        page: Page = await look(login_to(served, "approvals"))
        reason = page.get_by_label("Reason").first
        await reason.fill("Because")
        await page.get_by_label("Allow again").first.select_option("3600")
        await page.get_by_role("article").first.hover()
        await served.call("close_account", {"account": "holiday"})
        await expect(page.get_by_role("article")).to_have_count(2)
        await page.mouse.move(1, 1)
        await page.get_by_role("heading", name="Approvals").click()
        await served.call("close_account", {"account": "current"})
        await expect(page.get_by_role("article")).to_have_count(3)

        assert await reason.input_value() == "Because"
        assert await page.get_by_label("Allow again").first.input_value() == "3600"
        assert "Closed" not in await page.content()


async def test_a_hundred_calls_with_long_arguments_are_pages_of_cards_that_are_read_one_by_one(
    serve: Any, look: Any
) -> None:
    query = "SELECT 1; " * 400 + "DROP TABLE customers;"
    async with serve(bank(), NOT_HELD) as served:
        for number in range(100):
            await served.call("close_account", {"account": f"number {number}", "note": query})
        page: Page = await look(login_to(served, "approvals"))
        html = (await served.client.get("/console/approvals?page=2", headers=(await served.person())[0])).text
        await expect(page.get_by_role("article")).to_have_count(20)
        await expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        await page.get_by_role("link", name="Next").click()
        await expect(page.get_by_role("article").first).to_contain_text("number 20")
        await page.get_by_role("article").first.hover()  # under the mouse, the list stands still
        await page.get_by_role("article").first.get_by_role("link", name="Read them and decide").click()
        await expect(page.get_by_role("article")).to_have_count(1)
        await expect(page.get_by_text("DROP TABLE customers;")).to_be_visible()
        await page.keyboard.press("j")
        await page.keyboard.press("a")  # brings the buttons of a long card into view
        await expect(page.get_by_role("button", name="Approve")).to_be_in_viewport(ratio=1)
        await page.keyboard.press("a")
        await expect(page.get_by_text("Approved, not run yet")).to_be_visible()
        left = await served.yard.gate.approvals.count()

    assert len(html.encode()) < 200_000
    assert left == 99


async def test_a_live_page_is_not_sent_again_because_time_goes_by(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(time.time(), 60)
    monkeypatch.setattr(ApprovalsPage, "live_seconds", 0.001)
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings"})
        monkeypatch.setattr("callyard.console.page.time", SimpleNamespace(time=lambda: next(seconds)))
        person, _ = await served.person()
        async with served.client.stream("GET", "/console/live/approvals", timeout=60, headers=person) as response:
            events = (line async for line in response.aiter_lines() if line.startswith("data:"))
            first = await anext(events)
            for _ in range(20):
                await served.client.get("/console/approvals")
            await served.call("close_account", {"account": "holiday"})
            second = await anext(events)

    assert first.count("<article") == 1
    assert second.count("<article") == 2


async def test_times_are_relative_and_go_on(serve: Any, look: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings"})
        page: Page = await look(login_to(served, "approvals"))
        times = page.get_by_role("article").locator("time")
        await expect(times.first).to_have_text(re.compile(r"^[2-9] s ago$"))
        await expect(times.last).to_have_text("in 60 min")


async def test_the_number_of_approvals_is_counted_without_reading_them(serve: Any) -> None:
    read: list[str] = []

    class Watched(MemoryStore):
        async def get(self, key: str) -> bytes | None:
            read.append(key)
            return await super().get(key)

    async with serve(Yard("bank", tools=[close_account], store=Watched()), NOT_HELD) as served:
        for number in range(30):
            await served.call("close_account", {"account": str(number)})
        read.clear()
        await served.client.get("/console/settings")
        counted = list(read)
        await served.client.get("/console/approvals")

    assert counted == []
    assert len(read) == 20


async def test_a_long_grant_is_cut_with_a_link_to_the_whole(serve: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        held = await served.call("close_account", {"account": "savings", "note": "x" * 3000})
        person = await served.person()
        await decide(served, person, held["data"]["approval_id"], decision="approve", again="900")
        [grant] = await served.yard.gate.approvals.grants()
        pages = [
            (await served.client.get(f"/console/approvals{query}", headers=person[0])).text
            for query in ("", f"?open={grant.id}")
        ]

    assert [("x" * 3000) in page for page in pages] == [False, True]
    assert f"open={grant.id}" in pages[0]


async def test_a_key_does_nothing_at_the_moment_when_another_call_gets_under_it(serve: Any, look: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        first = await served.call("close_account", {"account": "savings"})
        await served.call("close_account", {"account": "holiday"})
        page: Page = await look(login_to(served, "approvals"))
        await expect(page.get_by_role("article")).to_have_count(2)
        await page.evaluate("""() => {
            window.clicks = 0;
            document.addEventListener("click", () => { window.clicks += 1; }, true);
            new MutationObserver(() => {
                if (document.querySelectorAll("article").length !== 1 || window.pressed) return;
                window.pressed = true;
                document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "a", bubbles: true }));
            }).observe(document.getElementById("cards"), { childList: true });
        }""")
        await served.yard.gate.approvals.decide(first["data"]["approval_id"], "deny", by="user:elsewhere")
        await page.wait_for_function("() => window.pressed")

        assert await page.evaluate("window.clicks") == 0


async def test_an_approved_call_can_be_allowed_again_and_the_grant_be_revoked(serve: Any, look: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings"})
        page: Page = await look(login_to(served, "approvals"))
        await page.get_by_label("Allow again").select_option("3600")
        await page.get_by_label("With which arguments").select_option("any")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("heading", name="Standing grants")).to_be_visible()
        granted = await served.call("close_account", {"account": "holiday"})
        await page.get_by_role("button", name="Revoke").click()
        await expect(page.get_by_role("heading", name="Standing grants")).to_have_count(0)
        after = await served.call("close_account", {"account": "current"})

    assert granted["data"] == "holiday is closed"
    assert after["data"]["status"] == "approval_required"


async def test_a_reader_sees_that_a_call_waits_and_not_its_arguments(serve: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "planted-name", "password": "planted-secret"})
        cookie, _ = await served.person()
        read = (await served.client.get("/console/approvals")).text
        live = await _first_event(served, "/console/live/approvals")
        seen = (await served.client.get("/console/approvals", headers=cookie)).text

    assert "close_account" in read
    assert "<article" not in read + live
    assert "planted" not in read + live
    assert "Approve" not in read.partition("<main")[2].replace("Approvals", "")
    assert "planted-name" in seen
    assert "planted-secret" in seen  # a person sees all of what they approve


async def _first_event(served: Any, path: str) -> str:
    async with served.client.stream("GET", path, timeout=60) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                return line
    raise AssertionError


async def test_arguments_are_in_plain_words_and_nothing_in_them_is_invisible(serve: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        arguments = {"account": "sav\u202eings", "note": "x" * 3000, "amounts": [1, 2]}
        held = await served.call("close_account", arguments)
        cookie, _ = await served.person()
        page = (await served.client.get(f"/console/approvals?open={held['data']['approval_id']}", headers=cookie)).text

    assert "\u202e" not in page
    assert "\\u202e" in page
    assert "1, 2" in page
    assert re.search(r"<details[^>]*><summary>x+…</summary><pre>x{3000}</pre>", page)


async def test_a_title_and_every_kind_of_argument_become_plain_words(serve: Any) -> None:
    @tool(operation="destroy", title="Delete rows")
    async def delete_rows(
        *, where: dict[str, Any], tags: tuple[str, ...] = (), dry_run: bool = False, limit: int | None = None
    ) -> int:
        """Delete rows of a table."""
        del where, tags, dry_run, limit
        return 0

    async with serve(Yard("shop", tools=[delete_rows]), NOT_HELD) as served:
        await served.call("delete_rows", {"where": {"age": 30, "names": ["a"]}, "dry_run": True})
        await served.call("delete_rows", {"where": {str(number): "x" * 4000 for number in range(6)}})
        person = await served.person()
        page = (await served.client.get("/console/approvals", headers=person[0])).text
        [first, last] = await served.yard.gate.approvals.pending()
        whole = (await served.client.get(f"/console/approvals?open={last.id}", headers=person[0])).text
        await decide(served, person, first.id, decision="approve", again="900", reason="Fine.")
        granted = (await served.client.get("/console/approvals")).text

    assert "wants to <em>delete rows</em>" in page
    assert re.search(r"dry run</th>\s*<td>yes<", page)
    assert re.search(r"limit</th>\s*<td>nothing<", page)
    assert re.search(r"tags</th>\s*<td>none<", page)
    assert "&#34;age&#34;: 30" in page
    assert whole.count("x" * 4000) == 6
    assert "the same" in granted


async def test_while_the_store_cannot_be_read_pages_say_so_and_others_work(serve: Any) -> None:
    class Failing(MemoryStore):
        fails = False

        async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
            if self.fails:
                raise StoreUnavailableError("There is no room.", reason="full")
            return await super().keys(prefix, after=after, limit=limit)

    store = Failing()
    async with serve(Yard("bank", tools=[close_account], store=store)) as served:
        store.fails = True
        failed = await served.client.get("/console/approvals")
        settings = await served.client.get("/console/settings")
        overview = await served.client.get("/console")

    assert (failed.status_code, settings.status_code, overview.status_code) == (503, 200, 200)
    assert "There is no room." in failed.text
    assert "There is no room." in overview.text


async def test_a_yard_that_asks_nobody_has_an_empty_page(serve: Any) -> None:
    async with serve(bank(), "[serve]\nask_before_destroy = false\n") as served:
        page = await served.client.get("/console/approvals")
        refused = await decide(served, await served.person(), "a_x", decision="approve")

    assert "Nothing waits" in page.text
    assert refused.status_code == 404


async def test_nobody_decides_without_a_login_or_with_the_key_of_a_caller(serve: Any) -> None:
    async with serve(bank(), KEYS + NOT_HELD) as served:
        held = await served.call("close_account", {"account": "savings"}, Authorization=f"Bearer {CALLER}")
        path = f"/console/approvals/decide/{held['data']['approval_id']}"
        bare = await served.client.post(
            path, data={"decision": "approve"}, headers={"Authorization": f"Bearer {CALLER}"}
        )
        caller = await served.client.post("/console/login", data={"credentials": CALLER})
        ada = await log_in_with(served, OPERATOR)
        no_token = await served.client.post(path, data={"decision": "approve"}, headers=ada[0])
        approval = await served.yard.gate.approvals.get(held["data"]["approval_id"])

    assert (bare.status_code, caller.status_code, no_token.status_code) == (403, 403, 403)
    assert approval.status == "pending"


async def test_an_operator_decides_about_calls_of_others_and_not_of_their_own(serve: Any) -> None:
    async with serve(bank(), KEYS + NOT_HELD) as served:
        own = await served.call("close_account", {"account": "savings"}, Authorization=f"Bearer {OPERATOR}")
        approval_id = own["data"]["approval_id"]
        ada, bob = await log_in_with(served, OPERATOR), await log_in_with(served, OTHER)
        page = (await served.client.get("/console/approvals", headers=ada[0])).text
        refused = await decide(served, ada, approval_id, decision="approve")
        before = await served.yard.gate.approvals.get(approval_id)
        await decide(served, bob, approval_id, decision="approve", reason="Fine.")
        after = await served.yard.gate.approvals.get(approval_id)

    assert "data-key" not in page
    assert "bad=1" in refused.headers["location"]
    assert before.status == "pending"
    assert (after.status, after.decided_by, after.reason) == ("approved", "key:bob", "Fine.")


async def test_the_person_with_the_printed_address_decides_also_about_calls_of_the_console(serve: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        person = await served.person()
        held = await served.yard.call(
            "close_account", {"account": "savings"}, caller=Caller(identity="user:me"), channel=SERVED
        )
        await decide(served, person, held.data["approval_id"], decision="approve")
        approval = await served.yard.gate.approvals.get(held.data["approval_id"])
        twice = await decide(served, person, held.data["approval_id"], decision="approve")
        taken_back = await decide(served, person, held.data["approval_id"], decision="deny")

    assert approval.status == "approved"
    assert approval.decided_by.startswith("user:")
    assert "bad=1" in twice.headers["location"]
    assert "bad=1" not in taken_back.headers["location"]


async def test_where_a_rule_wants_an_operator_the_person_with_the_printed_address_needs_another_one(serve: Any) -> None:
    rule = '[[rules]]\ndecision = "ask"\ntools = ["close_account"]\nby = "operator"\n'
    async with serve(bank(), NOT_HELD + rule) as served:
        person = cookie, csrf = await served.person()
        fields = {"csrf": csrf, "tool": "close_account", "arguments": '{"account": "savings"}'}
        await served.client.post("/console/tools/run", data=fields, headers=cookie)
        own = await waiting(served.yard)
        page = (await served.client.get("/console/approvals", headers=cookie)).text
        refused = await decide(served, person, own.id, decision="approve")
        await served.call("close_account", {"account": "holiday"})
        other = await served.yard.gate.approvals.watch({own.id})
        decided = await decide(served, person, other.id, decision="approve")
        statuses = [(await served.yard.gate.approvals.get(one.id)).status for one in (own, other)]

    assert "somebody else must decide" in page
    assert 'value="approve"' not in page
    assert "bad=1" in refused.headers["location"]
    assert "bad=1" not in decided.headers["location"]
    assert statuses == ["pending", "approved"]


async def test_an_approval_of_another_process_is_decided_here_and_seen_there(serve: Any, tmp_path: Any) -> None:
    file = tmp_path / "shared.sqlite3"
    async with (
        serve(bank(), f'store = "sqlite:{file}"\n{NOT_HELD}') as served,
        Yard("other", tools=[close_account], store=SqliteStore(file)) as other,
    ):
        other.ask_before_destroy()
        assert other.gate is not None
        held = asyncio.ensure_future(other.call("close_account", {"account": "elsewhere"}))
        approval = await waiting(other)
        person = await served.person()
        page = (await served.client.get("/console/approvals", headers=person[0])).text
        await decide(served, person, approval.id, decision="approve")
        answer = await held

    assert "elsewhere" in page
    assert answer.data == "elsewhere is closed"


@pytest.mark.parametrize("fields", [{"decision": "maybe"}, {}, {"decision": "approve", "again": "5"}])
async def test_a_form_that_the_page_does_not_have_decides_nothing(serve: Any, fields: dict[str, str]) -> None:
    async with serve(bank(), NOT_HELD) as served:
        held = await served.call("close_account", {"account": "savings"})
        person = await served.person()
        await decide(served, person, held["data"]["approval_id"], **fields)
        unknown = await decide(served, person, "a_unknown", decision="approve")
        approval = await served.yard.gate.approvals.get(held["data"]["approval_id"])

    assert approval.status == "pending"
    assert "bad=1" in unknown.headers["location"]


async def test_decisions_of_the_last_hour_are_listed_with_the_call_that_used_them() -> None:
    async with Yard("bank", tools=[close_account]) as yard:
        yard.ask_before_destroy()
        assert yard.gate is not None
        approvals: Approvals = yard.gate.approvals
        call = asyncio.ensure_future(yard.call("close_account", {"account": "savings"}))
        approval = await waiting(yard)
        await approvals.decide(approval.id, "approve", by="user:test")
        answer = await call
        [decided] = await approvals.decided()

    assert (decided.id, decided.status, decided.call_id) == (approval.id, "spent", answer.meta.call_id)


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
async def test_a_card_fits_a_phone_and_a_dark_page(serve: Any, look: Any, width: int, scheme: str) -> None:
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings", "note": "word " * 30 + "x" * 180})
        page: Page = await look(login_to(served, "approvals"), width=width, scheme=scheme)
        await expect(page.get_by_role("button", name="Approve")).to_be_visible()

        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_card_can_be_approved_once_its_folded_values_were_opened(serve: Any, look: Any) -> None:
    async with serve(bank(), NOT_HELD) as served:
        await served.call("close_account", {"account": "savings", "note": "x" * 400 + "rm -rf /"})
        page: Page = await look(login_to(served, "approvals"))
        approve = page.get_by_role("button", name="Approve")
        await expect(approve).to_be_disabled()
        await page.keyboard.press("j")
        await page.keyboard.press("a")
        await page.locator("details.long summary").click()
        await expect(page.locator("details.long pre")).to_contain_text("rm -rf /")
        await expect(approve).to_be_enabled()
        await expect(page.get_by_role("button", name="Deny")).to_be_enabled()
        await approve.click()
        await expect(page.get_by_role("article").first).to_contain_text("Approved")


async def test_no_two_arguments_look_alike_and_a_card_shows_uri_and_checked_values(serve: Any) -> None:
    class Note(BaseModel):
        text: str = Field(exclude=True)
        size: int = 3

    @tool(operation="destroy")
    async def send(value: Any, note: Note) -> None:
        """Send something."""

    @resource("files://{path}")
    async def files(path: str) -> str:
        """Return a file."""
        return path

    values = ["yes", True, "none", [], "nothing", None, "", "empty", "1", 1, "a, b", ["a", "b"], '["a"]', ["a"]]
    rules = [Rule(decision="ask", tools=("files", "send"))]
    async with serve(Yard("shop", tools=[send], resources=[files], rules=rules), NOT_HELD) as served:
        for value in values:
            await served.call("send", {"value": value, "note": {"text": "hidden by the serialiser"}})
        await served.yard.read("files://a")
        cookie, _ = await served.person()
        page = (await served.client.get("/console/approvals", headers=cookie)).text

    cells = re.findall(r"value</th>\s*<td>(.*?)</td>", page, re.DOTALL)
    assert len(cells) == len({*cells}) == len(values)
    assert page.count("hidden by the serialiser") == len(values)
    assert page.count("As the tool sees them") == len(values)
    assert "<code>files://a</code>" in page
