import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from callyard import Call, Confirmation, Envelope, Session, ToolError, Yard, tool
from callyard.dispatch.call import Channel
from callyard.dispatch.questions import Question
from callyard.model.elicitation import ClientRequest
from callyard.testing import FakeSink, connect

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


class Person:
    """Somebody who answers when told to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.declared: list[bool] = []
        self.channel = Channel(name="test", ask=self.ask, capabilities=frozenset({"elicitation"}))

    async def ask(self, asks: Mapping[str, ClientRequest], question: Question) -> Mapping[str, Any]:
        """Answer everything, but later."""
        self.declared.append(question.declared)
        self.asked.set()
        await self.answers.wait()
        return {key: {"action": "accept", "content": {"name": "Ada"}} for key in asks}


async def test_a_policy_that_answers_keeps_the_handler_from_running() -> None:
    @tool
    async def never() -> None:
        """Never run."""
        raise AssertionError

    async def hold(call: Call) -> Envelope:
        return Envelope.ok({"status": "held", "tool": call.spec.name})

    async with Yard(tools=[never], policies=[hold]) as yard:
        assert (await yard.call("never")).data == {"status": "held", "tool": "never"}


@pytest.mark.parametrize(
    ("error", "code"),
    [(ToolError("budget_exceeded", "No."), "budget_exceeded"), (ZeroDivisionError(), "permission_denied")],
)
async def test_a_policy_that_raises_denies(error: Exception, code: str, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def never() -> None:
        """Never run."""
        raise AssertionError

    async def deny(_: Call) -> None:
        raise error

    with caplog.at_level(logging.CRITICAL):
        async with Yard(tools=[never], policies=[deny]) as yard:
            answer = await yard.call("never")

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == (code, False)


async def test_the_policy_decides_before_anybody_is_asked() -> None:
    @tool(confirmation=Confirmation("Who?", SCHEMA))
    async def never() -> None:
        """Never run."""
        raise AssertionError

    async def deny(_: Call) -> None:
        raise ToolError("permission_denied", "No.")

    async with connect(Yard(tools=[never], policies=[deny]), answers=[{"name": "Ada"}]) as client:
        assert not (await client.call("never")).success
    assert client.questions == []


async def test_a_declared_question_is_answered_before_the_handler_runs() -> None:
    person = Person()
    entered: list[Any] = []

    @tool(confirmation=Confirmation("Who?", SCHEMA))
    async def greet(call: Call) -> str:
        """Greet."""
        entered.append(call.confirmation)
        return call.confirmation["name"]

    async with Yard(tools=[greet]) as yard:
        running = asyncio.create_task(yard.call("greet", channel=person.channel))
        await person.asked.wait()
        assert entered == []
        person.answers.set()
        assert (await running).data == "Ada"

    assert person.declared == [True]


async def test_a_declared_question_that_cannot_be_asked_runs_nothing() -> None:
    @tool(confirmation=Confirmation("Who?", SCHEMA))
    async def never() -> None:
        """Never run."""
        raise AssertionError

    async with Yard(tools=[never]) as yard:
        answer = await yard.call("never")

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("not_supported", False)


async def test_while_somebody_is_asked_the_turns_of_the_whole_line_are_free() -> None:
    person = Person()

    @tool(serial=True)
    async def inner(call: Call) -> str:
        """Ask."""
        return (await call.ask(SCHEMA, "Who?"))["name"]

    @tool(serial=True)
    async def outer(call: Call, *, ask: bool) -> Any:
        """Call a tool that asks, or not."""
        return (await call.invoke("inner")).data if ask else "free"

    async with Yard(tools=[inner, outer]) as yard:
        running = asyncio.create_task(yard.call("outer", {"ask": True}, channel=person.channel))
        await person.asked.wait()
        assert (await yard.call("outer", {"ask": False})).data == "free"
        person.answers.set()
        assert (await running).data == "Ada"
        assert (await yard.call("outer", {"ask": False})).data == "free"

    assert person.declared == [False]


async def test_a_call_that_was_answered_waits_for_its_turn_again() -> None:
    person = Person()
    order: list[str] = []
    gate, entered = asyncio.Event(), asyncio.Event()

    @tool(serial=True)
    async def one_by_one(call: Call, *, ask: bool) -> None:
        """Ask, or wait."""
        if ask:
            await call.ask(SCHEMA, "Who?")
            order.append("answered")
        else:
            entered.set()
            await gate.wait()
            order.append("waited")

    async with Yard(tools=[one_by_one]) as yard:
        asking = asyncio.create_task(yard.call("one_by_one", {"ask": True}, channel=person.channel))
        await person.asked.wait()
        other = asyncio.create_task(yard.call("one_by_one", {"ask": False}))
        await entered.wait()
        person.answers.set()
        for _ in range(5):
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        assert order == []
        gate.set()
        await asyncio.gather(asking, other)

    assert order == ["waited", "answered"]


async def test_a_turn_of_a_policys_own_is_given_back_meanwhile() -> None:
    person = Person()
    held: list[str] = []
    log: list[str] = []

    async def turn(call: Call) -> Any:
        held.append(call.name)
        log.append("taken")

        def release() -> None:
            held.remove(call.name)
            log.append("given back")

        return release

    @tool
    async def greet(call: Call) -> str:
        """Ask."""
        return (await call.ask(SCHEMA, "Who?"))["name"]

    async with Yard(tools=[greet], limiters=[turn]) as yard:
        running = asyncio.create_task(yard.call("greet", channel=person.channel))
        await person.asked.wait()
        assert held == []
        person.answers.set()
        assert (await running).success

    assert log == ["taken", "given back", "taken", "given back"]


async def test_a_call_that_is_cancelled_while_somebody_is_asked_gives_nothing_back_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    person, sink = Person(), FakeSink()

    @tool(serial=True)
    async def greet(call: Call) -> str:
        """Ask."""
        return (await call.ask(SCHEMA, "Who?"))["name"]

    async with Yard(tools=[greet], sinks=[sink]) as yard:
        running = asyncio.create_task(yard.call("greet", channel=person.channel))
        await person.asked.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        person.answers.set()
        assert (await yard.call("greet", channel=person.channel)).success

    assert sink.codes == ["cancelled", None]
    assert "release_failed" not in caplog.text


@pytest.mark.parametrize(
    "given", [("sign", {}), ("run_tool", {"tool_id": "sign"}), ("run_chain", {"steps": [{"tool_id": "sign"}]})]
)
async def test_a_declared_question_of_a_tool_is_put_once_through_however_many_yards_it_is_called(
    given: tuple[str, dict[str, Any]],
) -> None:
    @tool(confirmation=Confirmation("Who?", SCHEMA, "who"))
    async def sign(call: Call) -> str:
        """Sign."""
        return call.confirmation["name"]

    person = Person()
    person.answers.set()
    async with Yard(providers=[Yard("middle", providers=[Yard("inner", tools=[sign])])]) as yard:
        answer = await yard.call(*given, channel=person.channel)

    assert "Ada" in str(answer.data)
    assert person.declared == [given[0] != "run_chain"]


async def test_serial_tools_of_one_session_run_one_at_a_time_and_those_of_another_meanwhile() -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    together = asyncio.Event()

    async def begin(call: Call) -> str:
        """Begin."""
        return call.start_session().id

    @tool(serial=True)
    async def work(session: Session) -> int:
        """Work."""
        running[session.id] = running.get(session.id, 0) + 1
        most[session.id] = max(most.get(session.id, 0), running[session.id])
        if sum(running.values()) == 2:
            together.set()
        await together.wait()
        running[session.id] -= 1
        return 1

    async with Yard(tools=[begin, work]) as yard:
        ids = [(await yard.call("begin")).data for _ in range(2)]
        await asyncio.gather(*(yard.call("work", session=one) for one in ids for _ in range(3)))

    assert set(most.values()) == {1}


async def test_a_serial_tool_without_a_session_runs_one_at_a_time_at_all() -> None:
    running: list[int] = []

    @tool(serial=True)
    async def work() -> int:
        """Work."""
        running.append(1)
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        seen = len(running)
        running.pop()
        return seen

    async with Yard(tools=[work]) as yard:
        answers = await asyncio.gather(*(yard.call("work") for _ in range(5)))

    assert {answer.data for answer in answers} == {1}


async def test_a_serial_tool_may_call_another_of_its_session_without_waiting_for_itself() -> None:
    async def begin(call: Call) -> str:
        """Begin."""
        return call.start_session().id

    running: list[int] = []

    @tool(serial=True)
    async def inner(session: Session) -> int:
        """Do a part."""
        running.append(1)
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        seen = len(running)
        running.pop()
        return seen

    @tool(serial=True)
    async def outer(session: Session, call: Call) -> list[int]:
        """Do the whole."""
        return [answer.data for answer in await asyncio.gather(call.invoke("inner"), call.invoke("inner"))]

    async with Yard(tools=[begin, inner, outer]) as yard:
        await yard.call("begin")
        assert (await yard.call("outer")).data == [1, 1]


async def test_a_caller_that_goes_away_while_it_waits_leaves_no_lock_behind() -> None:
    gate = asyncio.Event()
    started = asyncio.Event()

    @tool(serial=True)
    async def work() -> int:
        """Work."""
        started.set()
        await gate.wait()
        return 1

    async with Yard(tools=[work]) as yard:
        first = asyncio.create_task(yard.call("work"))
        await started.wait()
        second = asyncio.create_task(yard.call("work"))
        while yard.calls_in_flight < 2:  # noqa: ASYNC110 - a call that waits for its turn tells nobody
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.set()
        assert (await first).success
        assert len(yard.dispatcher.admission.serial_locks) == 0
