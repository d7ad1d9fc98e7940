"""Whatever a chain or a job waits for, it is dispatched and recorded once."""

import asyncio
from typing import Any

from table_tests import every_row

from callyard import Call, Limits, Record, Rule, Yard, tool


@tool(operation="destroy")
async def burn(letter: str) -> str:
    """Burn a letter."""
    return f"{letter} is ash"


@tool(operation="command", job="always")
async def burn_later(call: Call, letter: str) -> str:
    """Burn a letter, as a job."""
    return str((await call.invoke("burn", {"letter": letter})).data)


async def approve_next(yard: Yard) -> None:
    assert yard.gate is not None
    waiting = await yard.gate.approvals.watch(set())
    await yard.gate.approvals.decide(waiting.id, "approve", by="ada")


@every_row(
    ("name", "arguments", "hold_s"),
    [
        ("run_chain", {"steps": [{"tool_id": "burn", "args": {"letter": "a"}}]}, 60),
        ("run_chain", {"steps": [{"tool_id": "burn", "args": {"letter": "a"}}]}, 0),
        ("burn_later", {"letter": "a"}, 60),
    ],
)
async def test_a_chain_or_a_job_that_waited_for_a_person_has_one_record(
    name: str, arguments: dict[str, Any], hold_s: float
) -> None:
    records: list[Record] = []
    rules = [Rule(decision="ask", tools=("burn",))]
    async with Yard(tools=[burn, burn_later], rules=rules, limits=Limits(approval_hold_s=hold_s)) as yard:
        yard.add_sink(records.append)
        approving = asyncio.create_task(approve_next(yard))
        answer = await yard.call(name, arguments)
        await approving
        if job_id := answer.data.get("job_id"):
            done = await yard.call("wait_job", {"job_id": job_id})
            assert done.data["status"] == "completed", done.data

    waited = [record for record in records if record.tool in {"burn", name}]
    assert sorted(record.tool for record in waited) == sorted(["burn", name])
    assert [record.code for record in waited] == [None, None]
