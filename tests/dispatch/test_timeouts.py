import asyncio
import time
from typing import Any

import pytest
from table_tests import every_row

from callyard import Call, Caller, Limits, QueueSettings, Yard, tool
from callyard.dispatch.call import Channel
from callyard.model import limits as limits_module


@tool
async def hang() -> None:
    """Never end."""
    await asyncio.Event().wait()


@tool(timeout=0.2)
async def patient() -> str:
    """Take longer than some clients wait."""
    await asyncio.sleep(0.1)
    return "done"


@every_row(
    ("name", "limit"), [("claude-ai", 60), ("Cline", 60), ("codex-mcp-client", 60), ("claude-code", None), ("x", None)]
)
def test_the_time_limit_of_a_client_is_known_by_its_name(name: str, limit: float | None) -> None:
    assert Limits().client_seconds(name) == (limit or 0)
    assert Limits(client_timeout=5).client_seconds(name) == 5


@pytest.mark.parametrize("client", ["claude-ai", "anything"])
async def test_the_default_timeout_stays_below_the_time_limit_of_the_client(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(limits_module)["_CLIENT_SECONDS"], "claude-ai", 0.1)
    limits = Limits() if client == "claude-ai" else Limits(client_timeout=0.1)
    async with Yard(tools=[hang, patient], limits=limits) as yard, asyncio.timeout(60):
        caller = Caller(client=client)
        direct = await yard.call("hang", caller=caller)
        wrapped = await yard.call("run_tool", {"tool_id": "hang"}, caller=caller)
        own = await yard.call("patient", caller=caller)

    assert direct.error is not None
    assert (direct.error.code, direct.error.details["timeout_ms"]) == ("timeout", 90)
    assert wrapped.error is not None
    assert wrapped.error.code == "timeout"
    assert own.data == "done"  # a timeout of the tool itself stays


async def test_the_steps_of_a_chain_share_the_time_that_the_client_waits() -> None:
    @tool
    async def nap() -> None:
        """Take a while."""
        await asyncio.sleep(0.2)

    steps = [{"tool_id": "nap"} for _ in range(5)]
    async with Yard(tools=[nap], limits=Limits(client_timeout=0.5)) as yard, asyncio.timeout(60):
        began = time.monotonic()
        chain = await yard.call("run_chain", {"steps": steps}, caller=Caller(client="some"))
        took = time.monotonic() - began

    assert chain.error is not None
    assert (chain.error.code, chain.error.details["cause_code"]) == ("chain_step_failed", "timeout")
    assert 0 < chain.error.details["step_index"] < 3
    assert took < 2


async def test_a_call_of_the_library_and_a_job_know_no_client() -> None:
    @tool
    async def nap() -> str:
        """Take a while."""
        await asyncio.sleep(0.1)
        return "rested"

    async with Yard(tools=[nap], limits=Limits(client_timeout=0.05)) as yard:
        library = await yard.call("nap")
        caller = Caller(client="some")
        started = await yard.call("run_tool", {"tool_id": "nap", "background": True}, caller=caller)
        job = await yard.call("wait_job", {"job_id": started.data["job_id"]})

    assert library.data == "rested"
    assert job.data["result"]["data"] == "rested"


@every_row(
    ("value", "code"),
    [
        (50, "timeout"),
        (50.0, "timeout"),
        (0, None),
        (-1, None),
        ("50", None),
        (True, None),
        (None, None),
        (1e300, None),
    ],
)
async def test_a_request_states_how_long_its_client_waits(value: Any, code: str | None) -> None:
    channel = Channel(name="test", meta={"callyard/timeout_ms": value})
    async with Yard(tools=[patient]) as yard:
        answer = await yard.call("patient", channel=channel)

    assert (None if answer.error is None else answer.error.code) == code


async def test_waiting_in_the_queue_counts_for_the_client_too() -> None:
    started: list[str] = []
    gate = asyncio.Event()

    @tool(timeout=60)
    async def hold(call: Call) -> None:
        """Wait."""
        started.append(call.caller.identity)
        await gate.wait()

    async with (
        Yard(tools=[hold], queue=QueueSettings(calls=1), limits=Limits(client_timeout=0.1)) as yard,
        asyncio.timeout(60),
    ):
        first = asyncio.create_task(yard.call("hold", caller=Caller(identity="first")))
        await asyncio.sleep(0)
        late = await yard.call("hold", caller=Caller(identity="late", client="some"))
        gate.set()
        await first

    assert late.error is not None
    assert (late.error.code, late.error.may_have_run, late.error.details["timeout_ms"]) == ("timeout", False, 90)
    assert started == ["first"]
