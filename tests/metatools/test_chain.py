import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from table_tests import every_row
from ticket_tools import Bench, ask, failure, made

from callyard import Call, Confirmation, Envelope, Tool, Yard, tool
from callyard.model.envelope import encode
from callyard.model.schema import SchemaValidator
from callyard.testing import FakeProvider, FakeSink, connect
from callyard.transports.memory import Memory

ADD = {"tool_id": "add", "args": {"a": 1}}


async def test_a_step_takes_what_earlier_steps_answered() -> None:
    steps = [
        {"id": "ticket", "tool_id": "open_ticket", "args": {"title": "x", "labels": ["a", "b"]}},
        {"tool_id": "add", "args": {"a": {"$from": "ticket", "path": "/id"}, "b": 3}},
        {"tool_id": "open_ticket", "args": {"title": "y", "labels": [{"$from": 0, "path": "/labels/1"}, "c"]}},
        {"tool_id": "echo", "use_previous": True},
    ]
    async with Yard(tools=[Bench()]) as yard:
        data = await ask(yard, "run_chain", steps=steps)

    assert [result["data"] for result in data["results"][1:3]] == [10, {"id": 7, "title": "y", "labels": ["b", "c"]}]
    assert data["final"] == {"previous": {"id": 7, "title": "y", "labels": ["b", "c"]}}
    assert data["results"][0]["id"] == "ticket"


async def test_a_previous_result_replaces_an_argument_even_if_it_is_null() -> None:
    @tool
    async def nothing() -> None:
        """Do nothing."""

    steps = [{"tool_id": "nothing"}, {"tool_id": "echo", "args": {"previous": "mine"}, "use_previous": True}]
    async with Yard(tools=[Bench(), nothing]) as yard:
        assert (await ask(yard, "run_chain", steps=steps, final_only=True)) == {"final": {"previous": None}}


async def test_arguments_are_checked_once_unless_they_take_a_result() -> None:
    checked: list[bytes] = []
    plain = made("note", properties={"text": {}})

    def check(text: bytes) -> dict[str, Any]:
        checked.append(text)
        return plain.check(text)

    noting = Tool(spec=plain.spec, handler=plain.handler, check=check)
    steps = [
        {"tool_id": "note", "args": {"text": 1}},
        {"tool_id": "note", "args": {"text": {"$from": 0, "path": "/text"}}},
    ]
    async with Yard(tools=[noting]) as yard:
        assert (await ask(yard, "run_chain", steps=steps))["final"] == {"text": 1}

    assert checked == [b'{"text":1}', b'{"text":1}']


async def test_a_tool_that_is_replaced_while_a_chain_runs_checks_for_itself() -> None:
    provider = FakeProvider("other", [made("note", properties={"text": {}})])

    @tool
    async def replace() -> str:
        """Replace the other tool by one that takes less."""
        provider.change([made("note", properties={"number": {}})])
        return "replaced"

    async with Yard(tools=[replace], providers=[provider]) as yard:
        answer = await yard.call(
            "run_chain", {"steps": [{"tool_id": "replace"}, {"tool_id": "note", "args": {"text": 1}}]}
        )

    assert failure(answer).details["cause_code"] == "invalid_input"


async def test_a_policy_sees_the_steps_as_they_were_given() -> None:
    seen: list[Any] = []

    async def decide(call: Call) -> Envelope | None:
        seen.append(json.loads(encode(call.arguments["steps"])) if call.name == "run_chain" else call.arguments)
        return None

    steps = [{"id": "x", **ADD}, {"tool_id": "echo", "use_previous": True, "timeout_s": 5}]
    async with Yard(tools=[Bench()], policies=[decide]) as yard:
        await ask(yard, "run_chain", steps=steps)

    assert seen == [steps, {"a": 1, "b": 1}, {"previous": 2}]


@every_row(
    "given",
    [
        {"steps": []},
        {"steps": [ADD] * 33},
        {"steps": [{**ADD, "id": True}]},
        {"steps": [{**ADD, "timeout_s": 0}]},
        {"steps": [{**ADD, "extra": 1}]},
        {"steps": [ADD], "timeout_s": 3601},
        {"steps": [ADD], "dry_run": "perhaps"},
        {"steps": "none"},
        {},
    ],
)
async def test_steps_that_the_schema_forbids_are_refused_with_its_issues(given: dict[str, Any]) -> None:
    bench = Bench()
    async with Yard(tools=[bench]) as yard:
        error = failure(await yard.call("run_chain", given))
        schema = yard.registry.find("run_chain", yard.profile).spec.input_schema

    assert (error.code, bench.ran) == ("invalid_input", [])
    assert [issue["code"] for issue in error.details["issues"]] == [
        issue.code for issue in SchemaValidator(schema).issues(given)
    ]


async def test_common_mistakes_about_steps_are_corrected() -> None:
    async with Yard(tools=[Bench()]) as yard:
        answer = await yard.call("run_chain", {"steps": json.dumps([ADD]), "final_only": "true"})

    assert (answer.data, set(answer.meta.coerced)) == ({"final": 2}, {"steps", "final_only"})


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_chain_that_fails_has_run_what_came_before_once_and_says_what_came_of_it(wrapped: bool) -> None:  # noqa: FBT001 - a case
    bench, sink = Bench(), FakeSink()
    arguments: dict[str, Any] = {
        "steps": [ADD, {"tool_id": "open_ticket", "args": {"title": "x"}}, {"id": "c", "tool_id": "fail"}, ADD]
    }
    async with Yard(tools=[bench], sinks=[sink]) as yard:
        name, given = ("run_tool", {"tool_id": "run_chain", "args": arguments}) if wrapped else ("run_chain", arguments)
        answer = await yard.call(name, given)

    error = failure(answer)
    assert bench.ran == ["add", "open_ticket", "fail"]
    assert (error.code, error.details["step_index"], error.details["step_id"]) == ("chain_step_failed", 2, "c")
    assert (error.details["cause_code"], error.details["cause"]["details"]["reason"]) == ("state_error", "jammed")
    assert (error.may_have_run, error.retryable) == (True, False)
    assert error.next_actions
    assert [result["data"] for result in answer.data["results"]] == [2, answer.data["final"]]
    chain = next(record for record in sink.records if record.tool == "run_chain")
    steps = [record for record in sink.records if record.tool in {"add", "open_ticket", "fail"}]
    assert [record.parent_id for record in steps] == [chain.call_id] * 3


@every_row(
    ("steps", "field", "code"),
    [
        ([ADD, {"tool_id": "nothing_of_ours"}], "steps.1.tool_id", "tool_not_found"),
        ([ADD, {"tool_id": "add", "args": {"a": "x"}}], "steps.1.args.a", "type"),
        ([ADD, {"tool_id": "add", "args": {"a": {"$from": 0}, "c": 1}}], "steps.1.args.c", "extra_forbidden"),
        ([ADD, {"tool_id": "add", "args": {"b": {"$from": 0}}}], "steps.1.args.a", "missing"),
        ([{"tool_id": "add", "args": {"a": {"$from": 1}}}, ADD], "steps.0.args.a", "later_step"),
        ([{"tool_id": "add", "args": {"a": {"$from": 0}}}], "steps.0.args.a", "later_step"),
        ([{"tool_id": "add", "args": {"a": {"$from": "x"}}}, {"id": "x", **ADD}], "steps.0.args.a", "later_step"),
        ([{"id": "x", "tool_id": "add", "args": {"a": {"$from": "x"}}}], "steps.0.args.a", "later_step"),
        ([ADD, {"tool_id": "add", "args": {"a": {"$from": "y"}}}], "steps.1.args.a", "unknown_step"),
        ([ADD, {"tool_id": "add", "args": {"a": {"$from": 5}}}], "steps.1.args.a", "unknown_step"),
        ([ADD, {"tool_id": "add", "args": {"a": {"$from": -1}}}], "steps.1.args.a", "unknown_step"),
        ([ADD, {"tool_id": "add", "args": {"a": {"$from": 0, "path": "x"}}}], "steps.1.args.a", "unknown_path"),
        (
            [{"parallel": "p", **ADD}, {"parallel": "p", "tool_id": "add", "args": {"a": {"$from": 0}}}],
            "steps.1.args.a",
            "same_group",
        ),
        ([{"id": "x", **ADD}, {"id": "x", **ADD}], "steps.1.id", "duplicate_id"),
        ([{"tool_id": "echo", "use_previous": True}], "steps.0.use_previous", "no_previous"),
        ([ADD, {"tool_id": "add", "args": {"a": 1}, "use_previous": True}], "steps.1.args.previous", "extra_forbidden"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_every_step_is_checked_before_the_first_one_runs(
    steps: list[dict[str, Any]], field: str, code: str
) -> None:
    bench = Bench()
    async with Yard(tools=[bench]) as yard:
        error = failure(await yard.call("run_chain", {"steps": steps}))

    assert (error.code, error.may_have_run, bench.ran) == ("invalid_input", False, [])
    issue = error.details["issues"][0]
    assert issue["field"] == field
    assert issue["code"].startswith(code) or code == "type"
    assert error.next_actions


@every_row(
    "steps",
    [[], [ADD] * 33, "all of them", [{"args": {}}], [{**ADD, "retries": 3}]],
    ids=["none", "many", "text", "no tool", "unknown"],
)
async def test_steps_that_are_no_chain_are_refused(steps: Any) -> None:
    async with Yard(tools=[Bench()]) as yard:
        assert failure(await yard.call("run_chain", {"steps": steps})).code == "invalid_input"


async def test_a_path_that_a_result_does_not_have_stops_the_chain_before_the_step_runs() -> None:
    bench = Bench()
    steps = [
        {"tool_id": "open_ticket", "args": {"title": "x"}},
        {"tool_id": "add", "args": {"a": {"$from": 0, "path": "/nope"}}},
    ]
    async with Yard(tools=[bench]) as yard:
        error = failure(await yard.call("run_chain", {"steps": steps}))

    assert (error.code, error.details["cause_code"], bench.ran) == (
        "chain_step_failed",
        "invalid_input",
        ["open_ticket"],
    )
    assert error.details["cause"]["details"]["issues"][0]["code"] == "unknown_path"


async def test_steps_of_a_group_run_side_by_side() -> None:
    meeting = asyncio.Barrier(3)

    @tool
    async def meet(name: str) -> str:
        """Wait for the others."""
        await meeting.wait()
        return name

    steps: list[dict[str, Any]] = [{"tool_id": "meet", "args": {"name": name}, "parallel": "g"} for name in "abc"]
    steps.append({"tool_id": "echo", "use_previous": True})
    async with Yard(tools=[Bench(), meet]) as yard:
        data = await ask(yard, "run_chain", steps=steps)

    assert [result["data"] for result in data["results"]] == ["a", "b", "c", {"previous": "c"}]


async def test_a_group_is_waited_for_as_a_whole_before_a_failure_stops_the_chain() -> None:
    bench = Bench()
    steps = [{"tool_id": "fail", "parallel": "g"}, {**ADD, "parallel": "g"}, ADD]
    async with Yard(tools=[bench]) as yard:
        answer = await yard.call("run_chain", {"steps": steps})

    assert failure(answer).details["step_index"] == 0
    assert [result["step"] for result in answer.data["results"]] == [1]
    assert bench.ran == ["fail", "add"]


@pytest.mark.parametrize("where", ["step", "chain"])
async def test_a_step_ends_when_its_time_or_that_of_the_chain_is_over(where: str) -> None:
    @tool
    async def hang() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    bench = Bench()
    step = {"tool_id": "hang", **({"timeout_s": 0.02} if where == "step" else {})}
    more = {"timeout_s": 0.02} if where == "chain" else {}
    async with Yard(tools=[bench, hang]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [step, ADD], **more}))

    assert (error.details["step_index"], error.details["cause_code"], bench.ran) == (0, "timeout", [])


async def test_a_step_does_not_begin_once_the_time_of_the_chain_is_over() -> None:
    bench = Bench()
    async with Yard(tools=[bench]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [ADD], "timeout_s": 1e-9}))

    assert (error.details["cause_code"], error.blame, error.may_have_run, bench.ran) == ("timeout", "caller", False, [])


@every_row(("before", "changed"), [(ADD, False), ({"tool_id": "open_ticket", "args": {"title": "x"}}, True)])
@every_row("group", [{}, {"parallel": "g"}])
async def test_a_chain_that_fails_says_whether_the_steps_before_may_have_changed_anything(
    before: dict[str, Any],
    changed: bool,  # noqa: FBT001 - a case
    group: dict[str, Any],
) -> None:
    never = {"tool_id": "add", "args": {"a": {"$from": 0, "path": "/nowhere"}}}
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [{**before, **group}, never]}))

    assert (error.details["cause_code"], error.may_have_run) == ("invalid_input", changed)


async def test_a_dry_run_shows_the_plan_and_runs_nothing() -> None:
    @tool(confirmation=Confirmation("Sure?", {"type": "object", "properties": {}}))
    async def risky() -> str:
        """Do something risky."""
        raise AssertionError

    bench = Bench()
    steps = [
        {"id": "x", **ADD, "parallel": "g"},
        {"tool_id": "wipe", "parallel": "g"},
        {"tool_id": "add", "args": {"a": {"$from": "x"}}},
        {"tool_id": "risky"},
    ]
    async with Yard(tools=[bench, risky]) as yard:
        plan = (await ask(yard, "run_chain", steps=steps, dry_run=True))["plan"]

    assert [(step["tool_id"], step["stage"], step["needs_approval"]) for step in plan] == [
        ("add", 0, False),
        ("wipe", 0, False),
        ("add", 1, False),
        ("risky", 2, True),
    ]
    assert (plan[2]["waits_for"], plan[1]["operation"], bench.ran) == ([0], "destroy", [])


async def test_a_dry_run_knows_that_a_queue_asks_nobody() -> None:
    async def turn(_: Call) -> Callable[[], None]:
        return lambda: None

    async with Yard(tools=[Bench()], limiters=[turn]) as yard:
        plan = (await ask(yard, "run_chain", steps=[ADD], dry_run=True))["plan"]

    assert plan[0]["needs_approval"] is False


async def test_a_dry_run_does_not_claim_to_know_what_a_policy_will_say() -> None:
    async def decide(_: Call) -> Envelope | None:
        return None

    async with Yard(tools=[Bench()], policies=[decide]) as yard:
        plan = (await ask(yard, "run_chain", steps=[ADD], dry_run=True))["plan"]

    assert plan[0]["needs_approval"] is None


async def test_a_chain_stops_where_a_step_waits_for_a_person() -> None:
    async def decide(call: Call) -> Envelope | None:
        return Envelope.ok({"status": "approval_required", "approval_id": "a_1"}) if call.spec.name == "wipe" else None

    bench = Bench()
    async with Yard(tools=[bench], policies=[decide]) as yard:
        data = await ask(yard, "run_chain", steps=[ADD, {"tool_id": "wipe"}, ADD])

    assert (data["status"], data["step_index"], data["pending"]["approval_id"]) == ("approval_required", 1, "a_1")
    assert (data["final"], bench.ran) == (2, ["add"])


@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_long_chain_tells_step_by_step_and_a_quick_one_nothing(wrapped: bool) -> None:  # noqa: FBT001 - a case
    go = asyncio.Event()

    @tool
    async def wait(call: Call) -> str:
        """Wait a little."""
        asyncio.get_running_loop().call_later(0.12, go.set)
        await go.wait()
        return "done"

    async with connect(Yard(tools=[Bench(), wait])) as client:
        for steps in ([ADD, ADD], [ADD, {"tool_id": "wait"}, ADD]):
            assert client.notes == []
            given: dict[str, Any] = {"steps": steps}
            await (
                client.call("run_tool", tool_id="run_chain", args=given)
                if wrapped
                else client.call("run_chain", **given)
            )

    assert [(note.done, note.total) for note in client.notes] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_the_last_progress_of_a_chain_of_many_steps_is_sent(era: str) -> None:
    @tool
    async def wait(call: Call) -> str:
        """Wait a little."""
        go = asyncio.Event()
        asyncio.get_running_loop().call_later(0.12, go.set)
        await go.wait()
        return "done"

    steps = [{"tool_id": "wait"}, *[ADD] * 31]
    hello = {"protocolVersion": era, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": era,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params: dict[str, Any] = {
        "name": "run_chain",
        "arguments": {"steps": steps},
        "_meta": {"progressToken": "p", **(meta if era > "2026" else {})},
    }
    received: list[Any] = []
    async with Yard(tools=[Bench(), wait]) as yard, Memory().open(yard) as memory:
        if era < "2026":
            memory.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).encode())
        memory.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode())
        while not received or received[-1].get("id") != 1:
            received.append(json.loads(await memory.received.get()))

    notes = [one["params"] for one in received if one.get("method") == "notifications/progress"]
    assert (notes[0]["progress"], notes[-1]["progress"], notes[-1]["total"]) == (0, 32, 32)


async def test_corrections_of_a_step_are_noted_with_it() -> None:
    steps = [{"tool_id": "add", "args": {"args": {"a": 1}}}, {"tool_id": "add", "args": {"a": "2"}}]
    async with Yard(tools=[Bench()]) as yard:
        data = await ask(yard, "run_chain", steps=steps)

    assert [result["coerced"] for result in data["results"]] == [["args"], ["a"]]


async def test_chains_inside_chains_come_to_an_end() -> None:
    step: dict[str, Any] = ADD
    for _ in range(6):
        step = {"tool_id": "run_chain", "args": {"steps": [step]}}
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [step]}))

    assert error.code in {"chain_step_failed", "limit_exceeded"}


async def test_arguments_nested_deeper_than_anything_are_left_alone() -> None:
    deep: Any = {"$from": 0}
    for _ in range(140):
        deep = [deep]
    take = made("take", properties={"x": {}})
    async with Yard(tools=[Bench(), take]) as yard:
        data = await ask(yard, "run_chain", steps=[ADD, {"tool_id": "take", "args": {"x": deep}}], final_only=True)

    assert data["final"] == {"x": deep}
