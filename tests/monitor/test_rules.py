"""The rules judge real calls of a yard; failures by fault of the caller count for nothing."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args

from callyard import Call, Caller, Limits, ToolError, Yard, tool
from callyard.config.settings import AlertRule
from callyard.dispatch.call import Channel
from callyard.dispatch.execution import RunningHandler
from callyard.model.elicitation import ClientRequest
from callyard.model.errors import CodeName
from callyard.monitor.blocked_loop import Block
from callyard.monitor.incidents import Problem
from callyard.monitor.metrics import Metrics
from callyard.monitor.prometheus import UpstreamState
from callyard.monitor.rules import RULES, Rules, Thresholds, Waiting
from callyard.state.replicas import ReplicaRecord
from callyard.testing import FakeClock

Until = Callable[[Callable[[], object]], Awaitable[None]]


class Facts:
    """What the rules see of a yard, some of it as the test says."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.states: dict[str, str] = {}
        self.known: set[str] = set()
        self.aged: float = 0.0
        self.others: list[ReplicaRecord] = []

    def handlers(self, least_s: float) -> Sequence[RunningHandler]:
        found = self.yard.dispatcher.handlers(0.0 if self.aged else least_s)
        return [one._replace(ran_s=one.ran_s + self.aged) for one in found]

    def upstreams(self) -> Iterable[UpstreamState]:
        return [UpstreamState(name, state, is_open=False) for name, state in self.states.items()]

    def has(self, name: str) -> bool:
        return self.yard.registry.published(name) is not None

    def had(self, name: str) -> bool:
        return name in self.known

    def differing(self) -> Sequence[ReplicaRecord]:
        return self.others


class Judged:
    """A yard with its rules, on a clock of the test that begins now."""

    def __init__(self, yard: Yard, **thresholds: Any) -> None:
        self.yard = yard
        self.clock = FakeClock(time.time())
        self.facts = Facts(yard)
        self.blocks: list[Block] = []
        self.metrics = Metrics()
        options: dict[str, Any] = {"thresholds": Thresholds(**thresholds), "blocks": self.blocks, "clock": self.clock}
        self.rules = Rules(self.metrics, self.facts, **options)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Judged"]:
        async with self.yard:
            self.yard.add_sink(self.metrics)
            self.yard.add_sink(self.rules)
            self.yard.dispatcher.watch_expired(self.rules.note_expired)
            yield self

    def keys(self) -> list[str]:
        return [problem.key for problem in self.rules.judge()]

    def one(self) -> Problem:
        (problem,) = self.rules.judge()
        return problem


async def test_a_handler_near_its_deadline_is_named_with_the_line_where_it_waits(until: Until) -> None:
    go_on = asyncio.Event()

    async def nap() -> None:
        async with asyncio.timeout(100):
            await go_on.wait()

    @tool(operation="query", timeout=1000)
    async def sleepy() -> str:
        """Sleep."""
        await nap()
        return "awake"

    async with Judged(Yard(tools=[sleepy])).open() as judged:
        task = asyncio.create_task(judged.yard.call("sleepy", {}))
        await until(lambda: judged.yard.calls_in_flight)
        judged.facts.aged = 3900.0
        assert judged.keys() == []
        judged.facts.aged = 4100.0
        problem = judged.one()
        go_on.set()
        await task
        assert judged.keys() == []

    assert (problem.rule, problem.subject) == ("hung", "sleepy")
    assert problem.details["line"].startswith("test_rules.py:")
    assert problem.details["line"].endswith(" in nap")
    assert len(problem.calls) == 1


async def test_a_handler_in_a_thread_is_named_with_its_line(until: Until) -> None:
    go_on = threading.Event()

    @tool(operation="query", timeout=1000)
    def blocking() -> str:
        """Wait in a thread."""
        go_on.wait()
        return "awake"

    async with Judged(Yard(tools=[blocking])).open() as judged:
        task = asyncio.create_task(judged.yard.call("blocking", {}))
        judged.facts.aged = 4100.0
        await until(lambda: any(problem.details["line"].endswith(" in blocking") for problem in judged.rules.judge()))
        go_on.set()
        await task


async def test_a_call_whose_deadline_passed_is_named_for_a_minute() -> None:
    @tool(operation="query", timeout=0.01)
    async def slow(call: Call) -> str:
        """Take too long."""
        call.start_session(kind="demo")
        await asyncio.sleep(1000)  # its deadline ends it
        return "never"

    async with Judged(Yard(tools=[slow])).open() as judged:
        for _ in range(30):
            await judged.yard.call("slow", {})
        problem = next(one for one in judged.rules.judge() if one.rule == "hung")
        judged.clock.advance(61)
        keys = judged.keys()

    assert problem.details["line"].endswith(" in slow")
    assert (len(problem.calls), len(problem.sessions)) == (5, 5)
    assert "hung/slow" not in keys


async def test_a_handler_that_takes_ten_times_its_usual_time_is_named(until: Until) -> None:
    go_on = asyncio.Event()

    @tool(operation="query", timeout=0)
    async def usually_fast(wait: bool = False) -> str:  # noqa: FBT001, FBT002 - an argument of a tool
        """Be fast."""
        if wait:
            await go_on.wait()
        return "done"

    async with Judged(Yard(tools=[usually_fast])).open() as judged:
        for _ in range(99):
            await judged.yard.call("usually_fast", {})
        task = asyncio.create_task(judged.yard.call("usually_fast", {"wait": True}))
        await until(lambda: judged.yard.calls_in_flight)
        judged.facts.aged = 11.0
        assert judged.keys() == [], "too few calls to know"
        await judged.yard.call("usually_fast", {})
        assert judged.keys() == ["hung/usually_fast"]
        judged.facts.aged = 9.0
        assert judged.keys() == []
        go_on.set()
        await task


async def test_the_inner_call_of_a_metatool_hangs_and_not_the_metatool() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @tool(operation="query", timeout=10)
    async def inner() -> str:
        """Wait."""
        started.set()
        await go_on.wait()
        return "done"

    async with Judged(Yard(tools=[inner])).open() as judged:
        task = asyncio.create_task(judged.yard.call("run_tool", {"tool_id": "inner", "params": {}}))
        await started.wait()
        judged.facts.aged = 4100.0
        assert judged.keys() == ["hung/inner"]
        go_on.set()
        await task


async def test_a_call_that_waits_for_a_person_does_not_hang() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    @tool(operation="query", timeout=10)
    async def asking(call: Call) -> str:
        """Ask."""
        return (await call.ask({"type": "object", "properties": {"name": {"type": "string"}}}, "Who?"))["name"]

    async def answer(asks: Mapping[str, ClientRequest], _: object) -> dict[str, Any]:
        asked.set()
        await go_on.wait()
        return {key: {"action": "accept", "content": {"name": "Ada"}} for key in asks}

    async with Judged(Yard(tools=[asking])).open() as judged:
        task = asyncio.create_task(judged.yard.call("asking", {}, channel=Channel(name="test", ask=answer)))
        await asked.wait()
        judged.facts.aged = 4100.0
        assert judged.keys() == []
        go_on.set()
        assert (await task).data == "Ada"


async def test_a_tool_that_refuses_all_arguments_is_named() -> None:
    @tool(operation="query")
    async def picky(number: int) -> int:
        """Want a number."""
        return number

    async with Judged(Yard(tools=[picky])).open() as judged:
        for _ in range(9):
            await judged.yard.call("picky", {"number": "x"})
        assert judged.keys() == []
        await judged.yard.call("picky", {"number": "x"})
        problem = judged.one()
        await judged.yard.call("picky", {"number": 1})
        assert judged.keys() == []

    assert (problem.key, len(problem.calls)) == ("rejects/picky", 5)


async def test_names_that_several_callers_ask_for_are_named_until_somebody_has_them() -> None:
    async with Judged(Yard()).open() as judged:
        ada, ben = Caller(identity="ada"), Caller(identity="ben")
        for _ in range(3):
            await judged.yard.call("billing__pay", {}, caller=ada)
        await judged.yard.call("not a name, perhaps a secret", {}, caller=ada)
        await judged.yard.call("not a name, perhaps a secret", {}, caller=ben)
        assert judged.keys() == []
        judged.facts.known = {"billing__pay"}
        assert judged.one().details == {"callers": 1, "was_there": True}
        judged.facts.known = set()
        await judged.yard.call("billing__pay", {}, caller=ben)
        assert judged.one().details == {"callers": 2, "was_there": False}
        judged.clock.advance(901)
        assert judged.keys() == []
        for number in range(300):
            await judged.yard.call(f"name_{number}", {}, caller=ada)
        assert judged.keys() == []


async def test_errors_count_by_blame() -> None:
    @tool(operation="query")
    async def failing(code: CodeName) -> None:
        """Fail with a code."""
        raise ToolError(code, "No.")

    async with Judged(Yard(tools=[failing])).open() as judged:
        for _ in range(30):
            await judged.yard.call("failing", {"code": "not_found"})
        assert judged.keys() == []
        for _ in range(6):
            await judged.yard.call("failing", {"code": "upstream_error"})
        assert judged.keys() == [], "six of 36 are fewer than a fifth"
        for _ in range(4):
            await judged.yard.call("failing", {"code": "upstream_error"})
        problem = judged.one()
        judged.clock.advance(400)
        assert judged.keys() == []

    assert (problem.key, problem.details["failed"], len(problem.calls)) == ("errors/failing", 10, 5)


async def test_a_tool_that_became_slower_or_is_above_the_limit_is_slow() -> None:
    @tool(operation="query")
    async def steady() -> str:
        """Answer."""
        return "done"

    async with Judged(Yard(tools=[steady]), slow_ms=0.001).open() as judged:
        for _ in range(20):
            await judged.yard.call("steady", {})
        assert judged.keys() == ["slow/steady"]
    async with Judged(Yard(tools=[steady])).open() as judged:
        for _ in range(100):
            await judged.yard.call("steady", {})
        judged.rules.judge()
        judged.clock.advance(301)
        assert judged.keys() == []
        (stats,) = judged.metrics.tools.values()
        for _ in range(25):
            stats.count(2000.0)
        stats.trend.add(int(judged.clock()), None)
        problem = judged.one()

    assert problem.key == "slow/steady"
    assert problem.details["p95_ms"] > 1000 > problem.details["before_ms"]


async def test_upstreams_that_flap_or_fail_are_named_and_their_tools_are_not() -> None:
    async with Judged(Yard()).open() as judged:
        states = judged.facts.states
        for state in ("ready", "backing_off", "ready", "starting", "ready", "backing_off"):
            states["crm"] = state
            keys = judged.keys()
            judged.clock.advance(30)
        assert keys == ["flapping/crm"]
        judged.clock.advance(31)
        assert judged.keys() == ["flapping/crm", "upstream/crm"]
        states["crm"] = "cold"
        judged.clock.advance(601)
        assert judged.keys() == []
        states.clear()
        assert judged.keys() == []


async def test_jobs_and_approvals_that_wait_too_long_are_named_by_tool() -> None:
    async with Judged(Yard(), wait_s=60).open() as judged:
        now = judged.clock()
        waiting = [Waiting(kind="approval", tool="wipe", since=now - 10 * age, call_id=f"c_{age}") for age in range(10)]
        judged.rules.waiting = [*waiting, Waiting(kind="job", tool="wipe", since=now)]
        problem = judged.one()

    assert (problem.key, problem.details["waiting"]) == ("waits/approval/wipe", 4)
    assert problem.calls == ("c_9", "c_8", "c_7", "c_6")


async def test_blocks_of_the_loop_are_named_by_line_for_a_minute() -> None:
    async with Judged(Yard()).open() as judged:
        facts: dict[str, Any] = {"line": "a.py:1 in a", "stack": ("b.py:2 in b", "a.py:1 in a"), "call_id": "c_1"}
        judged.blocks += [Block(at=judged.clock(), **facts), Block(at=judged.clock(), **facts)]
        problem = judged.one()
        judged.clock.advance(61)
        assert judged.keys() == []

    assert (problem.key, problem.severity, problem.calls) == ("blocked/a.py:1 in a", "critical", ("c_1",))


async def test_replicas_that_differ_for_longer_than_an_update_are_named() -> None:
    async with Judged(Yard()).open() as judged:
        judged.facts.others = [ReplicaRecord("r_1", "host:7", "2.0", "abc", started=0.0)]
        assert judged.keys() == []
        judged.clock.advance(601)
        problem = judged.one()
        judged.facts.others = []
        assert judged.keys() == []

    assert (problem.key, problem.details) == ("replicas/all", {"differing": ["host:7 has version 2.0"]})


async def test_rules_that_are_off_are_not_judged() -> None:
    yard = Yard(limits=Limits())
    rules = Rules(Metrics(), Facts(yard), thresholds=Thresholds(wait_s=1), off=["waits"])
    rules.waiting = [Waiting(kind="job", tool="wipe", since=0.0)]
    async with yard:
        assert rules.judge() == []


def test_every_rule_can_be_switched_off_by_name() -> None:
    assert set(get_args(AlertRule)) == set(RULES)
