"""What a step runs by another metatool: everything that is known of it is checked before the first step runs."""

from typing import Any

from table_tests import every_row
from ticket_tools import Bench, ask, failure, made

from callyard import Call, Envelope, Limits, Yard, tool

WIPE: dict[str, Any] = {"tool_id": "wipe"}


def by_run_tool(tool_id: str, args: object, **more: Any) -> dict[str, Any]:
    """Return a step that runs a tool by `run_tool`."""
    return {"tool_id": "run_tool", "args": {"tool_id": tool_id, "args": args, **more}}


def by_chain(*steps: dict[str, Any]) -> dict[str, Any]:
    """Return a step that is a chain."""
    return {"tool_id": "run_chain", "args": {"steps": list(steps)}}


@every_row(
    ("step", "field", "code"),
    [
        (by_run_tool("add", {"a": "x"}), "steps.1.args.args.a", "int_type"),
        (by_run_tool("add", {}), "steps.1.args.args.a", "missing"),
        ({"tool_id": "run_tool", "args": {"tool_id": "add", "a": "x"}}, "steps.1.args.args.a", "int_type"),
        (by_run_tool("add", {"a": {"$from": 0}, "c": 1}), "steps.1.args.args.c", "extra_forbidden"),
        (by_run_tool("run_tool", {"tool_id": "add", "args": {"a": "x"}}), "steps.1.args.args.args.a", "int_type"),
        (by_chain({"tool_id": "add", "args": {"a": "x"}}), "steps.1.args.steps.0.args.a", "int_type"),
        (by_chain({"tool_id": "add", "args": {"a": {"$from": 5}}}), "steps.1.args.steps.0.args.a", "unknown_step"),
        (by_chain({"tool_id": "ad"}), "steps.1.args.steps.0.tool_id", "tool_not_found"),
        (by_chain(by_run_tool("add", {})), "steps.1.args.steps.0.args.args.a", "missing"),
        (by_run_tool("run_chain", {"steps": [{"tool_id": "add"}]}), "steps.1.args.args.steps.0.args.a", "missing"),
        (by_run_tool("add", {"a": {"$ref": "r_77"}}), "steps.1.args.args.a", "unknown_handle"),
        (
            by_chain({"tool_id": "add", "args": {"a": {"$ref": "r_77"}}}),
            "steps.1.args.steps.0.args.a",
            "unknown_handle",
        ),
    ],
)
async def test_arguments_that_a_step_passes_on_are_checked_before_the_first_step_runs(
    step: dict[str, Any], field: str, code: str
) -> None:
    bench = Bench()
    async with Yard(tools=[bench]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [WIPE, step]}))

    assert (error.code, bench.ran) == ("invalid_input", [])
    assert [(issue["field"], issue["code"]) for issue in error.details["issues"]] == [(field, code)]


@every_row(
    "step",
    [
        by_run_tool("add", {"a": "1"}),
        by_run_tool("add", {"arguments": {"a": 1}}),
        by_run_tool("add", {"a": {"$from": 0}}),
        by_run_tool("add", {"arguments": {"a": {"$from": 0}}}),
        by_run_tool("add", {"$from": 1}),
        {"tool_id": "run_tool", "args": {"tool_id": {"$from": 2}, "args": {"a": 1}}},
        {"tool_id": "run_tool", "args": {"tool_id": "add", "a": 1}},
        by_chain({"tool_id": "add", "args": {"a": "1"}}, {"tool_id": "add", "args": {"a": {"$from": 0}, "b": 0}}),
        {"tool_id": "run_chain", "args": {"steps": {"$from": 3}}},
    ],
)
async def test_a_chain_that_would_succeed_is_not_refused_beforehand(step: dict[str, Any]) -> None:
    given = [
        {"tool_id": "give", "args": {"x": value}}
        for value in (1, {"a": 1}, "add", [{"tool_id": "add", "args": {"a": 1}}])
    ]
    async with Yard(tools=[Bench(), give]) as yard:
        data = await ask(yard, "run_chain", steps=[*given, step])

    assert (
        data["final"] in (2, {"results": [{"step": 0, "tool_id": "add", "data": 2}], "final": 2})
        or data["final"]["final"] == 2
    )


async def test_metatools_in_metatools_are_looked_into_only_so_deep() -> None:
    step: dict[str, Any] = {"tool_id": "nobody"}
    for _ in range(20):
        step = by_chain(by_run_tool("run_chain", {"steps": [step]}))
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [step]}))

    assert error.code == "chain_step_failed"


async def test_results_that_are_too_large_for_a_step_inside_are_refused_beforehand() -> None:
    bench = Bench()
    large = made("large", properties={"x": {}})
    async with Yard(tools=[bench, give, large], limits=Limits(result_characters=1000, stored_bytes=8000)) as yard:
        handle = (await yard.call("give", {"x": "x" * 5000})).data["handle"]
        both = {"x": [{"$ref": handle}, {"$ref": handle}]}
        answers = [
            await yard.call("run_chain", {"steps": [WIPE, step]})
            for step in (by_run_tool("large", both), by_chain({"tool_id": "large", "args": both}))
        ]

    assert [failure(answer).code for answer in answers] == ["too_large", "too_large"]
    assert bench.ran == []


async def test_the_refusal_of_a_chain_is_bounded_and_counts_what_it_leaves_out() -> None:
    choices = {
        name: {"enum": [f"choice {number} of many" for number in range(120)]} for name in ("one", "two", "three")
    }
    wrong = {"tool_id": "choose", "args": dict.fromkeys(choices, "none")}
    async with Yard(tools=[made("choose", properties=choices)]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [wrong] * 32}))

    assert len(error.details["issues"]) == 20
    assert "95 more things are wrong." in error.message
    assert len(Envelope(False, None, error).to_json()) < 25_000  # noqa: FBT003 - the field of a struct


async def test_one_more_issue_is_written_in_the_singular() -> None:
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [{"tool_id": "add"}, {"tool_id": "add"}]}))

    assert error.message.endswith("'a' is required. One more thing is wrong.")


async def test_an_index_may_be_written_as_a_text_that_is_no_id() -> None:
    steps = [{"id": "1", "tool_id": "add", "args": {"a": 5}}, {"tool_id": "add", "args": {"a": 1}}]
    async with Yard(tools=[Bench()]) as yard:
        by_index = await ask(yard, "run_chain", steps=[*steps, {"tool_id": "add", "args": {"a": {"$from": "0"}}}])
        by_id = await ask(yard, "run_chain", steps=[*steps, {"tool_id": "add", "args": {"a": {"$from": "1"}}}])
        neither = failure(await yard.call("run_chain", {"steps": [{"tool_id": "add", "args": {"a": {"$from": "9"}}}]}))

    assert (by_index["final"], by_id["final"]) == (7, 7)
    assert neither.details["issues"][0]["code"] == "unknown_step"


async def test_a_dry_run_says_that_a_step_waits_for_the_one_before() -> None:
    steps = [
        {"tool_id": "add", "args": {"a": 1}},
        {"tool_id": "echo", "use_previous": True, "parallel": "x"},
        {"tool_id": "echo", "use_previous": True, "parallel": "x"},
        {"tool_id": "echo", "use_previous": True},
    ]
    async with Yard(tools=[Bench()]) as yard:
        plan = (await ask(yard, "run_chain", steps=steps, dry_run=True))["plan"]

    assert [step.get("waits_for") for step in plan] == [None, [0], [0], [2]]


async def test_a_step_that_waits_for_a_person_is_answered_even_if_its_neighbour_fails() -> None:
    async def decide(call: Call) -> Envelope | None:
        return Envelope.ok({"status": "approval_required", "approval_id": "a1"}) if call.name == "wipe" else None

    steps = [{"tool_id": "wipe", "parallel": "x"}, {"tool_id": "fail", "parallel": "x"}]
    async with Yard(tools=[Bench()], policies=[decide]) as yard:
        error = failure(await yard.call("run_chain", {"steps": steps}))

    assert error.details["pending"] == [
        {"step_index": 0, "pending": {"status": "approval_required", "approval_id": "a1"}}
    ]


@tool(operation="query")
async def give(x: Any) -> Any:
    """Answer what it is given."""
    return x
