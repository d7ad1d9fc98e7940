import asyncio
from typing import Any

import pytest
from table_tests import every_row
from ticket_tools import Bench, ask, failure, made

from callyard import Call, Caller, Envelope, Handler, Limits, Operation, Profile, ToolError, Toolset, Yard, tool
from callyard.testing import FakeSink, connect

READ_ONLY = Profile(name="read_only", toolsets=(Toolset(name="queries", operations=(Operation.QUERY,)),))


async def test_a_tool_answers_through_run_tool_as_it_does_directly() -> None:
    async with Yard(tools=[Bench()]) as yard:
        direct = await yard.call("open_ticket", {"title": "x"})
        through = await yard.call("run_tool", {"tool_id": "open_ticket", "args": {"title": "x"}})

    assert (through.success, through.data, through.error) == (direct.success, direct.data, direct.error)


async def test_a_failure_goes_through_as_it_is() -> None:
    async with Yard(tools=[Bench()]) as yard:
        direct = await yard.call("fail")
        through = await yard.call("run_tool", {"tool_id": "fail"})

    assert failure(through) == failure(direct)


async def test_a_tool_that_is_not_there_is_named_with_its_neighbours() -> None:
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_tool", {"tool_id": "open_tickets"}))

    assert (error.code, error.tool_id, error.details["similar"]) == ("tool_not_found", "open_tickets", ["open_ticket"])


@every_row(
    "arguments",
    [
        {"tool_id": "add", "args": '{"a": 1, "b": 2}'},
        {"tool_id": "add", "a": 1, "b": 2},
        {"tool_id": "add", "args": {"args": {"a": 1, "b": 2}}},
        {"tool_id": "add", "args": {"arguments": '{"a": 1, "b": 2}'}},
        {"tool_id": "add", "args": {"tool_id": "add", "args": {"a": 1, "b": 2}}},
        {"tool_id": "add", "arguments": {"a": 1, "b": 2}},
        {"name": "add", "arguments": '{"a": 1, "b": 2}'},
        {"name": "add", "args": {"a": 1, "b": 2}},
    ],
    ids=str,
)
@every_row("name", ["run_tool", "call_tool"])
async def test_arguments_in_the_wrong_place_are_put_right_and_noted(name: str, arguments: dict[str, Any]) -> None:
    async with Yard(tools=[Bench()]) as yard:
        answer = await yard.call(name, arguments)

    assert answer.data == 3
    assert "args" in answer.meta.coerced


async def test_a_policy_and_a_middleware_see_only_the_true_arguments_of_a_repaired_call() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    async def look(call: Call) -> None:
        seen.append((call.spec.name, dict(call.arguments)))

    def wrap(handler: Handler) -> Handler:
        async def looking(call: Call) -> object:
            await look(call)
            return await handler(call)

        return looking

    async with Yard(tools=[Bench()], policies=[look], middleware=[wrap]) as yard:
        answer = await yard.call("run_tool", {"name": "add", "a": 1, "b": 2})

    assert (answer.data, answer.meta.coerced) == (3, ("args",))
    outer, inner = ("run_tool", {"tool_id": "add", "args": {"a": 1, "b": 2}}), ("add", {"a": 1, "b": 2})
    assert seen == [outer, outer, inner, inner]


@every_row(
    "arguments",
    [
        {"args": {"a": 1}},
        {"tool_id": "add", "args": {"a": 1}, "b": 2},
        {"tool_id": "add", "args": "a=1"},
        {"tool_id": "add", "args": [1]},
        {"name": "add", "tool": "add"},
    ],
    ids=str,
)
async def test_arguments_that_can_be_read_in_no_one_way_are_refused(arguments: dict[str, Any]) -> None:
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_tool", arguments))

    assert (error.code, error.may_have_run) == ("invalid_input", False)


async def test_nothing_is_put_right_where_repair_is_off() -> None:
    async with Yard(tools=[Bench()], limits=Limits(repair=False)) as yard:
        beside = failure(await yard.call("run_tool", {"tool_id": "add", "a": 1}))
        within = failure(await yard.call("run_tool", {"tool_id": "add", "args": {"args": {"a": 1}}}))

    assert (beside.code, beside.tool_id, within.code, within.tool_id) == (
        "invalid_input",
        "run_tool",
        "invalid_input",
        "add",
    )


async def test_an_argument_that_is_called_args_stays_where_it_is() -> None:
    takes_args = made("takes_args", properties={"args": {"type": "object"}})
    async with Yard(tools=[takes_args]) as yard:
        assert await ask(yard, "run_tool", tool_id="takes_args", args={"args": {"x": 1}}) == {"args": {"x": 1}}


@pytest.mark.parametrize(
    "more",
    [{"stream": True}, {"backend_override": "elsewhere"}, {"backend_override": {"url": "https://elsewhere.example"}}],
    ids=str,
)
async def test_an_option_that_cannot_be_honoured_is_refused(more: dict[str, Any]) -> None:
    bench = Bench()
    async with Yard(tools=[bench]) as yard:
        error = failure(await yard.call("run_tool", {"tool_id": "wipe", **more}))

    assert (error.code, error.may_have_run, bench.ran) == ("not_supported", False, [])
    assert error.next_actions


async def test_an_option_that_can_be_honoured_is_honoured() -> None:
    async with Yard("depot", tools=[Bench()]) as yard:
        assert await ask(yard, "run_tool", tool_id="wipe", stream=False, backend_override="depot") == "gone"


async def test_more_can_be_included_beside_the_result() -> None:
    async with Yard("depot", tools=[Bench()]) as yard:
        data = await ask(yard, "run_tool", tool_id="add", args={"a": 1}, include=["tool", "backend", "raw"])

    assert data["result"] == data["raw"]["data"] == 2
    assert data["tool"] == {"tool_id": "add", "signature": "add(a: int, b?: int) -> int", "operation": "query"}
    assert data["backend"] == {"source": "depot"}


async def test_policy_and_records_see_the_inner_tool() -> None:
    sink, seen = FakeSink(), list[str]()

    async def decide(call: Call) -> Envelope | None:
        seen.append(call.spec.name)
        if call.spec.operation is Operation.DESTROY:
            raise ToolError("permission_denied", "No.")
        return None

    bench = Bench()
    steps = [{"tool_id": "wipe"}]
    async with Yard(tools=[bench], sinks=[sink], policies=[decide]) as yard:
        alone = failure(await yard.call("run_tool", {"tool_id": "wipe"}))
        wrapped = failure(await yard.call("run_tool", {"tool_id": "run_tool", "args": {"tool_id": "wipe"}}))
        chained = failure(await yard.call("run_tool", {"tool_id": "run_chain", "args": {"steps": steps}}))

    assert (alone.code, wrapped.code, chained.code) == ("permission_denied", "permission_denied", "chain_step_failed")
    assert chained.details["cause_code"] == "permission_denied"
    assert bench.ran == []
    assert seen == ["run_tool", "wipe", "run_tool", "run_tool", "wipe", "run_tool", "run_chain", "wipe"]
    records = sink.records[:2]
    assert [(record.tool, record.depth, record.code) for record in records] == [
        ("wipe", 1, "permission_denied"),
        ("run_tool", 0, "permission_denied"),
    ]
    assert records[0].parent_id == records[1].call_id


async def test_a_profile_holds_inside_every_metatool() -> None:
    bench = Bench()
    async with Yard(tools=[bench], profile=READ_ONLY) as yard:
        ran = failure(await yard.call("run_tool", {"tool_id": "wipe"}))
        chained = failure(await yard.call("run_chain", {"steps": [{"tool_id": "wipe"}]}))
        described = failure(await yard.call("describe_tool", {"tool_id": "wipe"}))
        shown = failure(await yard.call("list_tool_examples", {"tool_id": "wipe"}))
        found = await ask(yard, "search_tools", query="delete everything")
        listed = await ask(yard, "list_tools")

    assert (ran.code, described.code, shown.code) == ("tool_not_found", "tool_not_found", "tool_not_found")
    assert chained.details["issues"][0]["code"] == "tool_not_found"
    assert "wipe" not in str(found)
    assert "wipe" not in str(listed)
    assert bench.ran == []


async def test_a_metatool_can_be_denied_by_its_name() -> None:
    profile = Profile(name="p", toolsets=(Toolset(name="no_chains", deny=("run_chain",)),))
    async with Yard(tools=[Bench()], profile=profile) as yard:
        error = failure(await yard.call("run_chain", {"steps": [{"tool_id": "add", "args": {"a": 1}}]}))

    assert error.code == "tool_not_found"


async def test_calls_through_calls_come_to_an_end() -> None:
    arguments: dict[str, Any] = {"tool_id": "add", "args": {"a": 1}}
    for _ in range(6):
        arguments = {"tool_id": "run_tool", "args": arguments}
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_tool", arguments))

    assert (error.code, error.details["limit"]) == ("limit_exceeded", "depth")


async def test_an_inner_tool_keeps_its_own_deadline() -> None:
    @tool(timeout=0.01)
    async def hang() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "never"

    async with Yard(tools=[hang]) as yard:
        error = failure(await yard.call("run_tool", {"tool_id": "hang"}))

    assert (error.code, error.tool_id) == ("timeout", "hang")


async def test_the_notes_of_the_inner_tool_are_passed_on() -> None:
    @tool
    async def work(call: Call) -> str:
        """Work in two parts."""
        call.progress(1, 2, "one")
        call.progress(2, 2, "two")
        return "done"

    async with connect(Yard(tools=[work])) as client:
        await client.call("run_tool", tool_id="work")

    assert [(note.done, note.total, note.text) for note in client.notes] == [(1, 2, "one"), (2, 2, "two")]


async def test_a_slow_silent_tool_gets_progress_and_a_quick_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait until somebody heard that it waits."""
        await noted.wait()
        return "done"

    yard = Yard(tools=[wait, Bench()])
    async with connect(yard) as client:
        await client.call("run_tool", tool_id="add", args={"a": 1})
        assert client.notes == []
        hear = client.notes.append
        channel = type(client._channel)  # pyright: ignore[reportPrivateUsage] - to hear at once
        monkeypatch.setattr(
            client, "_channel", channel(name="test", progress=lambda note: (hear(note), noted.set())[0])
        )
        await client.call("run_tool", tool_id="wait")

    assert [(note.done, note.total) for note in client.notes] == [(0, 1), (1, 1)]


async def test_a_large_result_is_stored_for_whoever_called() -> None:
    big = made("big", properties={"text": {"type": "string"}})
    async with Yard(tools=[big], limits=Limits(result_characters=100)) as yard:
        stored = await yard.call("run_tool", {"tool_id": "big", "args": {"text": "x" * 500}})
        passed = await yard.call(
            "run_tool", {"tool_id": "big", "args": {"text": {"$ref": stored.data["handle"], "path": "/text"}}}
        )
        foreign = await yard.call("read_result", {"handle": stored.data["handle"]}, caller=Caller(identity="eve"))

    assert stored.data["status"] == passed.data["status"] == "stored"
    assert failure(foreign).code == "not_found"


async def test_a_reference_in_a_result_is_data() -> None:
    echo = made("echo_back", properties={"given": {}})
    async with Yard(tools=[echo], limits=Limits(result_characters=20)) as yard:
        first = await yard.call("echo_back", {"given": ["a stored text of some length"]})
        looks = made("looks", properties={})

        async def handler(call: Call) -> object:
            return {"given": {"$ref": first.data["handle"]}}

        yard.registry.publish("other", [type(looks)(spec=looks.spec, handler=handler, check=looks.check)])
        chained = await yard.call(
            "run_chain",
            {
                "steps": [
                    {"tool_id": "looks"},
                    {"tool_id": "echo_back", "args": {"given": {"$from": 0, "path": "/given"}}},
                ],
                "final_only": True,
            },
            channel=_wide(),
        )

    assert chained.data == {"final": {"given": {"$ref": first.data["handle"]}}}


def _wide() -> Any:
    from callyard.dispatch.call import Channel  # noqa: PLC0415 - only here

    return Channel(name="wide", result_characters=10_000)


@pytest.mark.parametrize("name", ["run_tool", "call_tool"])
async def test_a_mistyped_name_leads_to_the_same_call_with_the_right_one(name: str) -> None:
    sink = FakeSink()
    async with Yard(tools=[Bench()], sinks=[sink]) as yard:
        near = failure(await yard.call(name, {"tool_id": "wip"}))
        far = failure(await yard.call(name, {"tool_id": "zzzz"}))

    assert (near.tool_id, near.next_actions) == ("wip", (f"{name}(tool_id='wipe', …)",))
    assert (far.details["similar"], far.next_actions) == ([], ("search_tools(query=…)",))
    assert [record.tool for record in sink.records] == ["wip", name, "zzzz", name]


async def test_a_call_of_no_tool_that_is_too_deep_says_that_it_is_too_deep() -> None:
    async with Yard(tools=[Bench()], limits=Limits(depth=0)) as yard:
        error = failure(await yard.call("run_tool", {"tool_id": "wip"}))

    assert (error.code, error.next_actions) == ("limit_exceeded", ())


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("search_tools", {"query": "x", "foo": 1}, "describe_tool(tool_id='search_tools')"),
    ("search_tools", {"query": "x", "limt": 1}, "search_tools(limit=…)"),
    ("run_tool", {"tool_id": "wipe", "args": {}, "confirm": True}, "describe_tool(tool_id='run_tool')"),
    ("run_tool", {"tool_id": "add", "include": ["bad"]}, "run_tool(include=…)"),
    ("run_chain", {"steps": [{"tool_id": "add", "arguments": {"a": 1}}]}, "run_chain(steps=…)"),
    ("run_chain", {"steps": [{"tool": "add"}]}, "run_chain(steps=…)"),
    ("run_chain", {"steps": [1]}, "run_chain(steps=…)"),
    ("run_chain", {}, "run_chain(steps=…)"),
    ("open_ticket", {"title": "x", "labels": [1, {}]}, "open_ticket(labels=…)"),
    ("wipe", {"everything": True}, "describe_tool(tool_id='wipe')"),
]


@every_row(("name", "arguments", "action"), WRONG, ids=str)
async def test_next_actions_name_an_argument_that_exists(name: str, arguments: dict[str, Any], action: str) -> None:
    bench = Bench()
    async with Yard(tools=[bench]) as yard:
        error = failure(await yard.call(name, arguments))

    assert (error.code, error.next_actions, bench.ran) == ("invalid_input", (action,), [])


async def test_nobody_is_sent_to_a_metatool_that_is_not_there() -> None:
    denied = Profile(name="p", toolsets=(Toolset(name="few", deny=("describe_tool", "search_tools")),))
    for yard in (Yard(tools=[Bench()], profile=denied), Yard(tools=[Bench()], metatools=False)):
        async with yard:
            unknown = failure(await yard.call("add", {"a": 1, "foo": 1}))
            missing = failure(await yard.call("zzzz"))

        assert unknown.next_actions == ("add(…)",)
        assert (missing.next_actions, "similar" in missing.hint, "search" in missing.hint) == ((), False, False)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tool_id": "add", "args": {"arguments": {"a": "1", "b": 2}}},
        {"tool_id": "add", "args": {"args": '{"a": "1", "b": "2"}'}},
        {"tool_id": "add", "args": {"tool_id": "add", "input": {"a": 1.0, "b": 2}}},
    ],
    ids=str,
)
async def test_arguments_in_the_wrong_place_may_need_a_repair_as_well(arguments: dict[str, Any]) -> None:
    async with Yard(tools=[Bench()]) as yard:
        answer = await yard.call("run_tool", arguments)
        chained = await yard.call("run_chain", {"steps": [arguments]})

    assert answer.data == chained.data["final"] == 3
    assert {"args", "a"} <= set(answer.meta.coerced)
    assert {"args", "a"} <= set(chained.data["results"][0]["coerced"])


async def test_arguments_that_can_be_put_right_where_they_are_stay_there() -> None:
    takes_args = made("takes_args", properties={"args": {"type": "array"}})
    takes_text = made("takes_text", properties={"args": {"type": "object", "properties": {"n": {"type": "integer"}}}})
    async with Yard(tools=[takes_args, takes_text]) as yard:
        within = await yard.call("run_tool", {"tool_id": "takes_text", "args": {"args": {"n": "5"}}})
        nowhere = failure(await yard.call("run_tool", {"tool_id": "takes_args", "args": {"args": {"args": "no list"}}}))

    assert within.data == {"args": {"n": 5}}
    assert nowhere.code == "invalid_input"


@pytest.mark.parametrize("tool_id", ["crash", "say_nothing"])
async def test_a_defect_names_the_call_that_the_log_names(tool_id: str, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def crash() -> str:
        """Break."""
        raise RuntimeError

    say_nothing = made("say_nothing")

    async def nothing(call: Call) -> object:
        return None

    sink = FakeSink()
    tools = [crash, type(say_nothing)(spec=say_nothing.spec, handler=nothing, check=say_nothing.check)]
    async with Yard(tools=tools, sinks=[sink]) as yard:
        direct = await yard.call(tool_id)
        through = await yard.call("run_tool", {"tool_id": tool_id})
        chained = await yard.call("run_chain", {"steps": [{"tool_id": tool_id}]})

    named = [failure(direct).details, failure(through).details, failure(chained).details["cause"]["details"]]
    ran = [record.call_id for record in sink.records if record.tool == tool_id]
    assert [details["call_id"] for details in named] == ran
    assert ran[0] == direct.meta.call_id
    assert ran[1] != through.meta.call_id
    assert "'call_id' in 'details'" in failure(through).hint
    if tool_id == "crash":
        assert all(f"id={one}" in caplog.text for one in ran)
