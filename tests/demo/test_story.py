"""The story of the demo: its numbers and claims are true."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from backends import require

from callyard import Profile, Surface, Yard
from callyard.demo.story import CallCosts, ListCosts, Step, call_costs, list_costs, run_story
from callyard.demo.tools import list_charges, make_yard
from callyard.dispatch.call import Caller
from callyard.transports.memory import Memory

META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
EVERYTHING = Profile(name="direct", surface=Surface.DIRECT)
QUERIES = [json.loads(line)["query"] for line in Path(__file__).with_name("queries.jsonl").read_text().splitlines()]


async def run_demo_story() -> tuple[list[Step], ListCosts]:
    async with make_yard(programs=True) as yard:
        return [step async for step in run_story(yard)], list_costs(yard)


async def listed_on_the_wire(yard: Yard, profile: Profile | None = None) -> str:
    """Return the list of tools as a client gets it, less what a model does not read."""
    async with Memory(caller=Caller(profile=profile)).open(yard) as memory:
        memory.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}).encode())
        tools = json.loads(await memory.received.get())["result"]["tools"]
    tools = [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in tools]
    return json.dumps(tools, separators=(",", ":"), ensure_ascii=False)


async def test_every_answer_reports_its_length() -> None:
    steps, _ = await run_demo_story()

    for call in (call for step in steps for call in step.calls):
        envelope = json.loads(call.answer.to_json())
        del envelope["_meta"]
        text = json.dumps(envelope, separators=(",", ":"), ensure_ascii=False)
        assert call.answer.meta.estimated_tokens == pytest.approx(len(text) / 4, abs=3)


async def test_the_lists_cost_what_is_shown() -> None:
    async with make_yard(programs=True) as yard:
        lists = list_costs(yard)
        short = await listed_on_the_wire(yard)
        instructions = yard.instructions_for(yard.profile)
        long = await listed_on_the_wire(yard, EVERYTHING)

    assert (len(json.loads(short)), len(json.loads(long))) == (6, lists.tools)
    assert lists.shown == pytest.approx((len(short) + len(instructions)) / 4, rel=0.02)
    assert lists.everything == pytest.approx(len(long) / 4, rel=0.02)


async def test_the_costs_add_up() -> None:
    steps, _ = await run_demo_story()
    large, program = steps[-2].calls[0].answer.data, steps[-1]
    code = program.calls[0].arguments["code"]

    spent = [sum(call.answer.meta.estimated_tokens for call in step.calls) for step in steps]

    assert call_costs(steps) == CallCosts(
        search=spent[0] + spent[1],
        excerpts=spent[-2],
        full_result=-(-large["characters"] // 4),
        program=-(-len(code) // 4) + spent[-1] if program.inner_tokens else 0,
        inner=program.inner_tokens,
    )


async def test_the_program_costs_less_than_its_hundred_calls_one_by_one() -> None:
    await require("bubblewrap")
    steps, _ = await run_demo_story()
    answer = steps[-1].calls[0].answer
    async with make_yard() as yard:
        contact = await yard.call("crm__get_contact", {"contact_id": "cu_1000"})

    assert answer.data["calls"][0]["count"] == 100
    assert steps[-1].inner_tokens == pytest.approx(100 * contact.meta.estimated_tokens, rel=0.2)
    assert call_costs(steps).inner > 10 * call_costs(steps).program > 0


async def test_the_program_adds_up_what_the_customers_paid() -> None:
    await require("bubblewrap")
    steps, _ = await run_demo_story()
    paid: dict[str, int] = {}
    for charge in list_charges({"month": "2026-02"}):
        paid[charge["customer_id"]] = paid.get(charge["customer_id"], 0) + charge["amount_cents"]

    assert sum(steps[-1].calls[0].answer.data["value"].values()) == sum(sorted(paid.values())[-100:])


async def test_the_search_finds_the_tool_of_the_story() -> None:
    steps, _ = await run_demo_story()
    searched, described = steps[0].calls[0], steps[1].calls[0]

    assert searched.answer.data["hits"][0]["signature"].startswith(f"{described.arguments['tool_id']}(")


async def test_only_the_mistake_fails_and_its_correction_is_coerced() -> None:
    steps, _ = await run_demo_story()
    failed = [
        call for step in steps[:-1] for call in step.calls if call.answer.error is not None
    ]  # the last one may need a sandbox

    assert failed == steps[2].calls
    error = failed[0].answer.error
    assert error is not None
    assert (error.code, error.may_have_run, error.details["issues"][0]["did_you_mean"]) == (
        "invalid_input",
        False,
        "amount_cents",
    )
    assert steps[3].calls[0].answer.meta.coerced == ("amount_cents",)


async def test_the_chain_writes_to_the_customer_of_the_payment() -> None:
    async with make_yard() as yard:
        steps = [step async for step in run_story(yard)][4].calls[0].arguments["steps"]
        results = (await yard.call("run_chain", {"steps": steps})).data["results"]

    assert [result["id"] for result in results] == ["charge", "customer", "letter", "note"]
    assert results[0]["data"]["customer_id"] == results[1]["data"]["contact_id"] == results[3]["data"]["contact_id"]


async def test_others_were_charged_twice_too() -> None:
    steps, _ = await run_demo_story()
    exported, read, compared = [call.answer.data for call in steps[-2].calls]

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
