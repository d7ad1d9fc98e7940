"""What tools without hints do, settled in the console: by a person who sees them, and by nobody else."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.async_api import Page, expect

from callyard import Yard
from callyard.providers.upstream.pins import parse_lock
from callyard.providers.upstream.provider import Upstream
from callyard.transports.auth import digest_of

SERVER = Path(__file__).parents[1] / "providers" / "upstream" / "servers" / "silent_server.py"
NOT_HELD = "[limits]\napproval_hold_s = 0.001\n"
OPERATOR, CALLER = "operator-key-0123456789abcdef", "caller-key-0123456789abcdefgh"


@pytest.fixture
def silent(tmp_path: Path) -> str:
    """Return the settings of a server whose tools have no hints."""
    tools = [
        {"name": name, "description": f"{name} <b>it</b>\u200b.", "inputSchema": {"type": "object"}}
        for name in ("get_issue", "delete_issue", "frobnicate")
    ]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    arguments = ["-I", str(SERVER), str(tmp_path / "tools.json"), str(tmp_path / "calls")]
    return f"{NOT_HELD}[upstreams.gh]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(arguments)}\n"


async def call(served: Any, name: str, **headers: str) -> Any:
    """Return the envelope of a call, which a tool of an upstream gets by way of a metatool."""
    return await served.call("run_tool", {"tool_id": name, "args": {}}, **headers)


async def upstream_of(served: Any) -> Upstream:
    found = served.yard.providers.get("gh")
    assert isinstance(found, Upstream)
    await found.wait_ready()
    return found


async def post(served: Any, person: Any, path: str, **fields: str) -> httpx2.Response:
    headers, csrf = person
    return await served.client.post(f"/console/{path}", data={"csrf": csrf, **fields}, headers=headers, timeout=60)


def settled(folder: Path) -> dict[str, str | None]:
    lock = folder / "callyard.lock"
    pins = parse_lock(lock, lock.read_bytes()).get("gh", {})
    return {key.name: pin.operation for key, pin in pins.items() if pin.operation}


def is_refused(response: httpx2.Response) -> bool:
    return response.status_code >= 400 or "bad=1" in response.headers["location"]


async def test_a_person_settles_the_tool_of_a_card_and_then_it_runs_or_asks_as_they_said(
    serve: Any, look: Any, silent: str, tmp_path: Path
) -> None:
    async with serve(Yard("shop"), silent) as served:
        await upstream_of(served)
        held = await call(served, "gh__frobnicate")
        page: Page = await look(served.login_to("approvals"))
        card = page.get_by_role("article")
        await expect(card).to_contain_text("unknown")
        await card.get_by_text("Nobody has said what this tool does").click()
        await expect(card).to_contain_text("frobnicate <b>it</b>\\u200b.")
        await expect(card.get_by_label("What it does")).to_have_value("command")
        await card.get_by_label("What it does").select_option("query")
        await card.get_by_role("button", name="Settle this tool").click()
        await expect(page.get_by_text("is settled: it reads")).to_be_visible()
        await expect(page.get_by_role("button", name="Settle this tool")).to_have_count(0)
        pending = await served.yard.gate.approvals.count()
        answer = await call(served, "gh__frobnicate")

    assert held["data"]["status"] == "approval_required"
    assert pending == 1  # to settle is no decision about the call
    assert answer["success"]
    assert settled(tmp_path) == {"frobnicate": "query"}


async def test_a_person_settles_all_tools_of_a_server_and_sees_each(
    serve: Any, look: Any, silent: str, tmp_path: Path
) -> None:
    async with serve(Yard("shop"), silent) as served:
        await upstream_of(served)
        await call(served, "gh__get_issue")
        page: Page = await look(served.login_to("approvals"))
        await page.get_by_text("Nobody has said what this tool does").click()
        await page.get_by_role("link", name="Settle all of 'gh'").click()
        section = page.get_by_role("region", name="Tools to settle")
        await expect(section.get_by_role("row")).to_have_count(4)
        await section.get_by_label("frobnicate").select_option("destroy")
        await section.get_by_role("button", name="Settle all of 'gh'").click()
        await expect(page.get_by_role("region", name="Tools to settle")).to_have_count(0)
        asks = (await call(served, "gh__frobnicate"))["data"]
        runs = await call(served, "gh__get_issue")

    assert settled(tmp_path) == {"get_issue": "query", "delete_issue": "destroy", "frobnicate": "destroy"}
    assert asks["status"] == "approval_required"
    assert runs["success"]


async def test_only_what_the_person_saw_is_settled(serve: Any, silent: str, tmp_path: Path) -> None:
    async with serve(Yard("shop"), silent) as served:
        upstream = await upstream_of(served)
        held = (await call(served, "gh__frobnicate"))["data"]
        person = await served.person()
        shown = (await served.client.get("/console/upstreams?open=gh", headers=person[0])).text
        seen = re.findall(r'name="seen" value="(\w+)"', shown)[-1]
        card = (await served.client.get("/console/approvals", headers=person[0])).text
        digest = re.findall(r'name="seen" value="(\w+)"', card)[-1]
        every = {f"operation:{name}": "query" for name in ("get_issue", "delete_issue", "frobnicate")}
        place = f"approvals/settle/{held['approval_id']}"
        refused = [
            await post(served, person, "upstreams/settle/gh", seen="0", **every),
            await post(served, person, "upstreams/settle/gh", seen=seen, **{**every, "operation:get_issue": "eval"}),
            await post(served, person, "upstreams/settle/gh", seen=seen),
            await post(served, person, place, seen="0", operation="query"),
            await post(served, person, place, operation="query"),
            await post(served, person, place, seen=digest, operation="nothing"),
            await post(served, person, "approvals/settle/unknown", seen=digest, operation="query"),
        ]
        assert settled(tmp_path) == {}
        first = await post(served, person, place, seen=digest, operation="command")
        refused.append(await post(served, person, place, seen=digest, operation="query"))
        refused.append(await post(served, person, "upstreams/settle/gh", seen=seen, **every))
        left = [tool.name for tool in upstream.unsettled()]

    assert [is_refused(response) for response in refused] == [True] * len(refused)
    assert not is_refused(first)
    assert settled(tmp_path) == {"frobnicate": "command"}
    assert left == ["delete_issue", "get_issue"]


async def test_nobody_settles_without_a_login_its_secret_and_its_token_and_no_operator_for_an_own_call(
    serve: Any, silent: str, tmp_path: Path
) -> None:
    keys = "\n".join(
        f'{{ name = "{name}", digest = "{digest_of(key)}", operator = {operator} }},'
        for name, key, operator in (("bot", CALLER, "false"), ("boss", OPERATOR, "true"))
    )
    async with serve(Yard("shop"), f"{silent}[auth]\napi_keys = [\n{keys}\n]\n") as served:
        await upstream_of(served)
        held = (await call(served, "gh__frobnicate", Authorization=f"Bearer {CALLER}"))["data"]
        own = (await call(served, "gh__frobnicate", Authorization=f"Bearer {OPERATOR}"))["data"]
        headers, csrf = await served.person(OPERATOR)
        card = (await served.client.get("/console/approvals", headers=headers)).text
        (digest,) = re.findall(r'name="seen" value="(\w+)"', card)
        fields, places = {"seen": digest, "operation": "query"}, [one["approval_id"] for one in (held, own)]
        cookie = {"Cookie": headers["Cookie"]}
        for place in (f"approvals/settle/{places[0]}", "upstreams/settle/gh"):
            for given in (
                {},
                cookie,
                {"Authorization": f"Bearer {CALLER}"},
                {**headers, "Origin": "http://localhost:1"},
            ):
                assert is_refused(await post(served, (given, csrf), place, **fields)), (place, given)
            assert is_refused(await post(served, (headers, "wrong"), place, **fields))
        refused = await post(served, (headers, csrf), f"approvals/settle/{places[1]}", **fields)
        reader = (await served.client.get("/console/upstreams?open=gh", headers=cookie)).text
        assert settled(tmp_path) == {}
        done = await post(served, (headers, csrf), f"approvals/settle/{places[0]}", **fields)

    assert is_refused(refused)
    assert "upstreams/settle" not in reader
    assert not is_refused(done)
    assert settled(tmp_path) == {"frobnicate": "query"}


async def test_a_tool_of_a_mounted_yard_is_settled_from_its_card(serve: Any, silent: str, tmp_path: Path) -> None:
    table = silent.partition("[upstreams.gh]")[2]
    command = json.loads(table.partition("command = ")[2].partition("\n")[0])
    arguments = json.loads(table.partition("args = ")[2].partition("\n")[0])
    inner = Yard("inner", upstreams={"gh": {"command": command, "args": arguments}}, state_dir=str(tmp_path / "state"))
    async with serve(Yard("shop", providers=[inner]), NOT_HELD) as served:
        found = inner.providers.get("gh")
        assert isinstance(found, Upstream)
        await found.wait_ready()
        held = (await call(served, "gh__frobnicate"))["data"]
        person = await served.person()
        card = (await served.client.get("/console/approvals", headers=person[0])).text
        (digest,) = re.findall(r'name="seen" value="(\w+)"', card)
        place = f"approvals/settle/{held['approval_id']}"
        done = await post(served, person, place, seen=digest, operation="query")
        answer = await call(served, "gh__frobnicate")

    assert "Settle all of" not in card
    assert not is_refused(done)
    assert answer["success"]
