import asyncio
import logging
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from table_tests import every_row

from callyard import Call, Caller, Envelope, QueueSettings, ToolError, Yard, tool
from callyard.dispatch.call import Channel, InvokeOptions
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Failure
from callyard.model.limits import Limits
from callyard.providers.functions import Functions
from callyard.testing import FakeClock, FakeSink

BACKGROUND = Channel(name="test", meta={"callyard/priority": "background"})
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Work:
    """Tools that run until a test lets them go, and how many of them did at one time."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.started: list[str] = []
        self.most = 0
        self.gates: dict[str, asyncio.Event] = {}

    async def run(self, name: str) -> str:
        """Run until the gate of that name opens."""
        self.running.append(name)
        self.started.append(name)
        self.most = max(self.most, len(self.running))
        try:
            await self.gates.setdefault(name, asyncio.Event()).wait()
        finally:
            self.running.remove(name)
        return name

    def open(self, *names: str) -> None:
        """Let calls end."""
        for name in names:
            self.gates.setdefault(name, asyncio.Event()).set()

    def tool(self, name: str, **options: Any) -> Any:
        """Return a tool that runs until its gate opens."""

        async def work(key: str) -> str:
            """Work."""
            return await self.run(key)

        work.__name__ = name
        return tool(**options)(work)


async def settle(until: Callable[[], bool] = lambda: False) -> None:
    """Let every task run as far as it can, or until something holds."""
    for _ in range(200):
        if until():
            return
        await asyncio.sleep(0)


def failure(answer: Envelope) -> Failure:
    assert answer.error is not None
    return answer.error


def begin(yard: Yard, name: str, key: str, **how: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(yard.call(name, {"key": key}, **how))


@every_row(
    ("queue", "running"),
    [
        (QueueSettings(calls=2), ["a1", "a2"]),
        (QueueSettings(per_tool=1), ["a1", "b1"]),
        (QueueSettings(tools={"a": 2, "*": 1}), ["a1", "a2", "b1"]),
        (QueueSettings(per_tool=1, tools={"a": 0}), ["a1", "a2", "a3", "b1"]),
        (QueueSettings(per_source=3), ["a1", "a2", "a3"]),
        (QueueSettings(per_source=1, sources={"y*": 2}), ["a1", "a2"]),
        (QueueSettings(per_caller=1), ["a1", "b2"]),
        (QueueSettings(calls=3, per_tool=2), ["a1", "a2", "b1"]),
    ],
)
async def test_no_more_calls_run_than_the_limits_allow(queue: QueueSettings, running: list[str]) -> None:
    work = Work()
    keys = ["a1", "a2", "a3", "b1", "b2"]
    async with Yard(tools=[work.tool("a"), work.tool("b")], queue=queue) as yard:
        callers = {"b2": Caller(identity="other")}
        calls = [begin(yard, key[0], key, caller=callers.get(key)) for key in keys]
        await settle()
        seen = sorted(work.running)
        work.open(*keys)
        answers = await asyncio.gather(*calls)

    assert seen == running
    assert [answer.data for answer in answers] == keys


async def test_a_yard_without_these_settings_has_no_limiter() -> None:
    async with Yard(queue=QueueSettings(waiting=5)) as yard:
        assert not yard.dispatcher.admission.limiters


async def test_the_tools_of_an_upstream_share_the_limit_of_their_source() -> None:
    work = Work()
    provider = Functions("slow", [work.tool("a"), work.tool("b")])
    async with Yard(tools=[work.tool("own")], providers=[provider], queue=QueueSettings(sources={"slow": 1})) as yard:
        names = {spec.name: spec.source for spec in yard.list()}
        slow = [name for name, source in names.items() if source == "slow"]
        calls = [begin(yard, name, name) for name in [*slow, "own"]]
        await settle()
        seen = set(work.running)
        work.open(*slow, "own")
        await asyncio.gather(*calls)

    assert len(slow) == 2
    assert seen == {slow[0], "own"}


async def test_interactive_calls_come_before_background_calls() -> None:
    work = Work()
    tools = [work.tool("a"), work.tool("late", priority="background"), work.tool("report_all")]
    async with Yard(tools=tools, queue=QueueSettings(calls=1, background=("report_*",))) as yard:
        calls = [begin(yard, "a", "first")]
        await settle()
        calls += [
            begin(yard, "late", "by spec"),
            begin(yard, "report_all", "by setting"),
            begin(yard, "a", "by request", channel=BACKGROUND),
        ]
        await settle()
        calls += [begin(yard, "a", "interactive")]
        await settle()
        for _ in range(5):
            work.open(*work.running)
            await settle()
        await asyncio.gather(*calls)

    assert work.started == ["first", "interactive", "by spec", "by setting", "by request"]


async def test_a_call_of_a_background_tool_can_ask_to_be_interactive() -> None:
    work = Work()
    hurried = Channel(name="test", meta={"callyard/priority": "interactive"})
    nonsense = Channel(name="test", meta={"callyard/priority": ["background"]})
    async with Yard(
        tools=[work.tool("a"), work.tool("late", priority="background")], queue=QueueSettings(calls=1)
    ) as yard:
        calls = [begin(yard, "a", "first")]
        await settle()
        calls += [
            begin(yard, "late", "late"),
            begin(yard, "late", "hurried", channel=hurried),
            begin(yard, "a", "odd", channel=nonsense),
        ]
        for _ in range(4):
            await settle()
            work.open(*work.running)
        await asyncio.gather(*calls)

    assert work.started == ["first", "hurried", "odd", "late"]


async def test_a_quarter_of_the_places_is_kept_for_interactive_calls() -> None:
    work = Work()
    async with Yard(tools=[work.tool("a")], queue=QueueSettings(calls=4)) as yard:
        keys = [f"b{number}" for number in range(6)]
        calls = [begin(yard, "a", key, channel=BACKGROUND) for key in keys]
        await settle()
        before = list(work.running)
        calls.append(begin(yard, "a", "interactive"))
        await settle()
        after = list(work.running)
        work.open(*keys, "interactive")
        await asyncio.gather(*calls)

    assert before == ["b0", "b1", "b2"]
    assert after == [*before, "interactive"]


async def test_the_oldest_background_call_starts_within_thirty_seconds_of_steady_interactive_load() -> None:
    work, clock = Work(), FakeClock()
    started_after: list[float] = []

    @tool(priority="background")
    async def report() -> None:
        """Note when it starts."""
        started_after.append(clock() - begun)

    async with Yard(
        tools=[work.tool("a"), report], queue=QueueSettings(calls=1), limits=Limits(timeout=0), clock=clock
    ) as yard:
        numbers = iter(range(1000))
        calls = [begin(yard, "a", f"i{next(numbers)}") for _ in range(3)]
        await settle()
        begun = clock()
        reports = [asyncio.create_task(yard.call("report")) for _ in range(5)]
        await settle()
        for _ in range(60):  # each second one interactive call ends and another comes, so that some always wait
            clock.advance(1)
            calls.append(begin(yard, "a", f"i{next(numbers)}"))
            work.open(*work.running)
            await settle()
        interactive = len(work.started)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, *reports, return_exceptions=True)

    assert 20 <= started_after[0] <= 30
    assert started_after[-1] <= 60
    assert interactive >= 50


async def test_a_full_queue_refuses_with_overloaded_and_says_when_to_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work()
    async with Yard(tools=[work.tool("a")], queue=QueueSettings(calls=1, waiting=1)) as yard:
        calls = [
            begin(yard, "a", "runs"),
            begin(yard, "a", "waits"),
            begin(yard, "a", "waits behind", channel=BACKGROUND),
        ]
        await settle()
        with caplog.at_level(logging.WARNING, "callyard.policy"):
            refused = await yard.call("a", {"key": "refused"})
        work.open("runs", "waits", "waits behind")
        await asyncio.gather(*calls)

    error = failure(refused)
    assert (error.code, error.details["reason"], error.may_have_run, error.retryable) == (
        "overloaded",
        "queue_full",
        False,
        True,
    )
    assert error.details["retry_after_ms"] > 0
    assert work.started == ["runs", "waits", "waits behind"]
    [line] = caplog.messages
    assert "tool=a code=overloaded reason=queue_full" in line


async def test_waiting_counts_against_the_deadline_of_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    hurried = Channel(name="test", meta={"callyard/timeout_ms": 50})
    async with Yard(tools=[work.tool("a", timeout=60)], queue=QueueSettings(calls=1)) as yard:
        first = begin(yard, "a", "first")
        await settle()
        with caplog.at_level(logging.WARNING, "callyard.policy"):
            late = await yard.call("a", {"key": "late"}, channel=hurried)
        work.open("first")
        assert (await first).data == "first"
        work.open("next")
        assert (await yard.call("a", {"key": "next"})).data == "next"

    assert (failure(late).code, failure(late).may_have_run, failure(late).retryable) == ("timeout", False, True)
    assert work.started == ["first", "next"]
    assert ["reason=not_started" in line for line in caplog.messages] == [True]


async def test_a_call_without_a_deadline_of_its_caller_waits_no_longer_than_it_may_run() -> None:
    work = Work()
    async with Yard(
        tools=[work.tool("slow", timeout=60), work.tool("a", timeout=0.02)], queue=QueueSettings(calls=1)
    ) as yard:
        first = begin(yard, "slow", "first")
        await settle()
        late = await yard.call("a", {"key": "late"})
        work.open("first")
        await first

    assert (failure(late).code, failure(late).may_have_run, failure(late).details["reason"]) == (
        "timeout",
        False,
        "not_started",
    )
    assert work.started == ["first"]


async def test_places_are_given_back_on_every_way_out() -> None:
    ended = threading.Event()

    @tool(timeout=0.05)
    async def fail(how: str) -> None:
        """Fail."""
        if how == "error":
            raise ToolError("state_error", "No.")
        if how == "defect":
            raise ZeroDivisionError
        await asyncio.Event().wait()

    @tool(timeout=0.05)
    def block() -> None:
        """Block a thread beyond the deadline."""
        ended.wait(10)

    @tool
    async def free() -> str:
        """Run."""
        return "free"

    async with Yard(tools=[fail, block, free], queue=QueueSettings(calls=1, waiting=1)) as yard:
        codes = [failure(await yard.call("fail", {"how": how})).code for how in ("error", "defect", "timeout")]
        cancelled = asyncio.create_task(yard.call("fail", {"how": "cancel"}))
        await settle()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert (await yard.call("free")).data == "free"
        codes.append(failure(await yard.call("block")).code)
        held = asyncio.create_task(yard.call("free"))
        await settle()
        assert not held.done()  # the thread of the abandoned call still runs in its place
        ended.set()
        assert (await held).data == "free"

    assert codes == ["state_error", "internal_error", "timeout", "timeout"]


async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_line() -> None:
    work = Work()
    async with Yard(tools=[work.tool("a")], queue=QueueSettings(calls=1, waiting=1)) as yard:
        first, waiting = begin(yard, "a", "first"), begin(yard, "a", "waiting")
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        third = begin(yard, "a", "third")
        await settle()
        work.open("first")
        await settle(lambda: work.running == ["third"])
        work.open("third")
        assert [(await call).data for call in (first, third)] == ["first", "third"]


async def test_a_call_that_is_cancelled_in_the_moment_of_its_turn_gives_the_place_on() -> None:
    work = Work()
    async with Yard(tools=[work.tool("a")], queue=QueueSettings(calls=1)) as yard:
        first, second, third = (begin(yard, "a", key) for key in ("first", "second", "third"))
        await settle()
        work.open("first", "third")
        await settle(first.done)  # its release has given the place to the second call, which has not gone on yet
        second.cancel()
        async with asyncio.timeout(60):
            assert (await third).data == "third"
        await asyncio.gather(second, return_exceptions=True)

    assert work.started in (["first", "third"], ["first", "second", "third"])


class Nest:
    """Tools that call others."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0

    def tools(self) -> list[Any]:
        """Return a leaf, and tools that call what they are told."""

        @tool
        async def leaf() -> int:
            """Count how many run at one time."""
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0)
            self.inside -= 1
            return 1

        @tool
        async def a(call: Call, inner: list[str]) -> int:
            """Call the next tool, and hand the rest to it."""
            return await descend(call, inner)

        @tool
        async def b(call: Call, inner: list[str]) -> int:
            """Call the next tool, and hand the rest to it."""
            return await descend(call, inner)

        @tool
        async def fan(call: Call, width: int) -> int:
            """Call many at once."""
            answers = await asyncio.gather(*(call.invoke("leaf") for _ in range(width)))
            return sum(answer.data for answer in answers)

        async def descend(call: Call, inner: list[str]) -> int:
            await asyncio.sleep(0)
            arguments = {} if inner[0] == "leaf" else {"inner": inner[1:]}
            answer = await call.invoke(inner[0], arguments)
            if answer.error is not None:
                raise ToolError(answer.error.code, answer.error.message)
            return answer.data

        return [leaf, a, b, fan]


@pytest.mark.parametrize(
    "queue", [QueueSettings(calls=1), QueueSettings(per_tool=1), QueueSettings(per_caller=1, per_source=1)]
)
async def test_an_inner_call_never_waits_for_the_place_of_its_outer_call(queue: QueueSettings) -> None:
    async with Yard(tools=Nest().tools(), queue=queue) as yard, asyncio.timeout(60):
        answers = await asyncio.gather(
            yard.call("a", {"inner": ["b", "a", "leaf"]}),
            yard.call("b", {"inner": ["a", "leaf"]}),
            yard.call("a", {"inner": ["leaf"]}),
            yard.call("run_tool", {"tool_id": "a", "args": {"inner": ["leaf"]}}),
        )

    assert [answer.data for answer in answers] == [1, 1, 1, 1]


async def test_inner_calls_run_in_the_place_of_their_outer_call_one_after_another() -> None:
    nest = Nest()
    async with Yard(tools=nest.tools(), queue=QueueSettings(calls=1)) as yard, asyncio.timeout(60):
        answer = await yard.call("fan", {"width": 20})

    assert answer.data == 20
    assert nest.most == 1


async def test_outer_calls_that_wait_for_each_other_in_a_circle_go_on() -> None:
    async with Yard(tools=Nest().tools(), queue=QueueSettings(per_tool=1)) as yard, asyncio.timeout(60):
        answers = await asyncio.gather(
            *(yard.call(name, {"inner": [other, "leaf"]}) for name, other in (("a", "b"), ("b", "a")) * 10)
        )

    assert {answer.data for answer in answers} == {1}


async def test_run_tool_and_chains_take_no_place_of_their_own() -> None:
    work = Work()
    async with Yard(tools=[work.tool("a")], queue=QueueSettings(calls=1)) as yard:
        held = begin(yard, "a", "held")
        await settle()
        steps = {"steps": [{"tool_id": "a", "args": {"key": key}} for key in ("one", "two")]}
        chain = asyncio.create_task(yard.call("run_chain", steps))
        searched = await yard.call("run_tool", {"tool_id": "run_tool", "args": {"tool_id": "nothing"}})
        work.open("held", "one", "two")
        assert (await held).success
        assert (await chain).success

    assert failure(searched).code == "tool_not_found"
    assert work.most == 1


async def test_a_call_inside_a_job_has_the_priority_background() -> None:
    work = Work()
    async with Yard(tools=[work.tool("a")], queue=QueueSettings(calls=1)) as yard:
        first = begin(yard, "a", "first")
        await settle()
        await yard.call("run_tool", {"tool_id": "a", "args": {"key": "job"}, "background": True})
        await settle()
        second = begin(yard, "a", "second")
        for _ in range(3):
            await settle()
            work.open(*work.running)
        await asyncio.gather(first, second)
        await settle(lambda: "job" in work.started)

    assert work.started == ["first", "second", "job"]


async def test_waiting_for_a_job_takes_no_place_that_the_job_needs() -> None:
    work = Work()
    work.open("job")
    async with Yard(tools=[work.tool("a")], queue=QueueSettings(calls=1)) as yard, asyncio.timeout(60):
        started = await yard.call("run_tool", {"tool_id": "a", "args": {"key": "job"}, "background": True})
        job = await yard.call("wait_job", {"job_id": started.data["job_id"]})

    assert job.data["status"] == "completed"


async def test_a_tool_can_call_another_in_the_background() -> None:
    work = Work()

    @tool
    async def outer(call: Call) -> None:
        """Call with a priority."""
        await call.invoke("a", {"key": "inner"}, options=InvokeOptions(priority="background"))

    async with Yard(tools=[outer, work.tool("a")], queue=QueueSettings(per_tool=2)) as yard:
        held = begin(yard, "a", "held", channel=BACKGROUND)
        await settle()
        calling = asyncio.create_task(yard.call("outer"))
        await settle()
        assert work.running == ["held"]
        work.open("held", "inner")
        await asyncio.gather(held, calling)


class Person:
    """Somebody who answers when told to."""

    def __init__(self, action: str = "accept") -> None:
        self.action = action
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.channel = Channel(name="test", ask=self.ask, capabilities=frozenset({"elicitation"}))

    async def ask(self, asks: Mapping[str, ClientRequest], _: object) -> Mapping[str, Any]:
        """Answer everything, but later."""
        self.asked.set()
        await self.answers.wait()
        if self.action == "fail":
            raise ToolError("cancelled", "Nobody is there.", reason="dismissed")
        return {key: {"action": self.action, "content": {"name": "Ada"}} for key in asks}


@pytest.mark.parametrize(("action", "code"), [("accept", None), ("decline", "approval_denied"), ("fail", "cancelled")])
async def test_a_call_that_waits_for_a_person_frees_its_place_and_takes_it_back(action: str, code: str | None) -> None:
    person, work, seen, codes = Person(action), Work(), list[list[str]](), list[str]()

    @tool
    async def ask(call: Call) -> str:
        """Ask, and go on with any answer."""
        try:
            await call.ask(SCHEMA, "Who?")
        except ToolError as error:
            codes.append(error.code)
        seen.append(list(work.running))
        return await work.run("asked")

    @tool
    async def outer(call: Call) -> Any:
        """Call the tool that asks."""
        return (await call.invoke("ask")).data

    async with Yard(tools=[ask, outer, work.tool("a")], queue=QueueSettings(calls=1)) as yard, asyncio.timeout(60):
        asking = asyncio.create_task(yard.call("outer", channel=person.channel))
        await person.asked.wait()
        meanwhile = begin(yard, "a", "meanwhile")
        await settle(lambda: work.running == ["meanwhile"])
        later = begin(yard, "a", "later")
        person.answers.set()
        await settle()
        assert work.running == ["meanwhile"]
        work.open("meanwhile", "asked", "later")
        assert [(await call).data for call in (meanwhile, asking, later)] == ["meanwhile", "asked", "later"]

    assert (seen, codes) == ([[]], [code] if code else [])
    assert work.started == ["meanwhile", "asked", "later"]  # who was answered comes before who waited less long
    assert work.most == 1


async def test_a_sibling_that_runs_in_the_place_of_its_outer_call_keeps_it() -> None:
    person, work = Person(), Work()

    @tool
    async def ask(call: Call) -> str:
        """Ask."""
        await call.ask(SCHEMA, "Who?")
        return "answered"

    @tool
    async def outer(call: Call) -> list[Any]:
        """Call two at once: one runs in this place, one in its own, which asks."""
        running = asyncio.create_task(call.invoke("a", {"key": "sibling"}))
        await settle(lambda: "sibling" in work.running)
        asked = await call.invoke("ask")
        return [asked.data, (await running).data]

    async with Yard(tools=[ask, outer, work.tool("a")], queue=QueueSettings(calls=2)) as yard, asyncio.timeout(60):
        asking = asyncio.create_task(yard.call("outer", channel=person.channel))
        await person.asked.wait()
        others = [begin(yard, "a", key) for key in ("one", "two")]
        await settle()
        assert work.running == ["sibling", "one"]  # two places: the sibling has the one of its outer call
        person.answers.set()
        await settle()
        work.open("sibling", "one", "two")
        assert (await asking).data == ["answered", "sibling"]
        await asyncio.gather(*others)


@every_row("seed", range(8))
async def test_no_place_is_lost_or_won_by_nested_and_cancelled_calls(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test
    work, sink, most = Work(), FakeSink(), 3
    tools = [*Nest().tools(), work.tool("w")]
    queue = QueueSettings(calls=most, per_tool=2, per_caller=most, tools={"w": most})
    async with Yard(tools=tools, queue=queue, sinks=[sink]) as yard, asyncio.timeout(60):
        calls: list[asyncio.Task[Any]] = []
        for _ in range(150):
            names = [chance.choice("ab") for _ in range(chance.randint(1, 3))]
            name, arguments = (
                ("fan", {"width": 5}) if chance.random() < 0.3 else (names[0], {"inner": [*names[1:], "leaf"]})
            )
            calls.append(asyncio.create_task(yard.call(name, arguments)))
            if chance.random() < 0.3:
                chance.choice(calls).cancel()
            for _ in range(chance.randint(0, 4)):
                await asyncio.sleep(0)
        await asyncio.gather(*calls, return_exceptions=True)
        held = [begin(yard, "w", f"w{number}") for number in range(most + 2)]
        await settle()
        running = len(work.running)
        work.open(*(f"w{number}" for number in range(most + 2)))
        await asyncio.gather(*held)

    assert running == most
    assert set(sink.codes) <= {None, "cancelled"}
