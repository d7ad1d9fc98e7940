import asyncio
import logging
from typing import Any

import pytest
from table_tests import every_row

from callyard import Call, Caller, MemoryStore, QueueSettings, RateSettings, Yard, tool
from callyard.policy import rates as rates_module
from callyard.policy.queue import CallQueue
from callyard.testing import FakeClock


@tool(operation="query")
async def a() -> str:
    """Answer."""
    return "a"


@tool(operation="query")
async def b() -> str:
    """Answer."""
    return "b"


async def codes(yard: Yard, *names: str, **how: Any) -> list[str | None]:
    answers = [await yard.call(name, **how) for name in names]
    return [None if answer.error is None else answer.error.code for answer in answers]


@every_row(
    ("rates", "refused"),
    [
        (RateSettings(calls=60, burst=2), {"a3", "b1", "o1"}),
        (RateSettings(per_caller=60, burst=2), {"a3", "b1"}),
        (RateSettings(per_tool=60, burst=2), {"a3"}),
        (RateSettings(tools={"b": 60, "x": 1}, burst=1), set[str]()),
        (RateSettings(per_tool=60, tools={"a": 0}, burst=1), set[str]()),
    ],
)
async def test_calls_that_come_too_often_are_refused(rates: RateSettings, refused: set[str]) -> None:
    async with Yard(tools=[a, b], rates=rates, clock=FakeClock()) as yard:
        order = ["a1", "a2", "a3", "b1", "o1"]
        other = Caller(identity="other")
        found = [
            await codes(yard, "a" if key[0] == "o" else key[0], caller=other if key[0] == "o" else None)
            for key in order
        ]

    assert {key for key, [code] in zip(order, found, strict=True) if code == "rate_limited"} == refused


async def test_a_refusal_names_the_rate_and_when_to_come_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    async with Yard(tools=[a], rates=RateSettings(per_caller=30, per_tool=60, burst=1), clock=clock) as yard:
        await yard.call("a")
        with caplog.at_level(logging.WARNING, "callyard.policy"):
            refused = await yard.call("a")
        assert refused.error is not None
        wait = refused.error.details["retry_after_ms"]
        clock.advance(wait / 1000 - 0.01)
        early = await codes(yard, "a")
        clock.advance(0.01)
        later = await codes(yard, "a")

    assert (refused.error.code, refused.error.may_have_run, refused.error.retryable) == ("rate_limited", False, True)
    assert (refused.error.details["reason"], refused.error.details["per_minute"]) == ("rate_of_caller", 30)
    assert 1900 <= wait <= 2001
    assert (early, later) == (["rate_limited"], [None])
    assert ["reason=rate_of_caller" in line for line in caplog.messages] == [True, True]


async def test_a_burst_is_full_again_after_a_pause() -> None:
    clock = FakeClock()
    async with Yard(tools=[a], rates=RateSettings(per_caller=60, burst=3), clock=clock) as yard:
        first = await codes(yard, *"aaaa")
        clock.advance(1000)
        second = await codes(yard, *"aaaa")

    assert first == second == [None, None, None, "rate_limited"]


async def test_a_refused_call_takes_no_token_of_any_rate() -> None:
    clock = FakeClock()
    async with Yard(
        tools=[a, b], rates=RateSettings(calls=60, per_caller=60, tools={"a": 1}, burst=2), clock=clock
    ) as yard:
        assert await codes(yard, *"aa") == [None, None]
        clock.advance(2)
        assert await codes(yard, *"aaaa") == ["rate_limited"] * 4
        assert await codes(yard, *"bb") == [None, None]


async def test_every_inner_call_counts_and_what_only_runs_others_does_not() -> None:
    @tool(operation="query")
    async def both(call: Call) -> list[Any]:
        """Call two tools."""
        return [(await call.invoke(name)).success for name in ("a", "b")]

    async with Yard(tools=[a, b, both], rates=RateSettings(per_caller=60, burst=2), clock=FakeClock()) as yard:
        assert (await yard.call("both")).data == [True, False]
    async with Yard(tools=[a, b], rates=RateSettings(per_caller=60, burst=2), clock=FakeClock()) as yard:
        assert (await yard.call("run_tool", {"tool_id": "a"})).data == "a"
        steps = [{"tool_id": "a"}, {"tool_id": "b"}]
        chain = await yard.call("run_chain", {"steps": steps})
    assert chain.error is not None
    assert (chain.error.details["step_index"], chain.error.details["cause_code"]) == (1, "rate_limited")


async def test_another_conversation_has_no_rate_of_its_own() -> None:
    async with Yard(tools=[a], rates=RateSettings(per_caller=60, burst=1), clock=FakeClock()) as yard:
        first = await codes(yard, "a", caller=Caller(identity="ada", scope="one"))
        second = await codes(yard, "a", caller=Caller(identity="ada", scope="two"))

    assert (first, second) == ([None], ["rate_limited"])


async def test_many_callers_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_module, "_MAX_BUCKETS", 50)
    clock = FakeClock()
    rates = rates_module.Rates(RateSettings(per_caller=60, burst=1), MemoryStore(), clock=clock)
    async with Yard(tools=[a]) as yard:
        calls: list[Call] = []

        async def keep(call: Call) -> None:
            calls.append(call)

        async with Yard(tools=[a], policies=[keep]) as other:
            for number in range(200):
                await other.call("a", caller=Caller(identity=f"c{number}"))
        assert await codes(yard, "a") == [None]
    for call in calls:
        await rates.take(call)
        clock.advance(0.1)

    assert len(vars(rates)["_buckets"]) <= 51  # what nobody sees from outside
    assert len(vars(rates)["_of"]) <= 51


async def test_a_refused_call_takes_no_place_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    enter = CallQueue.enter

    def noted(self: CallQueue, call: Call) -> Any:
        entered.append(call.spec.name)
        return enter(self, call)

    monkeypatch.setattr(CallQueue, "enter", noted)
    async with Yard(
        tools=[a], queue=QueueSettings(calls=1), rates=RateSettings(calls=60, burst=1), clock=FakeClock()
    ) as yard:
        found = await asyncio.gather(*(codes(yard, "a") for _ in range(3)))

    assert sorted(found, key=str) == [["rate_limited"], ["rate_limited"], [None]]
    assert entered == ["a"]
