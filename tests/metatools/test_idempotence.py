"""Calls that run others, and middleware that runs calls again: what has run does not run twice."""

import asyncio
from typing import Any

import pytest
from ticket_tools import Bench, ask, failure

from callyard import Call, Envelope, ToolError, Yard, tool
from callyard.dispatch.call import Handler

CHAIN: dict[str, Any] = {
    "steps": [{"tool_id": "wipe"}, {"tool_id": "open_ticket", "args": {"title": "x"}}, {"tool_id": "fail"}]
}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("run_chain", CHAIN),
    "by run_tool": ("run_tool", {"tool_id": "run_chain", "args": CHAIN}),
    "in a chain": ("run_chain", {"steps": [{"tool_id": "run_chain", "args": CHAIN}]}),
}


def retry(handler: Handler) -> Handler:
    """Run whatever fails twice more, be it by an exception or by an envelope."""

    async def run(call: Call) -> object:
        for _ in range(2):
            try:
                answer = await handler(call)
            except ToolError:
                continue
            if not isinstance(answer, Envelope) or answer.success:
                return answer
        return await handler(call)

    return run


@pytest.mark.parametrize("way", WAYS)
async def test_the_steps_before_the_one_that_fails_run_once_whatever_wraps_the_chain(way: str) -> None:
    bench = Bench()
    async with Yard(tools=[bench], middleware=[retry, retry]) as yard:
        error = failure(await yard.call(*WAYS[way]))

    assert (bench.ran.count("wipe"), bench.ran.count("open_ticket")) == (1, 1)
    assert "It is jammed." in error.message


async def test_a_chain_that_went_well_tells_the_same_to_whoever_runs_it_again() -> None:
    bench = Bench()

    def twice(handler: Handler) -> Handler:
        async def run(call: Call) -> object:
            if call.name == "run_chain":
                await handler(call)
            return await handler(call)

        return run

    async with Yard(tools=[bench], middleware=[twice]) as yard:
        data = await ask(yard, "run_chain", steps=[{"tool_id": "wipe"}])

    assert (data["final"], bench.ran) == ("gone", ["wipe"])


@pytest.mark.parametrize("name", ["run_chain", "run_tool"])
async def test_an_interrupted_call_is_not_started_again(name: str) -> None:
    begun: list[str] = []
    running = asyncio.Event()

    @tool(operation="command")
    async def hang() -> str:
        """Begin, and never end."""
        begun.append("hang")
        running.set()
        await asyncio.Event().wait()
        return "never"

    def impatient(handler: Handler) -> Handler:
        async def run(call: Call) -> object:
            if call.name != name:
                return await handler(call)
            first = asyncio.ensure_future(handler(call))
            await running.wait()
            first.cancel()
            await asyncio.wait({first})
            return await handler(call)

        return run

    given: dict[str, Any] = {"steps": [{"tool_id": "hang"}]} if name == "run_chain" else {"tool_id": "hang"}
    async with Yard(tools=[hang], middleware=[impatient]) as yard:
        error = failure(await yard.call(name, given))

    assert begun == ["hang"]
    assert (error.code, error.may_have_run) == ("state_error", True)
