"""Limits of calls over HTTP: what a client gets when it calls too often, too much, or does not wait long enough."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from callyard import BudgetSettings, Limits, QueueSettings, RateSettings, Yard, tool

META = "io.modelcontextprotocol/"


@tool(operation="query")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def hang() -> None:
    """Never end."""
    await asyncio.Event().wait()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds in the server, which runs on the same loop."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - a yard gives no sign of it
            await asyncio.sleep(0)


def envelope(reply: Any) -> Any:
    return reply.json["result"]["structuredContent"]


async def test_a_client_that_calls_too_often_gets_an_envelope_with_the_time_to_wait(serve: Any) -> None:
    server = await serve(Yard(tools=[add], rates=RateSettings(per_caller=60, burst=2)))

    replies = [await server.ask("add", {"a": 1, "b": 2}) for _ in range(3)]

    assert [reply.status for reply in replies] == [200, 200, 200]
    refused = envelope(replies[2])["error"]
    assert (refused["code"], refused["retryable"], refused["may_have_run"]) == ("rate_limited", True, False)
    assert 0 < refused["details"]["retry_after_ms"] <= 1001
    assert [record.code for record in server.records] == [None, None, "rate_limited"]


async def test_a_budget_warns_and_then_refuses_in_both_eras(serve: Any) -> None:
    server = await serve(Yard(tools=[add], budgets=BudgetSettings(caller_calls=5)))
    session = await server.greet()

    older = [await (await session.call("add", {"a": 1, "b": 2})).reply() for _ in range(4)]
    newer = [await server.ask("add", {"a": 1, "b": 2}) for _ in range(2)]

    warned = [bool(envelope(reply)["_meta"].get("warnings")) for reply in (*older, newer[0])]
    assert warned == [False, False, False, True, True]
    assert envelope(newer[1])["error"]["code"] == "budget_exceeded"


async def test_a_call_that_cannot_start_before_its_client_gives_up_says_so(serve: Any) -> None:
    server = await serve(Yard(tools=[hang, add], queue=QueueSettings(calls=1)))
    held = await server.call("hang")
    await until(lambda: server.yard.calls_in_flight == 1)

    late = await server.ask("add", {"a": 1, "b": 2}, meta={"callyard/timeout_ms": 100})
    await held.close()

    error = envelope(late)["error"]
    assert (error["code"], error["may_have_run"], error["retryable"]) == ("timeout", False, True)


@pytest.mark.parametrize("name", ["some-client", "t"])
async def test_the_default_timeout_is_below_the_time_limit_of_the_client(serve: Any, name: str) -> None:
    server = await serve(Yard(tools=[hang], limits=Limits(client_timeout=0.2)))

    reply = await server.ask("hang", meta={f"{META}clientInfo": {"name": name, "version": "1"}})

    error = envelope(reply)["error"]
    assert (error["code"], error["details"]["timeout_ms"]) == ("timeout", 180)


async def test_a_client_that_goes_away_while_it_waits_leaves_its_place_in_the_line(serve: Any) -> None:
    server = await serve(Yard(tools=[hang, add], queue=QueueSettings(calls=1, waiting=1)))
    held = await server.call("hang")
    waiting = await server.call("add", {"a": 1, "b": 2})
    await until(lambda: server.yard.calls_in_flight == 2)
    full = await server.ask("add", {"a": 1, "b": 2})
    await waiting.close()
    await until(lambda: server.yard.calls_in_flight == 1)
    third = await server.call("add", {"a": 1, "b": 2})
    await held.close()

    assert envelope(full)["error"]["code"] == "overloaded"
    assert envelope(await third.reply())["data"] == 3
