"""Observers and records: what is seen of a call besides its answer."""

import time
from typing import Any

import msgspec
import pytest

from callyard import Call, Caller, Envelope, Limits, Profile, ToolError, Toolset, Yard, tool
from callyard.dispatch.call import CallRequest
from callyard.dispatch.run import run_of
from callyard.testing import FakeSink, connect


@tool(operation="query")
async def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


class Watching:
    """An observer that notes what it sees."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def started(self, call: Call) -> None:
        self.seen.append(("started", call.name, run_of(call).finished))

    def finished(self, call: Call, envelope: Envelope, result: Any) -> None:
        self.seen.append(("finished", call.name, envelope.success, result.data))


async def test_an_observer_sees_every_call_begin_and_end() -> None:
    watching = Watching()
    async with Yard(tools=[add], metatools=False) as yard:
        stop = yard.dispatcher.observe(watching)
        await yard.call("add", {"a": 1})
        await yard.call("nothing")
        await yard.read("a://b")
        stop()
        await yard.call("add", {"a": 1})

    assert watching.seen == [
        ("started", "add", False),
        ("finished", "add", True, 1),
        ("started", "nothing", False),
        ("finished", "nothing", False, None),
        ("started", "a://b", False),
        ("finished", "a://b", False, None),
    ]


async def test_an_observer_gets_the_result_before_it_becomes_a_handle() -> None:
    @tool
    async def write() -> str:
        """Write much."""
        return "x" * 2000

    watching = Watching()
    async with Yard(tools=[write], limits=Limits(result_characters=1000)) as yard:
        yard.dispatcher.observe(watching)
        answer = await yard.call("write")

    assert "handle" in answer.data
    assert watching.seen[-1] == ("finished", "write", True, "x" * 2000)


@pytest.mark.parametrize("method", ["started", "finished"])
async def test_an_observer_that_fails_does_not_fail_the_call(method: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("No.")

    async with Yard(tools=[add]) as yard:
        yard.dispatcher.observe(type("Failing", (), {method: fail})())
        answer = await yard.call("add", {"a": 1})

    assert answer.data == 1
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["observer_failed"]


async def test_a_record_says_whose_fault_it_was_what_was_repaired_and_how_large_the_answer_is() -> None:
    async def deny(call: Call) -> Envelope | None:
        if call.arguments["a"] == 2:
            raise ToolError("permission_denied", "Not two.")
        return Envelope.ok({"status": "approval_required"}) if call.arguments["a"] == 3 else None

    sink = FakeSink()
    async with Yard(tools=[add], policies=[deny], sinks=[sink]) as yard:
        for a in ("1000", 2, 3):
            await yard.call("add", {"a": a})

    seen = [(record.blame, record.coerced, record.bytes, record.held) for record in sink.records]
    assert seen == [(None, 1, 4, False), ("policy", 0, 0, False), (None, 0, 30, True)]


async def test_a_record_says_how_long_a_call_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    async def wait(call: Call) -> Any:
        now[0] += 0.5
        return lambda: None

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    sink = FakeSink()
    async with Yard(tools=[add], limiters=[wait], sinks=[sink]) as yard:
        await yard.call("add", {"a": 1})

    assert (sink.records[0].waited_ms, sink.records[0].elapsed_ms) == (500, 500)


async def test_policies_are_asked_in_turn_until_one_answers_or_denies() -> None:
    asked: list[str] = []

    async def allow(call: Call) -> None:
        asked.append("allow")

    async def answer(call: Call) -> Envelope:
        asked.append("answer")
        return Envelope.ok("held")

    async def never(call: Call) -> None:
        raise AssertionError

    async with Yard(tools=[add], policies=[allow, answer, never]) as yard:
        held = await yard.call("add", {"a": 1})

    assert (held.data, asked) == ("held", ["allow", "answer"])


async def test_every_limiter_is_waited_for_and_the_last_is_released_first() -> None:
    seen: list[str] = []

    def limiter(name: str) -> Any:
        async def acquire(call: Call) -> Any:
            seen.append(f"acquire {name}")
            return lambda: seen.append(f"release {name}")

        return acquire

    async with Yard(tools=[add], limiters=[limiter("a"), limiter("b")]) as yard:
        await yard.call("add", {"a": 1})

    assert seen == ["acquire a", "acquire b", "release b", "release a"]


async def test_a_request_can_be_written_as_json_and_run_later() -> None:
    caller = Caller(
        identity="ada", scope="talk", profile=Profile(name="readers", toolsets=(Toolset(name="all", names=("add",)),))
    )
    request = CallRequest("add", {"a": 1, "b": 2}, caller)
    stored = msgspec.json.encode(request)

    sink = FakeSink()
    async with Yard(tools=[add], sinks=[sink]) as yard:
        answer = await yard.dispatcher.dispatch(msgspec.json.decode(stored, type=CallRequest))

    assert msgspec.json.decode(stored, type=CallRequest) == request
    assert (answer.data, sink.records[0].identity) == (3, "ada")


async def test_a_result_that_does_not_fit_is_named_by_field_and_types_and_never_by_its_contents(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Order(msgspec.Struct):
        number: int
        prices: dict[str, float]
        note: str | None = None

    @tool(operation="query")
    async def order() -> Order:
        """Return an order."""
        wrong: Any = {"number": "hunter2", "prices": {"hunter2": "hunter2"}, "note": 5}
        return wrong

    @tool(operation="query")
    async def lacking() -> Order:
        """Return an order."""
        wrong: Any = {"prices": {}}
        return wrong

    async with connect(Yard(tools=[order, lacking])) as client:
        error = (await client.call("order")).expect_error("invalid_output")
        missing = (await client.call("lacking")).expect_error("invalid_output")

    found = sorted((issue["field"], issue["expected"], issue["came"]) for issue in error.details["issues"])
    assert found == [
        ("note", "string or null", "integer"),
        ("number", "integer", "string"),
        ("prices.*", "number", "string"),
    ]
    assert [(issue["field"], issue["came"]) for issue in missing.details["issues"]] == [("number", "nothing")]
    lines = [record.getMessage() for record in caplog.records]
    assert any(
        f"id={error.details['call_id']}" in line and "field=number" in line and "came=string" in line for line in lines
    )
    assert "hunter2" not in "".join(lines) + str(error)
