from typing import Any

import pytest
from table_tests import every_row
from ticket_tools import Bench, ask, failure

from callyard import Call, Caller, Channel, Confirmation, Example, Limits, Yard, tool


@tool(
    operation="destroy",
    examples=[Example({"n": number}) for number in range(5)],
    reasons=("gone",),
    timeout=7,
    tags=("risky",),
)
async def drop(n: int) -> str:
    """Drop it."""
    return str(n)


async def test_a_tool_is_described_in_the_detail_that_is_asked_for() -> None:
    async with Yard("depot", tools=[drop]) as yard:
        summary = await ask(yard, "describe_tool", tool_id="drop", detail_level="summary")
        schema = await ask(yard, "describe_tool", tool_id="drop")
        full = await ask(yard, "describe_tool", tool_id="drop", detail_level="full")
        few = await ask(yard, "describe_tool", tool_id="drop", detail_level="summary", examples_max=2)

    assert set(summary) == {"tool_id", "signature", "description", "operation", "namespace"}
    assert set(schema) - set(summary) == {"input_schema", "output_schema"}
    assert set(full) - set(schema) == {"tags", "notes", "codes", "reasons", "annotations", "examples"}
    assert (full["reasons"]["gone"]["code"], list(full["codes"]), len(full["examples"])) == (
        "state_error",
        ["state_error"],
        5,
    )
    assert [example["arguments"] for example in few["examples"]] == [{"n": 0}, {"n": 1}]
    assert any("7 seconds" in note for note in full["notes"])


async def test_notes_about_a_tool_are_in_its_description() -> None:
    @tool(
        session="optional",
        deprecated="Use another.",
        confirmation=Confirmation("Sure?", {"type": "object", "properties": {}}),
        title="A Thing",
        timeout_hint="Ask for less.",
    )
    async def thing(call: Call) -> str:
        """Do a thing."""
        return call.id

    async with Yard(tools=[thing]) as yard:
        full = await ask(yard, "describe_tool", tool_id="thing", detail_level="full")

    assert full["title"] == "A Thing"
    assert len(full["notes"]) == 5
    assert any("taken for a command" in note for note in full["notes"])


@every_row("name", ["describe_tool", "get_tool_schema", "list_tool_examples"])
@every_row(
    ("arguments", "code"),
    [
        ({}, "invalid_input"),
        ({"tool_id": ""}, "tool_not_found"),
        ({"tool_id": "dropp"}, "tool_not_found"),
        ({"tool_id": "drop", "detail_level": "everything"}, "invalid_input"),
        ({"tool_id": "drop", "examples_max": 6}, "invalid_input"),
        ({"tool_id": "drop", "max": 6}, "invalid_input"),
        ({"tool_id": "drop", "max": -1}, "invalid_input"),
    ],
    ids=str,
)
async def test_a_tool_that_cannot_be_described_is_refused(name: str, arguments: dict[str, Any], code: str) -> None:
    async with Yard(tools=[drop]) as yard:
        error = failure(await yard.call(name, arguments))

    assert (error.code, error.may_have_run) == (code, False)


async def test_examples_are_listed() -> None:
    async with Yard(tools=[drop]) as yard:
        data = await ask(yard, "list_tool_examples", tool_id="drop", max=1)

    assert data == {"tool_id": "drop", "examples": [{"arguments": {"n": 0}}]}


async def test_a_metatool_is_described_with_its_output_schema() -> None:
    async with Yard() as yard:
        data = await ask(yard, "describe_tool", tool_id="search_tools")

    assert "hits" in data["output_schema"]["properties"]


async def test_the_shape_of_results_is_learnt_where_none_is_declared_and_marked_as_learnt() -> None:
    answered = [
        {"id": 1, "name": "x", "once": 1},
        {"id": 2, "name": None},
        {"id": 3, "name": "y"},
        {"id": 4, "name": None},
        {"id": 5, "name": None},
    ]

    @tool
    async def look() -> Any:
        """Look."""
        return answered.pop(0)

    async with Yard(tools=[look]) as yard:
        await yard.call("look")
        early = await ask(yard, "describe_tool", tool_id="look")
        for _ in range(4):
            await yard.call("run_tool", {"tool_id": "look"})
        late = await ask(yard, "describe_tool", tool_id="look")

    assert "learnt_output" not in early
    assert late["learnt_output"]["learnt_from"] == 5
    assert late["learnt_output"]["schema"] == {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "null"}},
        "required": ["id", "name"],
    }
    assert late["learnt_output"]["note"]


async def test_learning_can_be_switched_off() -> None:
    @tool
    async def look() -> Any:
        """Look."""
        return {"id": 1}

    async with Yard(tools=[look], metatools=["describe_tool"]) as yard:
        for _ in range(5):
            await yard.call("look")
        assert "learnt_output" not in await ask(yard, "describe_tool", tool_id="look")


@pytest.mark.parametrize(("more", "shown"), [(50, False), (5000, True)])
async def test_a_learnt_shape_never_costs_the_schemas(more: int, *, shown: bool) -> None:
    @tool
    async def look(text: str = "x" * 2000) -> Any:
        """Look."""
        return {f"field_{chr(97 + number)}": number for number in range(20)}

    async with Yard(tools=[look]) as yard:
        unlearnt = (await yard.call("describe_tool", {"tool_id": "look"})).to_json()
        for _ in range(3):
            await yard.call("look")
        described = await yard.call(
            "describe_tool", {"tool_id": "look"}, channel=Channel(result_characters=len(unlearnt) + more)
        )
        inner = {"tool_id": "describe_tool", "args": {"tool_id": "look"}}
        within = await yard.call("run_tool", inner, channel=Channel(result_characters=len(unlearnt) + more))
    async with Yard(tools=[look], limits=Limits(result_characters=len(unlearnt) + more)) as yard:
        for _ in range(3):
            await yard.call("look")
        limited = await yard.call("describe_tool", {"tool_id": "look"})

    for answer in (described, within, limited):
        assert answer.data["input_schema"]
        assert ("learnt_output" in answer.data) is shown


async def test_names_that_only_one_caller_received_are_described_to_no_other() -> None:
    @tool(operation="query")
    async def balances() -> Any:
        """Tell the balances."""
        return {"alice": 10, "bob": 20, "carol": 30}

    ada, bea = Caller(identity="ada"), Caller(identity="bea")
    async with Yard(tools=[balances]) as yard:
        for _ in range(3):
            await yard.call("balances", caller=ada)
        mine = await yard.call("describe_tool", {"tool_id": "balances"}, caller=ada)
        hers = await yard.call("run_tool", {"tool_id": "describe_tool", "args": {"tool_id": "balances"}}, caller=bea)

    assert sorted(mine.data["learnt_output"]["schema"]["properties"]) == ["alice", "bob", "carol"]
    assert hers.data["learnt_output"]["schema"] == {"type": "object"}


async def test_bench_tools_declare_what_they_answer() -> None:
    async with Yard(tools=[Bench()]) as yard:
        assert (await ask(yard, "describe_tool", tool_id="add"))["output_schema"] == {"type": "integer"}


@pytest.mark.parametrize("name", ["describe_tool", "get_tool_schema", "list_tool_examples"])
async def test_a_mistyped_name_leads_to_its_description_and_not_to_a_call(name: str) -> None:
    async with Yard(tools=[Bench(), drop]) as yard:
        near = failure(await yard.call(name, {"tool_id": "wip"}))
        far = failure(await yard.call(name, {"tool_id": "zzzz"}))

    assert (near.details["similar"], near.next_actions) == (["wipe"], (f"{name}(tool_id='wipe')",))
    assert (far.details["similar"], far.next_actions) == ([], ("search_tools(query=…)",))
    assert "similar" not in far.hint


async def test_metatools_tell_the_codes_that_they_answer_with() -> None:
    async with Yard() as yard:
        described = {
            name: list((await ask(yard, "describe_tool", tool_id=name, detail_level="full"))["codes"])
            for name in ("read_result", "run_tool", "describe_toolset", "search_tools")
        }
        reading = await ask(yard, "describe_tool", tool_id="read_result", detail_level="full")

    assert described == {
        "read_result": ["not_found", "too_large"],
        "run_tool": ["not_supported"],
        "describe_toolset": ["not_found"],
        "search_tools": [],
    }
    assert reading["description"].endswith("May answer with: not_found.")


async def test_metatools_fail_by_the_reasons_that_they_declare(caplog: pytest.LogCaptureFixture) -> None:
    calls = {
        "unknown_handle": ("read_result", {"handle": "r_9"}),
        "no_room": ("read_result", {"handle": "r_1"}),
        "argument_not_supported": ("run_tool", {"tool_id": "wipe", "stream": True}),
        "unknown_toolset": ("describe_toolset", {"name": "none"}),
    }
    async with Yard(tools=[Bench()], limits=Limits(result_characters=1)) as yard:
        await yard.call("open_ticket", {"title": "x"})
        for reason, (name, arguments) in calls.items():
            error = failure(await yard.call(name, arguments))
            declared = yard.registry.find(name, yard.profile).spec.reasons[reason]
            assert (error.details["reason"], error.code) == (reason, declared.code)

    assert "reason" not in caplog.text
