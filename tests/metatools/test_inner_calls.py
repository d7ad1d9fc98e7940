"""Calls inside metatools: what they refer to, what can be told of them beforehand, and what a policy says of them."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from table_tests import every_row
from ticket_tools import Bench, ask, failure, made

from callyard import Call, Caller, Confirmation, Envelope, Limits, Profile, Text, ToolError, Toolset, Yard, tool
from callyard.testing import FakeSink

ADD = {"tool_id": "add", "args": {"a": 1}}
FILTER = {"$from": 0}


@tool(operation="query")
async def store() -> dict[str, Any]:
    """Answer something large that holds what looks like references."""
    return {"filter": FILTER, "handle": {"$ref": "r_1"}, "word": "there", "text": "x" * 60_000}


@tool(operation="query")
async def give() -> Any:
    """Answer what looks like a handle."""
    return {"$ref": "r_1", "path": "/filter"}


class Taking:
    """A tool that remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @tool(operation="query")
    async def take(self, x: Any) -> str:
        """Take anything."""
        self.seen.append(x)
        return "take"


def plainly(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "take", args


def by_run_tool(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_tool", {"tool_id": "take", "args": args}


def by_chain(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_chain", {"steps": [{"tool_id": "take", "args": args}]}


def as_text(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_tool", {"tool_id": "take", "args": json.dumps(args)}


def one_object_too_deep(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_tool", {"tool_id": "take", "args": {"args": args}}


def beside_the_name(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_tool", {"tool_id": "take", **args}


def run_twice(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_tool", {"tool_id": "run_tool", "args": {"tool_id": "take", "args": args}}


def steps_as_text(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_chain", {"steps": json.dumps([{"tool_id": "take", "args": args}])}


def step_as_text(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_chain", {"steps": [{"tool_id": "take", "args": json.dumps(args)}]}


def run_in_a_chain(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_chain", {"steps": [{"tool_id": "run_tool", "args": {"tool_id": "take", "args": args}}]}


def chain_in_a_chain(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "run_chain", {"steps": [{"tool_id": "run_chain", "args": by_chain(args)[1]}]}


def run_by_a_name_that_comes_later(args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    first = {"tool_id": "take", "args": {"x": "first"}}
    return "run_chain", {"steps": [first, {"tool_id": "run_tool", "args": {"tool_id": {"$from": 0}, "args": args}}]}


Way = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]
STRAIGHT = [plainly, by_run_tool, by_chain]
ODD = [
    as_text,
    one_object_too_deep,
    beside_the_name,
    run_twice,
    steps_as_text,
    step_as_text,
    run_in_a_chain,
    chain_in_a_chain,
]


@every_row("way", [*STRAIGHT, *ODD, run_by_a_name_that_comes_later])
async def test_a_handle_is_filled_in_wherever_the_arguments_of_a_tool_are(way: Way) -> None:
    taking = Taking()
    async with Yard(tools=[store, taking]) as yard:
        await ask(yard, "store")
        name, given = way({"x": {"$ref": "r_1", "path": "/word"}})
        assert (await yard.call(name, given)).error is None

    assert taking.seen[-1] == "there"


@every_row("way", STRAIGHT)
@every_row(("path", "value"), [("/filter", FILTER), ("/handle", {"$ref": "r_1"})])
async def test_the_value_of_a_handle_is_always_data(way: Way, path: str, value: object) -> None:
    taking = Taking()
    async with Yard(tools=[store, taking]) as yard:
        await ask(yard, "store")
        name, given = way({"x": {"$ref": "r_1", "path": path}})
        assert (await yard.call(name, given)).error is None

    assert taking.seen == [value]


@pytest.mark.parametrize("way", STRAIGHT)
async def test_where_the_schema_of_the_tool_that_is_run_has_such_a_property_nothing_is_filled_in(way: Way) -> None:
    own = made("take", properties={"x": {"type": "object", "properties": {"$ref": {"type": "string"}}}})
    async with Yard(tools=[store, own]) as yard:
        await ask(yard, "store")
        name, given = way({"x": {"$ref": "r_1"}})
        answer = await yard.call(name, given)

    assert b'"x":{"$ref":"r_1"}' in answer.to_json()


@pytest.mark.parametrize("way", STRAIGHT)
async def test_the_value_of_a_handle_does_not_count_as_arguments(way: Way) -> None:
    taking = Taking()
    async with Yard(tools=[store, taking], limits=Limits(argument_bytes=1000)) as yard:
        await ask(yard, "store")
        name, given = way({"x": {"$ref": "r_1", "path": "/text"}})
        assert (await yard.call(name, given)).error is None

    assert [len(text) for text in taking.seen] == [60_000]


async def test_the_result_of_a_step_does_not_count_as_arguments() -> None:
    taking = Taking()
    async with Yard(tools=[store, taking], limits=Limits(argument_bytes=1000)) as yard:
        steps = [{"tool_id": "store"}, {"tool_id": "take", "args": {"x": {"$from": 0, "path": "/text"}}}]
        assert (await yard.call("run_chain", {"steps": steps})).error is None

    assert [len(text) for text in taking.seen] == [60_000]


async def test_the_result_of_a_step_is_no_handle_even_for_a_tool_that_runs_others() -> None:
    taking = Taking()
    async with Yard(tools=[store, give, taking]) as yard:
        await ask(yard, "store")
        inner = {"tool_id": "run_tool", "args": {"tool_id": "take", "args": {"x": {"$from": 0}}}}
        await ask(yard, "run_chain", steps=[{"tool_id": "give"}, inner])

    assert taking.seen == [{"$ref": "r_1", "path": "/filter"}]


@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_steps_of_a_chain_in_a_chain_refer_to_each_other(wrapped: bool) -> None:  # noqa: FBT001 - a case
    inner = {
        "tool_id": "run_chain",
        "args": {"steps": [{"tool_id": "add", "args": {"a": 100}}, {"tool_id": "add", "args": {"a": FILTER}}]},
    }
    step = {"tool_id": "run_tool", "args": inner} if wrapped else inner
    async with Yard(tools=[Bench()]) as yard:
        data = await ask(yard, "run_chain", steps=[ADD, step], final_only=True)

    assert data["final"]["final"] == 102


async def test_an_invalid_handle_is_refused_before_the_first_step_runs() -> None:
    bench = Bench()
    async with Yard(tools=[bench, Taking()]) as yard:
        error = failure(
            await yard.call("run_chain", {"steps": [ADD, {"tool_id": "take", "args": {"x": {"$ref": "r_9"}}}]})
        )

    assert [(issue["field"], issue["code"]) for issue in error.details["issues"]] == [
        ("steps.1.args.x", "unknown_handle")
    ]
    assert bench.ran == []


async def test_results_that_are_too_large_together_are_refused_before_the_first_step_runs() -> None:
    bench = Bench()
    async with Yard(tools=[bench, store, Taking()], limits=Limits(stored_bytes=100_000)) as yard:
        handle = (await ask(yard, "store"))["handle"]
        take = {"tool_id": "take", "args": {"x": {"$ref": handle}}}
        error = failure(await yard.call("run_chain", {"steps": [ADD, take, take]}))

    assert (error.code, bench.ran) == ("too_large", [])


async def hold(call: Call) -> Envelope | None:
    return Envelope.ok({"status": "approval_required", "approval_id": "a_1"}) if call.spec.name == "wipe" else None


@every_row(
    "step",
    [
        {"tool_id": "wipe"},
        {"tool_id": "wipe", "parallel": "g"},
        {"tool_id": "run_tool", "args": {"tool_id": "wipe"}},
        {"tool_id": "run_tool", "args": {"tool_id": "wipe", "include": ["tool"]}},
        {"tool_id": "run_chain", "args": {"steps": [{"tool_id": "wipe"}]}},
    ],
)
async def test_a_chain_stops_at_a_step_that_waits_for_a_person_however_it_is_run(step: dict[str, Any]) -> None:
    bench = Bench()
    async with Yard(tools=[bench], policies=[hold]) as yard:
        data = await ask(yard, "run_chain", steps=[step, ADD])

    assert (data["status"], data["step_index"], bench.ran) == ("approval_required", 0, [])


async def test_a_tool_that_speaks_of_approvals_is_not_held() -> None:
    @tool(operation="query")
    async def look() -> dict[str, str]:
        """Look at somebody else's approval."""
        return {"status": "approval_required"}

    bench = Bench()
    async with Yard(tools=[bench, look]) as yard:
        await ask(yard, "run_chain", steps=[{"tool_id": "look"}, ADD])

    assert bench.ran == ["add"]


async def test_a_policy_may_answer_a_step_itself_and_the_chain_goes_on() -> None:
    async def decide(call: Call) -> Envelope | None:
        return Envelope.ok(41) if call.spec.name == "add" and call.arguments["a"] == 1 else None

    async with Yard(tools=[Bench()], policies=[decide]) as yard:
        data = await ask(yard, "run_chain", steps=[ADD, {"tool_id": "add", "args": {"a": FILTER}}], final_only=True)
        included = (await yard.call("run_tool", {**ADD, "include": ["backend"]})).data

    assert data == {"final": 42}
    assert included["result"] == 41


async def test_a_dry_run_looks_into_steps_that_run_other_tools() -> None:
    @tool(confirmation=Confirmation("Sure?", {"type": "object", "properties": {}}))
    async def risky() -> str:
        """Do something risky."""
        raise AssertionError

    inner = {"tool_id": "risky"}
    steps = [
        inner,
        {"tool_id": "run_tool", "args": inner},
        {"tool_id": "run_chain", "args": {"steps": [ADD, inner]}},
        ADD,
    ]
    async with Yard(tools=[Bench(), risky]) as yard:
        plan = (await ask(yard, "run_chain", steps=steps, dry_run=True))["plan"]

    assert [step["needs_approval"] for step in plan] == [True, True, True, False]


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ({"tool_id": "run_tool", "args": {"tool_id": "nothing_of_ours"}}, "steps.1.args.tool_id"),
        (
            {"tool_id": "run_chain", "args": {"steps": [ADD, {"tool_id": "nothing_of_ours"}]}},
            "steps.1.args.steps.1.tool_id",
        ),
    ],
)
async def test_a_tool_that_a_step_would_run_is_looked_for_beforehand(step: dict[str, Any], field: str) -> None:
    bench = Bench()
    async with Yard(tools=[bench]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [ADD, step]}))

    assert [(issue["field"], issue["code"]) for issue in error.details["issues"]] == [(field, "tool_not_found")]
    assert bench.ran == []


@every_row(
    ("args", "fields"),
    [
        ({"a": FILTER, "b": "not a number"}, ["steps.1.args.b"]),
        ({"a": FILTER, "b": "2"}, []),
        ({"a": FILTER, "b": 2}, []),
        ({"a": "no", "b": FILTER}, ["steps.1.args.a"]),
    ],
)
async def test_arguments_beside_a_reference_are_checked_before_the_first_step_runs(
    args: dict[str, Any], fields: list[str]
) -> None:
    bench = Bench()
    async with Yard(tools=[bench]) as yard:
        answer = await yard.call("run_chain", {"steps": [ADD, {"tool_id": "add", "args": args}]})

    assert [issue["field"] for issue in answer.error.details["issues"]] == fields if answer.error else fields == []
    assert bench.ran == ([] if fields else ["add", "add"])


async def test_blocks_and_warnings_of_steps_are_passed_on() -> None:
    @tool(operation="query", deprecated="Use 'add'.")
    async def speak() -> Any:
        """Say something aside."""
        return Envelope.ok("said", content=[Text("aside")])

    async with Yard(tools=[speak]) as yard:
        answer = await yard.call("run_chain", {"steps": [{"tool_id": "speak"}]})

    assert [block.text for block in answer.content if isinstance(block, Text)] == ["aside"]
    assert "deprecated" in answer.data["results"][0]["warnings"][0]


async def test_a_timeout_that_the_caller_set_too_short_says_so() -> None:
    @tool(operation="query")
    async def hang(call: Call) -> None:
        """Hang."""
        await asyncio.get_running_loop().create_future()

    async with Yard(tools=[hang], sinks=[FakeSink()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [{"tool_id": "hang"}], "timeout_s": 0.0123456}))

    assert (error.details["cause_code"], error.blame) == ("timeout", "caller")
    assert len(error.message) < 70


@every_row(
    ("steps", "said"),
    [
        ([{"tool_id": "fail"}], ""),
        ([ADD, {"tool_id": "fail"}], "Step 0 has run: do not run it again."),
        ([{"tool_id": "fail", "parallel": "g"}, {**ADD, "parallel": "g"}], "Step 1 has run: do not run it again."),
        ([ADD, ADD, {"tool_id": "fail"}], "Steps 0, 1 have run: do not run them again."),
    ],
)
async def test_the_hint_names_the_steps_that_have_run(steps: list[dict[str, Any]], said: str) -> None:
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": steps}))

    assert error.hint.endswith(said)
    assert ("run again" in error.hint or "run them again" in error.hint or "run it again" in error.hint) is bool(said)


async def test_a_path_of_null_is_none() -> None:
    async with Yard(tools=[Bench()]) as yard:
        data = await ask(
            yard,
            "run_chain",
            steps=[ADD, {"tool_id": "add", "args": {"a": {"$from": 0, "path": None}}}],
            final_only=True,
        )

    assert data == {"final": 3}


@pytest.mark.parametrize("end", [ADD, {"tool_id": "fail"}])
async def test_results_that_are_too_large_to_be_kept_together_are_kept_one_by_one(end: dict[str, Any]) -> None:
    taking = Taking()
    async with Yard(tools=[Bench(), store, taking], limits=Limits(stored_bytes=100_000)) as yard:
        answer = await yard.call("run_chain", {"steps": [{"tool_id": "store"}, ADD, {"tool_id": "store"}, end]})
        first, second, third = (result["data"] for result in answer.data["results"][:3])
        await ask(yard, "take", x={"$ref": third["handle"], "path": "/word"})

    assert (first["status"], second, taking.seen) == ("stored", 2, ["there"])
    assert (answer.error is None) is (end == ADD)


async def test_a_result_that_is_too_large_to_be_kept_at_all_does_not_hide_the_others() -> None:
    async with Yard(tools=[Bench(), store], limits=Limits(stored_bytes=50_000)) as yard:
        answer = await yard.call("run_chain", {"steps": [ADD, {"tool_id": "store"}]})

    assert answer.data["results"][0]["data"] == 2
    assert answer.data["final"]["status"] == "too_large"


async def test_a_failure_is_answered_even_if_its_partial_result_cannot_be_stored() -> None:
    @tool(operation="query")
    async def half() -> None:
        """Fail with a large part of a result."""
        raise ToolError("state_error", "It is jammed.", data="x" * 60_000)

    async with Yard(tools=[half], limits=Limits(stored_bytes=10_000)) as yard:
        answer = await yard.call("half", {})

    assert (failure(answer).code, answer.data["status"]) == ("state_error", "too_large")


@every_row(
    "steps",
    [
        [{"id": "x" * 5000, **ADD}, {"id": "x" * 5000, **ADD}],
        [ADD, {"tool_id": "add", "args": {"a": {"$from": "x" * 5000}}}],
        [ADD, {"tool_id": "add", "args": {"a": {"$from": 0, "path": "/" + "x" * 5000}}}],
        [{"tool_id": "x" * 5000}],
        [{"id": "x" * 5000, "tool_id": "fail"}],
    ],
)
async def test_a_long_invented_name_is_not_repeated_in_full(steps: list[dict[str, Any]]) -> None:
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": steps}))

    assert len(error.message) + len(error.hint) + sum(map(len, error.next_actions)) < 1000


@pytest.mark.parametrize(
    ("tool_id", "action"), [("nothing_of_ours", "search_tools(query=…)"), ("ad", "describe_tool(tool_id='add')")]
)
async def test_next_actions_name_tools_that_exist(tool_id: str, action: str) -> None:
    given = {"steps": [{"tool_id": tool_id}]}
    async with Yard(tools=[Bench()]) as yard:
        assert failure(await yard.call("run_chain", given)).next_actions == (action,)
    async with Yard(tools=[Bench()], metatools=["run_chain"]) as yard:
        assert failure(await yard.call("run_chain", given)).next_actions == ("run_chain(steps=…)",)
    denied = Profile(name="denied", toolsets=(Toolset(name="most", deny=("search_tools", "describe_tool")),))
    async with Yard(tools=[Bench()]) as yard:
        assert failure(await yard.call("run_chain", given, caller=Caller(profile=denied))).next_actions == (
            "run_chain(steps=…)",
        )
