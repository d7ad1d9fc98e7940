"""Rates and the locks of serial tools, of several servers on one Redis."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis_programs import NEEDS_REDIS, Program, one_server, wait_until

from callyard import Call, QueueSettings, RateSettings, Yard, tool
from callyard.dispatch import admission
from callyard.state.redis import RedisStore

pytestmark = NEEDS_REDIS
NUMBERS = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    with one_server(tmp_path_factory.mktemp("redis")) as program:
        yield program


@tool(operation="query")
async def a() -> str:
    """Answer."""
    return "a"


class CountingStore(RedisStore):
    """Counts how often tokens are taken from it."""

    trips = 0

    async def take_tokens(self, key: str, wanted: int, *, per_s: float, burst: int) -> tuple[int, float]:
        self.trips += 1
        return await super().take_tokens(key, wanted, per_s=per_s, burst=burst)


def trips_of(yard: Yard) -> int:
    store = yard.store
    assert isinstance(store, CountingStore)
    return store.trips


@asynccontextmanager
async def yards(server: Program, number: int, **settings: Any) -> AsyncGenerator[list[Yard]]:
    """Open several yards on one store."""
    prefix = f"limits{next(NUMBERS)}"
    async with AsyncExitStack() as stack:
        stores = [CountingStore(f"{server.url}?prefix={prefix}") for _ in range(number)]
        yield [await stack.enter_async_context(Yard(store=store, **settings)) for store in stores]


async def codes(yard: Yard, calls: int) -> list[str | None]:
    answers = await asyncio.gather(*(yard.call("a") for _ in range(calls)))
    return [None if answer.error is None else answer.error.code for answer in answers]


async def test_servers_share_a_rate(server: Program) -> None:
    rates = RateSettings(calls=0.6, per_caller=0.6, burst=20)
    async with yards(server, 4, tools=[a], rates=rates) as opened:
        found = [code for part in await asyncio.gather(*(codes(yard, 10) for yard in opened)) for code in part]

    assert (found.count(None), found.count("rate_limited")) == (20, 20)


async def test_a_server_takes_a_tenth_of_the_burst_ahead(server: Program) -> None:
    async with yards(server, 1, tools=[a], rates=RateSettings(per_caller=60, burst=100)) as [yard]:
        await yard.call("a")
        assert await codes(yard, 39) == [None] * 39
        trips = trips_of(yard)

    assert trips == 4


async def test_a_refused_call_says_when_the_shared_bucket_has_a_token(server: Program) -> None:
    async with yards(server, 2, tools=[a], rates=RateSettings(per_caller=30, burst=1)) as [one, other]:
        await one.call("a")
        first = await other.call("a")
        before = trips_of(other)
        second = await other.call("a")
        trips = trips_of(other) - before

    assert first.error is not None
    assert second.error is not None
    assert (first.error.code, first.error.details["reason"], trips) == ("rate_limited", "rate_of_caller", 0)
    assert 0 < second.error.details["retry_after_ms"] <= first.error.details["retry_after_ms"] <= 2001


async def test_tokens_taken_long_ago_are_given_up(server: Program) -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()
    async with yards(server, 1, tools=[a], rates=RateSettings(per_caller=600, burst=20), clock=clock) as [yard]:
        await yard.call("a")
        clock.now += 1000
        await yard.call("a")
        trips = trips_of(yard)

    assert trips == 2


async def test_without_redis_calls_are_refused_once_the_tokens_at_hand_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with one_server(tmp_path) as mine:
        async with yards(mine, 1, tools=[a], rates=RateSettings(per_caller=60, burst=30)) as [yard]:
            await yard.call("a")
            mine.kill()
            answers = [await yard.call("a") for _ in range(4)]

    found = [None if answer.error is None else answer.error for answer in answers]
    assert found[:2] == [None, None]
    for error in found[2:]:
        assert error is not None
        assert (error.code, error.details["reason"], error.may_have_run) == ("overloaded", "store_unavailable", False)
    assert any("reason=store_unavailable" in line for line in caplog.messages)


async def test_many_shared_buckets_do_not_fill_the_memory(server: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.policy.rates._MAX_BUCKETS", 2)
    async with yards(server, 1, tools=[a], rates=RateSettings(calls=600, per_caller=60, burst=1)) as [yard]:
        assert await codes(yard, 1) == [None]


async def test_a_serial_tool_runs_one_call_at_a_time_on_all_servers(server: Program) -> None:
    running, most, done = 0, 0, 0

    @tool(operation="query", serial=True)
    async def alone(call: Call) -> None:
        """Count how many run."""
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        if not call.parent:
            await call.invoke("alone")  # an inner call does not wait for the outer one
        await asyncio.sleep(0)
        running -= 1
        done += 1

    async with yards(server, 3, tools=[alone]) as opened:
        answers = await asyncio.gather(*(yard.call("alone") for yard in opened for _ in range(4)))

    assert all(answer.success for answer in answers)
    assert (most, done) == (2, 24)
    assert server.ask("KEYS", "limits*lease:serial/*") == []


async def test_a_serial_call_waits_for_the_lease_of_a_dead_server_and_stops_when_it_is_cancelled(
    server: Program,
) -> None:
    @tool(operation="query", serial=True)
    async def alone() -> str:
        """Answer."""
        return "done"

    async with yards(server, 1, tools=[alone]) as [yard]:
        lease = await yard.store.acquire(f"serial/{admission.owner_key('tool alone')}", ttl=3600)
        assert lease is not None
        asked = server.stats("evalsha")
        given_up, waits = asyncio.create_task(yard.call("alone")), asyncio.create_task(yard.call("alone"))
        await asyncio.to_thread(wait_until, lambda: server.stats("evalsha") > asked + 1)
        given_up.cancel()
        await asyncio.wait({given_up})
        assert not waits.done()
        await yard.store.release(lease)  # nobody publishes this

        assert (await waits).data == "done"


async def test_a_serial_call_that_loses_its_lease_is_stopped(
    server: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "_LEASE_S", 0.3)
    started = asyncio.Event()

    @tool(operation="command", serial=True)
    async def alone() -> None:
        """Wait."""
        started.set()
        await asyncio.Event().wait()

    async with yards(server, 1, tools=[alone]) as [yard]:
        call = asyncio.create_task(yard.call("alone"))
        await started.wait()
        for key in server.ask("KEYS", "limits*lease:serial/*"):
            server.ask("SET", key, "1 other", "PX", 500)
        answer = await call

    assert answer.error is not None
    assert (answer.error.code, answer.error.blame, answer.error.may_have_run) == ("cancelled", "yard", True)
    assert any("serial_lost tool=alone" in line for line in caplog.messages)


async def test_without_redis_a_serial_call_ends_and_the_next_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_LEASE_S", 0.3)
    started = asyncio.Event()

    @tool(operation="command", serial=True)
    async def alone(seconds: float) -> float:
        """Wait."""
        started.set()
        await asyncio.sleep(seconds)  # what it waits for is that its lease ends
        return time.monotonic()

    with one_server(tmp_path) as mine:
        async with yards(mine, 1, tools=[alone], queue=QueueSettings(calls=5)) as [yard]:
            call = asyncio.create_task(yard.call("alone", {"seconds": 60}))
            await started.wait()
            mine.kill()
            stopped, refused = await call, await yard.call("alone", {"seconds": 0})

    assert stopped.error is not None
    assert refused.error is not None
    assert (stopped.error.code, stopped.error.may_have_run) == ("cancelled", True)
    assert (refused.error.code, refused.error.may_have_run) == ("overloaded", False)
