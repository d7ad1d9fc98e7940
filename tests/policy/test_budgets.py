import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from callyard import BudgetSettings, Call, Caller, QueueSettings, RateSettings, Yard, tool
from callyard.dispatch.call import Channel
from callyard.policy import budgets as budgets_module
from callyard.policy.settings import Predicate, Rule
from callyard.state.memory import MemoryStore
from callyard.state.sqlite import SqliteStore
from callyard.state.store import Store, StoreUnavailableError
from callyard.testing import FakeClock


@tool(operation="query")
async def a() -> str:
    """Answer."""
    return "a"


@tool(operation="query")
async def long() -> str:
    """Answer at length."""
    return "x" * 400


@tool(operation="command", session="optional")
async def work(call: Call, session_id: str | None = None) -> str | None:
    """Work in a session."""
    return call.start_session().id if session_id is None else None


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.sqlite3")


class Failing(MemoryStore):
    """A store that can be lost; what it knows stays."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    async def count(self, key: str, *, by: int = 1, ttl: float | None = None) -> int:
        """Count, if that works."""
        if self.fails:
            raise StoreUnavailableError("gone", reason="gone")
        return await super().count(key, by=by, ttl=ttl)


def code(answer: Any) -> str | None:
    return None if answer.error is None else answer.error.code


async def test_a_budget_of_calls_is_kept_and_warned_of_from_eighty_percent_on(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with Yard(tools=[a], budgets=BudgetSettings(caller_calls=5), store=store) as yard:
        with caplog.at_level(logging.WARNING, "callyard.policy"):
            answers = [await yard.call("a") for _ in range(6)]
        other = await yard.call("a", caller=Caller(identity="other"))

    assert [code(answer) for answer in answers] == [None] * 5 + ["budget_exceeded"]
    assert [len(answer.meta.warnings) for answer in answers] == [0, 0, 0, 1, 1, 0]
    error = answers[5].error
    assert error is not None
    assert (error.may_have_run, error.retryable, error.details["reason"]) == (False, False, "caller_calls")
    assert (error.details["limit"], error.details["spent"]) == (5, 5)
    assert 0 < error.details["resets_in_ms"] <= 86_400_000
    assert code(other) is None
    assert len(caplog.messages) == 1


async def test_a_budget_outlives_a_restart(tmp_path: Path) -> None:
    found: list[str | None] = []
    for _ in range(3):
        async with Yard(
            tools=[a], budgets=BudgetSettings(caller_calls=3), store=SqliteStore(tmp_path / "store.sqlite3")
        ) as yard:
            found += [code(await yard.call("a")) for _ in range(2)]

    assert found == [None, None, None, "budget_exceeded", "budget_exceeded", "budget_exceeded"]


async def test_two_yards_on_one_store_share_the_budget() -> None:
    store, clock = MemoryStore(), FakeClock()
    settings = BudgetSettings(caller_calls=4)
    async with (
        Yard(tools=[a], budgets=settings, store=store, clock=clock) as one,
        Yard(tools=[a], budgets=settings, store=store, clock=clock) as two,
    ):
        await two.call("a")
        for _ in range(3):
            assert code(await one.call("a")) is None
        clock.advance(3)  # a count that is older than two seconds is read again, and written
        assert code(await one.call("long")) == "tool_not_found"
        found = [code(await one.call("a")), code(await two.call("a"))]

    assert found.count("budget_exceeded") >= 1


async def test_a_budget_of_tokens_counts_the_answers_that_reach_the_caller() -> None:
    @tool(operation="query")
    async def outer(call: Call) -> int:
        """Call another and say little about it."""
        return len((await call.invoke("long")).data)

    async with Yard(tools=[long, outer], budgets=BudgetSettings(caller_tokens=400)) as yard:
        first = [code(await yard.call("outer")) for _ in range(10)]
        second = [await yard.call("long") for _ in range(5)]
        wrapped = await yard.call("run_tool", {"tool_id": "outer"})

    assert first == [None] * 10
    assert [code(answer) for answer in second][-1] == "budget_exceeded"
    assert any(answer.meta.warnings for answer in second)
    assert code(wrapped) == "budget_exceeded"
    assert second[-1].error is not None
    assert second[-1].error.details["reason"] == "caller_tokens"


async def test_a_session_has_its_own_budget_and_calls_without_one_that_of_their_conversation() -> None:
    async with Yard(tools=[a, work], budgets=BudgetSettings(session_calls=2)) as yard:
        session = (await yard.call("work")).data
        in_session = [code(await yard.call("work", {"session_id": session})) for _ in range(3)]
        one, two = Caller(identity="ada", scope="one"), Caller(identity="ada", scope="two")
        in_conversation = [code(await yard.call("a", caller=caller)) for caller in (one, one, one, two)]

    assert in_session == [None, None, "budget_exceeded"]
    assert in_conversation == [None, None, "budget_exceeded", None]


async def test_every_inner_call_is_spent_and_what_only_runs_others_is_not() -> None:
    async with Yard(tools=[a], budgets=BudgetSettings(caller_calls=3)) as yard:
        chain = await yard.call("run_chain", {"steps": [{"tool_id": "a"}, {"tool_id": "a"}]})
        found = [await yard.call("run_tool", {"tool_id": "a"}) for _ in range(2)]

    assert chain.success
    assert [code(answer) for answer in found] == [None, "budget_exceeded"]
    assert found[0].meta.warnings


async def test_a_call_that_did_not_start_spends_nothing() -> None:
    gate = asyncio.Event()

    @tool
    async def held() -> None:
        """Wait."""
        await gate.wait()

    settings = BudgetSettings(caller_calls=3)
    async with Yard(tools=[a, held], budgets=settings, queue=QueueSettings(calls=1, waiting=0)) as yard:
        running = asyncio.create_task(yard.call("held"))
        for _ in range(20):
            await asyncio.sleep(0)
        refused = [code(await yard.call("a")) for _ in range(5)]
        gate.set()
        await running
        found = [code(await yard.call("a")) for _ in range(3)]

    assert refused == ["overloaded"] * 5
    assert found == [None, None, "budget_exceeded"]


async def test_a_call_that_waits_for_a_person_is_counted_once() -> None:
    async def answer(asks: Any, _: object) -> Any:
        return {key: {"action": "accept", "content": {"name": "Ada"}} for key in asks}

    @tool
    async def ask(call: Call) -> str:
        """Ask."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        return (await call.ask(schema, "Who?"))["name"]

    channel = Channel(name="test", ask=answer, capabilities=frozenset({"elicitation"}))
    limits: dict[str, Any] = {
        "budgets": BudgetSettings(caller_calls=2),
        "rates": RateSettings(calls=1, burst=2),
        "queue": QueueSettings(calls=1),
    }
    async with Yard(tools=[ask], clock=FakeClock(), **limits) as yard:
        found = [await yard.call("ask", channel=channel) for _ in range(3)]

    assert [answer.data for answer in found] == ["Ada", "Ada", None]


async def test_without_the_store_budgets_refuse_and_rates_go_on(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Failing(), FakeClock()
    async with Yard(
        tools=[a], budgets=BudgetSettings(caller_calls=100), rates=RateSettings(calls=6000), store=store, clock=clock
    ) as yard:
        before = await yard.call("a")
        store.fails = True
        clock.advance(3)
        with caplog.at_level(logging.WARNING, "callyard.policy"):
            refused = [await yard.call("a") for _ in range(2)]
        store.fails = False
        after = await yard.call("a")
    refusals = [line for line in caplog.messages if line.startswith("refused ")]
    store = Failing()
    async with Yard(tools=[a], rates=RateSettings(calls=60, burst=2), store=store) as yard:
        store.fails = True
        rated = [code(await yard.call("a")) for _ in range(3)]

    assert (code(before), code(after)) == (None, None)
    for answer in refused:
        assert answer.error is not None
        assert (answer.error.code, answer.error.details["reason"], answer.error.may_have_run) == (
            "overloaded",
            "store_unavailable",
            False,
        )
        assert answer.error.details["retry_after_ms"] > 0
    assert ["reason=store_unavailable" in line for line in refusals] == [True, True]
    assert rated == [None, None, "rate_limited"]


async def test_unwritten_counts_are_written_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets_module, "_WRITE_S", 0.01)
    store = Failing()
    async with Yard(tools=[a], budgets=BudgetSettings(caller_calls=100), store=store) as yard:
        await yard.call("a")
        store.fails = True
        await yard.call("a")
        await asyncio.sleep(0.05)
        lost = await store_total(store)
        store.fails = False
        async with asyncio.timeout(60):
            while await store_total(store) < 2:  # noqa: ASYNC110 - the store gives no sign
                await asyncio.sleep(0.01)

    assert lost < 2


async def store_total(store: Failing) -> int:
    counters: Any = vars(store)["_counters"]  # there is no list of counters
    keys: list[str] = list(counters)
    return sum([await MemoryStore.count(store, key, by=0) for key in keys])


async def test_a_budget_starts_anew_with_each_period() -> None:
    store, clock, wall = MemoryStore(), FakeClock(), FakeClock(86_400.0 * 3 + 100)
    budgets = budgets_module.Budgets(BudgetSettings(caller_calls=1, period=3600), store, clock=clock, wall_clock=wall)
    calls: list[Call] = []

    async def keep(call: Call) -> None:
        calls.append(call)

    async with Yard(tools=[a], policies=[keep]) as yard:
        await yard.call("a")

    async def spend() -> bool:
        await budgets.spend(calls[0], counts=True)
        return True

    async with budgets.open():
        assert await spend()
        with pytest.raises(Exception, match="used up"):
            await spend()
        for seconds in (1800, 1700):
            clock.advance(seconds)
            wall.advance(seconds)
        assert await spend()


async def test_calls_that_come_together_share_one_reading() -> None:
    reads: list[str] = []

    class Counting(MemoryStore):
        async def count(self, key: str, *, by: int = 1, ttl: float | None = None) -> int:
            reads.append(key)
            await asyncio.sleep(0.01)
            return await super().count(key, by=by, ttl=ttl)

    async with Yard(tools=[a], budgets=BudgetSettings(caller_calls=100), store=Counting()) as yard:
        answers = await asyncio.gather(*(yard.call("a") for _ in range(50)))
        seen = len(reads)

    assert all(answer.success for answer in answers)
    assert seen == 1


async def test_many_callers_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets_module, "_MAX_ACCOUNTS", 20)
    monkeypatch.setattr(budgets_module, "_WRITE_S", 0.001)
    async with Yard(tools=[a], budgets=BudgetSettings(caller_calls=2)) as yard:
        for number in range(100):
            assert code(await yard.call("a", caller=Caller(identity=f"c{number}"))) is None
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        limiter: Any = vars(yard)["_limiter"]  # what nobody sees from outside
        known = len(limiter._budgets._accounts)
        again = [code(await yard.call("a", caller=Caller(identity="c0"))) for _ in range(2)]

    assert known < 60
    assert again == [None, "budget_exceeded"]


async def test_a_chain_that_may_ask_spends_its_tokens_once() -> None:
    @tool(operation="query")
    async def long() -> str:
        """Return a long text."""
        return "x" * 1000

    ask = Rule(decision="ask", tools=("long",), when=(Predicate(pointer="/never", equals=1),))
    async with Yard(tools=[long], rules=[ask], budgets=BudgetSettings(caller_tokens=500)) as yard:
        answers = [await yard.call("run_chain", {"steps": [{"tool_id": "long"}], "final_only": True}) for _ in range(2)]

    assert [answer.success for answer in answers] == [True, True], answers
