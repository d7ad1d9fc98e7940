"""The story: every number it tells is true, and so is every claim."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from toolyard import Profile, Surface, Yard
from toolyard.demo.story import Bill, Lists, Scene, bill_of, lists_of, tell
from toolyard.demo.tools import make_yard
from toolyard.dispatch.call import Caller
from toolyard.transports.memory import Memory

META: dict[str, Any] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
EVERYTHING = Profile(name="direct", surface=Surface.DIRECT)
QUERIES = [json.loads(line)["query"] for line in Path(__file__).with_name("queries.jsonl").read_text().splitlines()]


async def told() -> tuple[list[Scene], Lists]:
    async with make_yard() as yard:
        return [scene async for scene in tell(yard)], lists_of(yard)


async def listed_on_the_wire(yard: Yard, profile: Profile | None = None) -> str:
    """Return the list of tools as a client gets it, less what a model does not read."""
    async with Memory(caller=Caller(profile=profile)).open(yard) as memory:
        memory.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}).encode())
        tools = json.loads(await memory.received.get())["result"]["tools"]
    kept = [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in tools]
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False)


async def test_every_answer_is_as_long_as_is_said() -> None:
    scenes, _ = await told()

    for move in (move for scene in scenes for move in scene.moves):
        envelope = json.loads(move.answer.to_json())
        del envelope["_meta"]
        text = json.dumps(envelope, separators=(",", ":"), ensure_ascii=False)
        assert move.answer.meta.estimated_tokens == pytest.approx(len(text) / 4, abs=3)


async def test_the_lists_cost_what_is_said() -> None:
    async with make_yard() as yard:
        lists = lists_of(yard)
        short = await listed_on_the_wire(yard)
        instructions = yard.instructions_for(yard.profile)
        long = await listed_on_the_wire(yard, EVERYTHING)

    assert (len(json.loads(short)), len(json.loads(long))) == (5, lists.tools)
    assert lists.shown == pytest.approx((len(short) + len(instructions)) / 4, rel=0.02)
    assert lists.everything == pytest.approx(len(long) / 4, rel=0.02)


async def test_the_bill_adds_up() -> None:
    scenes, _ = await told()
    large = scenes[-1].moves[0].answer.data

    spent = [sum(move.answer.meta.estimated_tokens for move in scene.moves) for scene in scenes]

    assert bill_of(scenes) == Bill(finding=spent[0] + spent[1], looking=spent[-1], large=-(-large["characters"] // 4))


async def test_the_search_finds_the_tool_that_the_rest_is_about() -> None:
    scenes, _ = await told()
    searched, described = scenes[0].moves[0], scenes[1].moves[0]

    assert searched.answer.data["hits"][0]["signature"].startswith(f"{described.arguments['tool_id']}(")


async def test_only_the_mistake_fails_and_its_recovery_is_put_right() -> None:
    scenes, _ = await told()
    failed = [move for scene in scenes for move in scene.moves if move.answer.error is not None]

    assert failed == scenes[2].moves
    error = failed[0].answer.error
    assert error is not None
    assert (error.code, error.may_have_run, error.details["issues"][0]["did_you_mean"]) == ("invalid_input", False, "amount_cents")
    assert scenes[3].moves[0].answer.meta.coerced == ("amount_cents",)


async def test_the_chain_writes_to_the_customer_of_the_payment() -> None:
    async with make_yard() as yard:
        steps = [scene async for scene in tell(yard)][4].moves[0].arguments["steps"]
        results = (await yard.call("run_chain", {"steps": steps})).data["results"]

    assert [result["id"] for result in results] == ["charge", "customer", "letter", "note"]
    assert results[0]["data"]["customer_id"] == results[1]["data"]["contact_id"] == results[3]["data"]["contact_id"]


async def test_others_were_charged_twice_too() -> None:
    scenes, _ = await told()
    exported, read, compared = [move.answer.data for move in scenes[-1].moves]

    assert exported["status"] == "stored"
    assert [charge["charge_id"] for charge in read["value"]] == ["ch_1041", "ch_1042"]
    assert compared["rows"] == exported["shape"]["length"]
    assert compared["groups"] == 3


async def test_five_hits_cost_few_tokens() -> None:
    async with make_yard() as yard:
        answers = [await yard.call("search_tools", {"query": query}) for query in QUERIES]
    spent = [answer.meta.estimated_tokens for answer in answers if len(answer.data["hits"]) == 5]

    assert len(spent) >= 60
    assert median(spent) <= 350
