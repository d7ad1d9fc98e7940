import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from table_tests import every_row

from callyard import (
    Call,
    Caller,
    Envelope,
    Limits,
    Profile,
    Session,
    Text,
    ToolError,
    Toolset,
    Yard,
    current_call,
    tool,
)
from callyard.dispatch.call import Handler
from callyard.dispatch.run import run_of
from callyard.model.errors import CODES, CodeName
from callyard.testing import Client, FakeSink, connect


@tool(operation="query")
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def test_a_good_call_answers_with_its_data_and_its_id() -> None:
    async with Yard(tools=[add]) as yard:
        answer = await yard.call("add", {"a": 1, "b": 2})

    assert (answer.success, answer.data, answer.error) == (True, 3, None)
    assert answer.meta.call_id.startswith("c_")
    assert answer.meta.estimated_tokens == 10


async def test_every_call_leaves_one_record_without_its_contents() -> None:
    sink = FakeSink()
    async with Yard(tools=[add], sinks=[sink]) as yard:
        good = await yard.call("add", {"a": 1})
        await yard.call("add", {"a": "secret"})
        await yard.call("no_such_tool", {"a": 1})

    assert sink.codes == [None, "invalid_input", "tool_not_found"]
    assert sink.records[0].call_id == good.meta.call_id
    assert sink.records[0].operation == "query"
    assert "secret" not in repr(sink.records)


async def test_a_name_that_is_no_name_is_not_repeated_in_the_record() -> None:
    sink = FakeSink()
    async with Yard(sinks=[sink]) as yard:
        answer = await yard.call("drop table users; --")

    assert sink.records[0].tool == "?"
    assert answer.error is not None
    assert answer.error.tool_id == "?"


async def test_a_failing_sink_is_logged_and_the_others_still_get_the_record(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> None:
        raise RuntimeError

    sink = FakeSink()
    async with Yard(tools=[add], sinks=[broken, sink]) as yard:
        answer = await yard.call("add", {"a": 1})

    assert answer.success
    assert sink.codes == [None]
    assert "sink_failed" in caplog.text


@every_row("code", list(CODES))
async def test_every_code_that_a_tool_can_raise_goes_out_as_an_envelope(code: CodeName) -> None:
    async def fail() -> int:
        """Fail."""
        raise ToolError(code, "No.", because="of this")

    async with Yard(tools=[fail]) as yard:
        answer = Envelope.from_json((await yard.call("fail")).to_json())

    assert answer.error is not None
    assert answer.error.code == code
    assert answer.error.http == CODES[code].http
    reported = {"call_id": answer.meta.call_id} if code in {"internal_error", "invalid_output"} else {}
    assert answer.error.details == {"because": "of this", **reported}
    assert answer.error.tool_id == "fail"
    assert not answer.success


async def test_a_defect_of_a_tool_is_one_plain_sentence_and_a_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken() -> int:
        """Break."""
        raise ValueError("/etc/secret is not readable by hunter2")

    async with Yard(tools=[broken]) as yard:
        answer = await yard.call("broken")

    assert answer.error is not None
    assert (answer.error.code, answer.error.blame, answer.error.may_have_run) == ("internal_error", "tool", True)
    assert b"hunter2" not in answer.to_json()
    assert "hunter2" in caplog.text


@every_row("fault", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, RecursionError, MemoryError])
@every_row("threaded", [False, True])
async def test_the_caller_gets_an_answer_for_every_exception_of_a_handler(
    fault: type[BaseException],
    threaded: bool,  # noqa: FBT001 - a column of the table
) -> None:
    async def in_the_loop() -> int:
        """Raise."""
        raise fault

    def in_a_thread() -> int:
        """Raise."""
        raise fault

    async with Yard(tools=[in_the_loop, in_a_thread]) as yard:
        answer = await yard.call("in_a_thread" if threaded else "in_the_loop")

    assert answer.error is not None
    assert answer.error.code == "internal_error"


async def test_a_handler_that_cancels_itself_is_a_defect_and_not_a_cancellation() -> None:
    async def give_up() -> int:
        """Give up."""
        raise asyncio.CancelledError

    async with Yard(tools=[give_up]) as yard:
        answer = await yard.call("give_up")

    assert answer.error is not None
    assert answer.error.code == "internal_error"


@every_row(
    ("arguments", "code"),
    [
        ({"a": object()}, "invalid_input"),
        ({"a": "\ud800"}, "invalid_input"),
        ({1: 2}, "invalid_input"),
        ("not an object", "invalid_input"),
        ([1], "invalid_input"),
        ({"a": "x" * 1000}, "too_large"),
    ],
)
async def test_arguments_that_are_no_arguments_are_refused(arguments: Any, code: str) -> None:
    async with Yard(tools=[add], limits=Limits(argument_bytes=500)) as yard:
        answer = await yard.call("add", arguments)

    assert answer.error is not None
    assert answer.error.code == code
    assert not answer.error.may_have_run


async def test_arguments_nested_without_end_are_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    async with Yard(tools=[add]) as yard:
        answer = await yard.call("add", endless)

    assert answer.error is not None
    assert answer.error.code == "invalid_input"


async def test_a_call_runs_in_a_context_that_knows_it() -> None:
    seen: list[Call] = []

    async def look() -> str:
        """Look."""
        seen.append(current_call())
        return current_call().caller.identity

    def look_from_a_thread() -> str:
        """Look."""
        return current_call().caller.identity

    async with Yard(tools=[look, look_from_a_thread]) as yard:
        direct = await yard.call("look", caller=Caller(identity="ada"))
        threaded = await yard.call("look_from_a_thread", caller=Caller(identity="ada"))

    assert (direct.data, threaded.data) == ("ada", "ada")
    assert run_of(seen[0]).finished
    with pytest.raises(LookupError):
        current_call()


async def test_middleware_wraps_in_the_order_given_and_sees_the_call() -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        def wrap(handler: Handler) -> Handler:
            async def wrapped(call: Call) -> object:
                order.append(f"{name} {call.spec.name}")
                return await handler(call)

            return wrapped

        return wrap

    async with Yard(tools=[add], middleware=[named("outer"), named("inner")]) as yard:
        assert (await yard.call("add", {"a": 1})).data == 2

    assert order == ["outer add", "inner add"]


async def test_a_policy_denies_by_raising_and_the_handler_does_not_run() -> None:
    async def decide(call: Call) -> None:
        if call.arguments["a"] > 10:
            raise ToolError("permission_denied", "Too much.")

    async with Yard(tools=[add], policies=[decide]) as yard:
        assert (await yard.call("add", {"a": 1})).success
        denied = await yard.call("add", {"a": 11})

    assert denied.error is not None
    assert (denied.error.code, denied.error.blame, denied.error.may_have_run) == ("permission_denied", "policy", False)


async def test_a_policy_that_fails_denies() -> None:
    async def decide(_: Call) -> None:
        raise ZeroDivisionError

    async with Yard(tools=[add], policies=[decide]) as yard:
        answer = await yard.call("add", {"a": 1})

    assert answer.error is not None
    assert answer.error.code == "permission_denied"


async def test_a_policy_may_answer_in_place_of_the_tool() -> None:
    async def decide(_: Call) -> Envelope:
        return Envelope.ok({"status": "approval_required"})

    sink = FakeSink()
    async with Yard(tools=[add], policies=[decide], sinks=[sink]) as yard:
        answer = await yard.call("add", {"a": 1})

    assert answer.success
    assert answer.data == {"status": "approval_required"}
    assert not sink.records[0].may_have_run


async def test_a_turn_is_taken_before_and_given_back_after_every_call() -> None:
    held: list[str] = []

    async def turn(call: Call) -> Any:
        held.append(call.id)
        return lambda: held.remove(call.id)

    async def fail() -> int:
        """Fail."""
        assert held
        raise ToolError("state_error", "No.")

    async with Yard(tools=[fail], limiters=[turn]) as yard:
        answer = await yard.call("fail")

    assert answer.error is not None
    assert answer.error.code == "state_error"
    assert held == []


async def test_a_queue_that_is_full_answers_overloaded() -> None:
    async def turn(_: Call) -> Any:
        raise ToolError("overloaded", "Full.", retry_after_ms=100)

    async with Yard(tools=[add], limiters=[turn]) as yard:
        answer = await yard.call("add", {"a": 1})

    assert answer.error is not None
    assert (answer.error.code, answer.error.retryable, answer.error.may_have_run) == ("overloaded", True, False)


async def test_nested_calls_have_a_parent_and_a_depth() -> None:
    @tool(operation="query")
    async def twice(a: int, call: Call) -> int:
        """Add something twice."""
        once = await call.invoke("add", {"a": a})
        return (await call.invoke("add", {"a": once.data})).data

    sink = FakeSink()
    async with Yard(tools=[add, twice], sinks=[sink]) as yard:
        answer = await yard.call("twice", {"a": 1})

    assert answer.data == 3
    assert [record.tool for record in sink.records] == ["add", "add", "twice"]
    assert {record.parent_id for record in sink.records[:2]} == {answer.meta.call_id}
    assert [record.depth for record in sink.records] == [1, 1, 0]


async def test_a_thread_can_invoke_other_tools_too() -> None:
    def twice(a: int, call: Call) -> int:
        """Add something twice."""
        return call.wait(call.invoke("add", {"a": call.wait(call.invoke("add", {"a": a})).data})).data

    async with Yard(tools=[add, twice]) as yard:
        assert (await yard.call("twice", {"a": 1})).data == 3


async def test_calls_may_be_nested_only_so_deep() -> None:
    async def dig(call: Call) -> dict[str, Any]:
        """Dig."""
        inner = await call.invoke("dig")
        return {"inner": inner.data, "code": inner.error.code if inner.error else None}

    sink = FakeSink()
    async with Yard(tools=[dig], sinks=[sink]) as yard:
        answer = await yard.call("dig")

    assert answer.success
    assert sink.codes == ["limit_exceeded", None, None, None, None, None]


async def test_a_nested_call_sees_only_what_its_caller_may() -> None:
    @tool(operation="destroy")
    async def wipe() -> None:
        """Delete everything."""
        raise AssertionError

    async def try_it(call: Call) -> str:
        """Try it."""
        answer = await call.invoke("wipe")
        assert answer.error is not None
        return answer.error.code

    gentle = Profile(name="gentle", toolsets=(Toolset(name="gentle", names=("try_it",)),))
    async with Yard(tools=[wipe, try_it]) as yard:
        answer = await yard.call("try_it", caller=Caller(profile=gentle))

    assert answer.data == "tool_not_found"


async def test_inner_calls_end_with_the_call_that_started_them() -> None:
    started = asyncio.Event()
    tasks: list[asyncio.Task[Envelope]] = []

    async def wait_for_ever() -> int:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return 1

    async def start(call: Call) -> int:
        """Start something and leave."""
        tasks.append(asyncio.create_task(call.invoke("wait_for_ever")))
        await started.wait()
        return 1

    async with Yard(tools=[wait_for_ever, start]) as yard:
        assert (await yard.call("start")).success
        orphan = await tasks[0]

    assert orphan.error is not None
    assert orphan.error.code == "cancelled"


async def test_a_call_that_is_over_starts_nothing_more() -> None:
    kept: list[Call] = []

    async def keep(call: Call) -> int:
        """Keep the call."""
        kept.append(call)
        return 1

    async with Yard(tools=[keep, add]) as yard:
        await yard.call("keep")
        answer = await kept[0].invoke("add", {"a": 1})

    assert answer.error is not None
    assert answer.error.code == "state_error"


async def test_a_cancelled_caller_cancels_the_handler_and_what_it_called_and_leaves_records() -> None:
    started = asyncio.Event()
    cleaned: list[str] = []

    async def inner() -> int:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("inner")
        return 1

    async def outer(call: Call) -> int:
        """Call."""
        try:
            return (await call.invoke("inner")).data
        finally:
            cleaned.append("outer")

    sink = FakeSink()
    async with Yard(tools=[inner, outer], sinks=[sink]) as yard:
        task = asyncio.create_task(yard.call("outer"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert yard.calls_in_flight == 0

    assert cleaned == ["inner", "outer"]
    assert sink.codes == ["cancelled", "cancelled"]
    assert all(record.may_have_run for record in sink.records)


async def test_a_call_can_be_cancelled_by_its_id_and_is_answered() -> None:
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait(call: Call) -> int:
        """Wait."""
        started.set_result(call.id)
        await asyncio.Event().wait()
        return 1

    async with Yard(tools=[wait]) as yard:
        task = asyncio.create_task(yard.call("wait"))
        assert yard.dispatcher.cancel(await started)
        answer = await task
        assert not yard.dispatcher.cancel(answer.meta.call_id)

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("cancelled", True)


async def test_closing_the_yard_answers_what_is_still_running() -> None:
    started = asyncio.Event()

    async def wait() -> int:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return 1

    async with Yard(tools=[wait]) as yard:
        task = asyncio.create_task(yard.call("wait"))
        await started.wait()

    answer = await task
    assert answer.error is not None
    assert answer.error.code == "cancelled"


async def test_a_slow_call_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with Yard(tools=[add], limits=Limits(slow=0)) as yard:
        await yard.call("add", {"a": 1})

    assert "slow tool=add" in caplog.text


async def test_a_renamed_tool_works_under_its_old_name_with_a_warning_and_unlisted() -> None:
    @tool(operation="query", aliases=("sum_up",))
    async def total(a: int) -> int:
        """Total."""
        return a

    async with Yard(tools=[total]) as yard:
        answer = await yard.call("sum_up", {"a": 1})
        assert [spec.name for spec in yard.list()] == ["total"]

    assert answer.data == 1
    assert len(answer.meta.warnings) == 1


async def test_a_deprecated_tool_says_so_in_every_answer() -> None:
    @tool(operation="query", deprecated="Use 'add'.")
    async def plus(a: int) -> int:
        """Add."""
        return a

    async with Yard(tools=[plus]) as yard:
        assert "Use 'add'." in (await yard.call("plus", {"a": 1})).meta.warnings[0]


async def test_a_timeout_is_retryable_only_where_running_twice_does_no_harm() -> None:
    @tool(operation="query", timeout=0.01)
    async def look() -> int:
        """Look for ever."""
        await asyncio.Event().wait()
        return 1

    @tool(operation="command", timeout=0.01, timeout_hint="Ask for one page at a time.")
    async def act() -> int:
        """Act for ever."""
        await asyncio.Event().wait()
        return 1

    async with Yard(tools=[look, act]) as yard:
        looked, acted = await yard.call("look"), await yard.call("act")

    assert looked.error is not None
    assert acted.error is not None
    assert (looked.error.code, looked.error.retryable) == ("timeout", True)
    assert (acted.error.code, acted.error.retryable, acted.error.may_have_run) == ("timeout", False, True)
    assert acted.error.hint == "Ask for one page at a time."
    assert acted.error.details["timeout_ms"] == 10


async def test_a_session_is_started_used_and_ended_through_calls() -> None:
    async def open_book(call: Call) -> str:
        """Open."""
        session = call.start_session(kind="book")
        session.state["page"] = 1
        return session.id

    @tool(operation="query")
    async def page(session: Session) -> int:
        """Tell the page."""
        return session.state["page"]

    async def close_book(session: Session, call: Call) -> bool:
        """Close."""
        return await call.end_session()

    async with Yard(tools=[open_book, page, close_book]) as yard:
        none = await yard.call("page")
        opened = await yard.call("open_book")
        only = await yard.call("page")
        named = await yard.call("page", session=opened.data)
        stranger = await yard.call("page", session=opened.data, caller=Caller(identity="eve"))
        other_scope = await yard.call("page", caller=Caller(scope="another conversation"))
        closed = await yard.call("close_book")
        gone = await yard.call("page", session=opened.data)

    assert opened.meta.session_id == opened.data
    assert (only.data, only.meta.session_id) == (1, opened.data)
    assert named.data == 1
    assert closed.data is True
    for answer in (none, stranger, other_scope, gone):
        assert answer.error is not None
        assert answer.error.code == "not_running"
        assert answer.error.details["available_sessions"] == []


async def test_several_sessions_need_an_id_to_choose() -> None:
    async def open_book(call: Call) -> str:
        """Open."""
        return call.start_session().id

    @tool(operation="query")
    async def page(session: Session | None) -> str | None:
        """Tell the page."""
        return session.id if session else None

    async with Yard(tools=[open_book, page]) as yard:
        assert (await yard.call("page")).data is None
        ids = [(await yard.call("open_book")).data for _ in range(2)]
        answer = await yard.call("page")

    assert answer.error is not None
    assert answer.error.code == "invalid_input"
    assert answer.error.details["available_sessions"] == ids


async def test_a_session_keeps_its_last_error_and_failures_name_it() -> None:
    async def open_book(call: Call) -> str:
        """Open."""
        call.start_session()
        return call.start_session().id

    @tool(operation="query")
    async def page(session: Session) -> int:
        """Tell the page."""
        raise ToolError("state_error", "Torn.")

    async with Yard(tools=[open_book, page]) as yard:
        opened = await yard.call("open_book")
        answer = await yard.call("page", session=opened.data)
        sessions = yard.sessions.of(Caller().owner)

    assert answer.meta.session_id == opened.data
    assert [(session.busy, session.last_code) for session in sessions] == [(0, None), (0, "state_error")]


async def test_progress_and_log_lines_reach_the_channel_from_the_loop_and_from_a_thread() -> None:
    async def walk(call: Call) -> int:
        """Walk."""
        await call.progress(1, 2, "half")
        await call.progress(2, 2, "there")
        await call.log("info", "arrived", steps=2)
        return 1

    def walk_in_a_thread(call: Call) -> int:
        """Walk."""
        call.progress(1, 1)
        call.log("warning", "threaded")
        return 1

    async with connect(Yard(tools=[walk, walk_in_a_thread])) as client:
        await client.call("walk")
        await client.call("walk_in_a_thread")

    assert [note.done for note in client.notes] == [1, 2, 1]
    assert client.lines == [("info", "arrived", {"steps": 2}), ("warning", "threaded", {})]


async def test_a_log_line_that_no_channel_takes_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def talk(call: Call) -> int:
        """Talk."""
        call.log("warning", "odd", times=2)
        call.progress(1)
        return 1

    async with Yard(tools=[talk]) as yard:
        await yard.call("talk")

    assert "odd times=2" in caplog.text


async def test_a_failing_channel_does_not_fail_the_call() -> None:
    from callyard import Channel  # noqa: PLC0415 - only here

    def broken(_: object) -> None:
        raise RuntimeError

    async def walk(call: Call) -> int:
        """Walk."""
        call.progress(1)
        return 1

    async with Yard(tools=[walk]) as yard:
        assert (await yard.call("walk", channel=Channel(progress=broken))).success


async def test_a_caller_that_cannot_be_asked_gets_not_supported_and_one_that_can_answers() -> None:
    async def ask(call: Call) -> Mapping[str, Any]:
        """Ask."""
        return await call.ask({"type": "object", "properties": {}}, "How old?")

    async with Yard(tools=[ask]) as yard:
        mute = await yard.call("ask")
        client = Client(yard, answers=[{"age": 7}])
        asked = await client.call("ask")

    assert mute.error is not None
    assert mute.error.code == "not_supported"
    assert asked.data == {"age": 7}
    assert client.questions == ["How old?"]


async def test_an_undeclared_reason_is_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    @tool(operation="query", reasons=("known",))
    async def fail(reason: str) -> int:
        """Fail."""
        raise ToolError("state_error", "No.", reason=reason)

    async with Yard(tools=[fail]) as yard:
        with caplog.at_level(logging.WARNING):
            known = await yard.call("fail", {"reason": "known"})
            assert "undeclared_reason" not in caplog.text
            unknown = await yard.call("fail", {"reason": "unknown"})

    assert known.error is not None
    assert unknown.error is not None
    assert known.error.details["reason"] == "known"
    assert unknown.error.details["reason"] == "unknown"
    assert "undeclared_reason" in caplog.text


async def test_partial_results_of_a_failure_are_kept_if_they_can_be() -> None:
    async def half(good: bool) -> int:  # noqa: FBT001 - an argument
        """Do half."""
        raise ToolError("state_error", "Half.", data=[1, 2] if good else object())

    async with Yard(tools=[half]) as yard:
        assert (await yard.call("half", {"good": True})).data == [1, 2]
        assert (await yard.call("half", {"good": False})).data is None


async def test_an_eval_tool_is_guarded_and_gated() -> None:
    @tool(operation="eval")
    async def evaluate(code: str) -> str:
        """Evaluate."""
        return code

    async with Yard(tools=[evaluate]) as yard:
        gated = await yard.call("evaluate", {"code": "1"})
    async with Yard(tools=[evaluate], allow_eval=True) as yard:
        good = await yard.call("evaluate", {"code": "1 + 1"})
        bad = await yard.call("evaluate", {"code": "import os"})

    assert gated.error is not None
    assert bad.error is not None
    assert (gated.error.code, gated.error.details["status"]) == ("tool_not_found", "gated")
    assert "--allow-eval" in gated.error.message
    assert good.data == "1 + 1"
    assert bad.error.code == "eval_blocked"
    assert "import os" not in repr(bad.error.details.get("code_hash"))


async def test_a_turn_that_cannot_be_given_back_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def turn(_: Call) -> Any:
        def broken() -> None:
            raise ZeroDivisionError

        return broken

    @tool(serial=True)
    async def work() -> int:
        """Work."""
        return 1

    async with Yard(tools=[work], limiters=[turn]) as yard:
        answers = [await yard.call("work") for _ in range(2)]
        assert len(yard.dispatcher.admission.serial_locks) == 0

    assert [answer.data for answer in answers] == [1, 1]
    assert "release_failed" in caplog.text


async def test_a_call_that_is_over_starts_no_session() -> None:
    kept: list[Call] = []

    async def keep(call: Call) -> int:
        """Keep the call."""
        kept.append(call)
        return 1

    async with Yard(tools=[keep]) as yard:
        await yard.call("keep")
        with pytest.raises(ToolError, match="over"):
            kept[0].start_session()
        assert len(yard.sessions) == 0


async def test_a_yard_that_closes_takes_no_new_calls_and_the_blame_for_those_it_ends() -> None:
    started = asyncio.Event()
    late: list[Envelope] = []

    async def wait() -> int:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return 1

    async def begin(call: Call) -> str:
        """Begin."""

        async def call_once_more() -> None:
            late.append(await yard.call("wait"))

        session = call.start_session()
        session.on_end(call_once_more)
        return session.id

    async with Yard(tools=[wait, begin]) as yard:
        await yard.call("begin")
        task = asyncio.create_task(yard.call("wait"))
        await started.wait()

    ended = (await task).error
    assert ended is not None
    assert (ended.code, ended.blame) == ("cancelled", "yard")
    assert late[0].error is not None
    assert (late[0].error.code, late[0].error.blame) == ("overloaded", "yard")


async def test_blame_follows_what_failed() -> None:
    from pydantic import BaseModel, field_validator  # noqa: PLC0415 - only here

    from callyard.state.memory import MemoryStore  # noqa: PLC0415 - only here

    class Broken(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def look(cls, value: int) -> int:
            raise KeyError(value)

    class FullStore(MemoryStore):
        async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
            raise OSError

    async def take(thing: Broken) -> int:
        """Take."""
        raise AssertionError

    async def give() -> str:
        """Give much."""
        return "x" * 60_000

    async with Yard(tools=[take, give], store=FullStore()) as yard:
        taken, given = (await yard.call("take", {"thing": {"x": 1}})).error, (await yard.call("give")).error

    assert taken is not None
    assert given is not None
    assert (taken.code, taken.blame, taken.may_have_run) == ("internal_error", "tool", False)
    assert (given.code, given.blame, given.may_have_run) == ("internal_error", "yard", True)


async def test_a_sink_may_raise_anything() -> None:
    def leave(_: object) -> None:
        raise SystemExit

    async with Yard(tools=[add], sinks=[leave]) as yard:
        assert (await yard.call("add", {"a": 1})).data == 2


async def test_a_call_from_another_loop_is_not_supported() -> None:
    async with Yard(tools=[add]) as yard:
        answer = await asyncio.to_thread(lambda: asyncio.run(yard.call("add", {"a": 1})))

    assert answer.error is not None
    assert answer.error.code == "not_supported"


async def test_the_repr_of_a_call_does_not_show_its_arguments() -> None:
    shown: list[str] = []

    async def look(secret: str, call: Call) -> int:
        """Look."""
        shown.append(f"{call!r} {call.caller!r} {call.channel!r}")
        return 1

    async with Yard(tools=[look]) as yard:
        await yard.call("look", {"secret": "hunter2"}, caller=Caller(claims={"token": "hunter2"}))

    assert "hunter2" not in shown[0]
    assert "look" in shown[0]


async def test_a_caller_without_a_profile_of_its_own_has_the_yards() -> None:
    nothing = Profile(name="nothing", toolsets=(Toolset(name="none", names=("no_such_tool",)),))
    async with Yard(tools=[add], profile=nothing) as yard:
        answer = await yard.call("add", {"a": 1}, caller=Caller(identity="ada"))

    assert answer.error is not None
    assert answer.error.code == "tool_not_found"
    with pytest.raises(TypeError, match="profile"):
        Caller(profile="nothing")  # pyright: ignore[reportArgumentType] - that is the point


async def test_a_rule_against_a_tool_holds_under_its_new_name() -> None:
    @tool(operation="destroy", aliases=("wipe",))
    async def erase() -> int:
        """Erase."""
        raise AssertionError

    gentle = Profile(name="gentle", toolsets=(Toolset(name="gentle", deny=("wipe",)),))
    async with Yard(tools=[erase], profile=gentle) as yard:
        answers = [await yard.call("wipe"), await yard.call("erase")]

    assert {answer.error.code for answer in answers if answer.error} == {"tool_not_found"}


async def test_references_are_read_once_and_may_not_fill_in_more_than_one_result_may_have() -> None:
    async def rows() -> list[int]:
        """List many numbers."""
        return list(range(20_000))

    async def count(lists: list[list[int]]) -> int:
        """Count."""
        return sum(len(one) for one in lists)

    async with Yard(tools=[rows, count], limits=Limits(stored_bytes=500_000)) as yard:
        handle = {"$ref": (await yard.call("rows")).data["handle"]}
        few, many = (
            await yard.call("count", {"lists": [handle] * 3}),
            await yard.call("count", {"lists": [handle] * 10}),
        )

    assert few.data == 60_000
    assert many.error is not None
    assert (many.error.code, many.error.may_have_run) == ("too_large", False)


async def test_small_parts_of_many_large_results_are_not_all_read() -> None:
    async def rows() -> list[int]:
        """List many numbers."""
        return list(range(20_000))

    async def add(numbers: list[int]) -> int:
        """Add."""
        return sum(numbers)

    async with Yard(tools=[rows, add], limits=Limits(stored_bytes=150_000)) as yard:
        handles = [(await yard.call("rows")).data["handle"] for _ in range(3)]
        parts = [{"$ref": handle, "path": "/1"} for handle in handles]
        two, three = await yard.call("add", {"numbers": parts[:2]}), await yard.call("add", {"numbers": parts})

    assert two.data == 2
    assert three.error is not None
    assert (three.error.code, three.error.may_have_run) == ("too_large", False)


async def test_an_answer_has_at_most_ten_thousand_content_blocks() -> None:
    async def blocks(count: int) -> list[Text]:
        """Answer with blocks."""
        return [Text("")] * count

    async with Yard(tools=[blocks]) as yard:
        most, more = await yard.call("blocks", {"count": 10_000}), await yard.call("blocks", {"count": 10_001})

    assert most.success
    assert more.error is not None
    assert (more.error.code, more.error.may_have_run, more.error.details["limit"]) == ("too_large", True, 10_000)


async def test_a_reason_that_differs_from_its_declaration_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @tool(operation="query", reasons={"sold_out": ("item",)})
    async def buy() -> int:
        """Buy."""
        raise ToolError("state_error", "None left.", reason="sold_out")

    async with Yard(tools=[buy]) as yard:
        await yard.call("buy")

    assert "reason_differs_from_its_declaration" in caplog.text


async def test_a_yard_does_not_wait_for_ever_for_a_call_that_does_not_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.dispatch.execution.CLEANUP_S", 0.01)
    started, gate = asyncio.Event(), asyncio.Event()

    async def deaf() -> int:
        """Swallow the interruption."""
        started.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return 1

    async with Yard(tools=[deaf]) as yard:
        task = asyncio.create_task(yard.call("deaf"))
        await started.wait()
        await yard.dispatcher.close()
    gate.set()

    assert caplog.text.count("calls_left_behind count=1") == 1  # closed again, the yard did not wait again
    ended = (await task).error
    assert ended is not None
    assert ended.code == "cancelled"


async def test_a_caller_that_goes_away_while_its_result_is_stored_leaves_one_record() -> None:
    from callyard.state.memory import MemoryStore  # noqa: PLC0415 - only here

    storing = asyncio.Event()

    class SlowStore(MemoryStore):
        async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
            storing.set()
            await asyncio.Event().wait()

    async def give() -> str:
        """Give much."""
        return "x" * 60_000

    sink = FakeSink()
    async with Yard(tools=[give], store=SlowStore(), sinks=[sink]) as yard:
        task = asyncio.create_task(yard.call("give"))
        await storing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert sink.codes == ["cancelled"]
    assert sink.records[0].may_have_run
