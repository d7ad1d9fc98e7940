"""Chains that stop: what has come of them is told, whatever stopped them and however deep inside."""

import asyncio
from typing import Any

import pytest
from table_tests import every_row
from ticket_tools import Bench, ask, failure

from callyard import Call, Caller, Envelope, Image, Limits, Profile, Toolset, Yard, tool
from callyard.dispatch.call import Handler
from callyard.state.memory import MemoryStore

ADD: dict[str, Any] = {"tool_id": "add", "args": {"a": 1}}
WIPE: dict[str, Any] = {"tool_id": "wipe"}
FAIL: dict[str, Any] = {"tool_id": "fail"}
HANG: dict[str, Any] = {"tool_id": "hang"}
PICTURE: dict[str, Any] = {"tool_id": "draw"}


@tool(operation="query")
async def draw(name: str = "one") -> Image:
    """Draw a picture."""
    return Image(name.encode())


@tool(operation="query")
async def make(letters: int) -> str:
    """Make a long text."""
    return "x" * letters


@tool
async def hang() -> str:
    """Begin, and never end."""
    await asyncio.Event().wait()
    return "never"


async def hold(call: Call) -> Envelope | None:
    """Hold whatever wipes until a person has decided."""
    return Envelope.ok({"status": "approval_required", "approval_id": call.id}) if call.name == "wipe" else None


def chain_of(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tool_id": "run_chain", "args": {"steps": list(steps), **more}}


def by_run_tool(step: dict[str, Any]) -> dict[str, Any]:
    return {"tool_id": "run_tool", "args": step}


@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_outer_chain_answers_with_the_results_of_a_failed_inner_chain(wrapped: bool) -> None:  # noqa: FBT001 - a case
    inner = chain_of(WIPE, {"tool_id": "add", "args": {"a": 41}}, FAIL)
    async with Yard(tools=[Bench()]) as yard:
        answer = await yard.call("run_chain", {"steps": [ADD, by_run_tool(inner) if wrapped else inner]})

    error = failure(answer)
    assert (error.details["step_index"], error.details["cause_code"]) == (1, "chain_step_failed")
    assert [result["data"] for result in answer.data["results"]] == [2]
    assert [(one["step"], [result["data"] for result in one["data"]["results"]]) for one in answer.data["partial"]] == [
        (1, ["gone", 42])
    ]


async def test_a_group_answers_with_the_results_of_all_its_failed_chains() -> None:
    steps = [
        {**chain_of(ADD, FAIL), "parallel": "g"},
        {**ADD, "parallel": "g"},
        {**chain_of(PICTURE, FAIL), "parallel": "g"},
    ]
    async with Yard(tools=[Bench(), draw]) as yard:
        answer = await yard.call("run_chain", {"steps": steps})

    failure(answer)
    assert [one["step"] for one in answer.data["partial"]] == [0, 2]
    assert [result["step"] for result in answer.data["results"]] == [1]
    assert [block.data for block in answer.content if isinstance(block, Image)] == [b"one"]


async def test_the_hint_tells_steps_inside_from_those_outside() -> None:
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [ADD, ADD, chain_of(WIPE, FAIL)]}))

    outside, _, inside = error.hint.partition("step 2")
    assert "Steps 0, 1" in outside
    assert "Step 0" in inside


@every_row("wrapped", [False, True])
@every_row("where", ["step", "chain"])
async def test_a_chain_inside_that_is_out_of_time_tells_what_it_did(where: str, wrapped: bool) -> None:  # noqa: FBT001 - a case
    inner = chain_of(WIPE, HANG)
    step = by_run_tool(inner) if wrapped else inner
    given = {"steps": [{**step, "timeout_s": 0.02}]} if where == "step" else {"steps": [step], "timeout_s": 0.02}
    async with Yard(tools=[Bench(), hang]) as yard:
        answer = await yard.call("run_chain", given)

    error = failure(answer)
    assert error.details["cause"]["details"]["cause_code"] == "timeout"
    assert [result["data"] for result in answer.data["partial"][0]["data"]["results"]] == ["gone"]


@pytest.mark.parametrize("way", ["step", "run_tool", "chain"])
async def test_a_step_waits_for_its_turn_no_longer_than_it_has_time(way: str) -> None:
    begun, done = asyncio.Event(), asyncio.Event()

    @tool(serial=True)
    async def occupy() -> str:
        """Let nobody else run."""
        begun.set()
        await done.wait()
        return "done"

    step = {"tool_id": "occupy"}
    steps = {"step": step, "run_tool": by_run_tool(step), "chain": chain_of(WIPE, step)}
    async with Yard(tools=[Bench(), occupy]) as yard:
        first = asyncio.create_task(yard.call("occupy"))
        await begun.wait()
        answer = await yard.call("run_chain", {"steps": [{**steps[way], "timeout_s": 0.02}]})
        done.set()
        await first

    cause = failure(answer).details["cause"]
    if way == "chain":
        assert [result["data"] for result in answer.data["partial"][0]["data"]["results"]] == ["gone"]
        cause = cause["details"]["cause"]
    assert (cause["code"], cause["blame"], cause["may_have_run"], cause["retryable"]) == (
        "timeout",
        "caller",
        False,
        True,
    )


async def test_a_chain_inside_keeps_to_the_shorter_of_two_times() -> None:
    async with Yard(tools=[Bench(), hang]) as yard:
        answer = await yard.call("run_chain", {"steps": [{**chain_of(HANG, timeout_s=0.02), "timeout_s": 3000}]})

    assert failure(answer).details["cause"]["details"]["cause_code"] == "timeout"


async def test_a_metatool_that_is_held_up_itself_ends_soon_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.dispatch.deadlines._EXTRA_S", 0.01)

    def stall(handler: Handler) -> Handler:
        async def run(call: Call) -> object:
            if call.name == "run_tool":
                await asyncio.Event().wait()
            return await handler(call)

        return run

    async with Yard(tools=[Bench()], middleware=[stall]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [by_run_tool(ADD)], "timeout_s": 0.02}))

    assert error.details["cause_code"] == "timeout"


@pytest.mark.parametrize(("end", "stopped"), [(FAIL, "chain_step_failed"), (WIPE, None)])
async def test_pictures_follow_the_answer_of_a_chain_that_stops(end: dict[str, Any], stopped: str | None) -> None:
    async with Yard(tools=[Bench(), draw], policies=[hold]) as yard:
        answer = await yard.call("run_chain", {"steps": [PICTURE, end]})

    assert (answer.error.code if answer.error else None) == stopped
    assert [block.data for block in answer.content if isinstance(block, Image)] == [b"one"]


@pytest.mark.parametrize(("last", "shown"), [(ADD, []), ({**PICTURE, "args": {"name": "two"}}, [b"two"])])
async def test_the_pictures_of_earlier_steps_are_spared_who_wants_the_last_result_alone(
    last: dict[str, Any], shown: list[bytes]
) -> None:
    async with Yard(tools=[Bench(), draw]) as yard:
        answer = await yard.call("run_chain", {"steps": [PICTURE, last], "final_only": True})

    assert [block.data for block in answer.content if isinstance(block, Image)] == shown


async def test_earlier_results_are_not_kept_for_who_wants_the_last_one_alone() -> None:
    steps = [{"tool_id": "make", "args": {"letters": letters}} for letters in (900, 900)]
    async with Yard(tools=[make], limits=Limits(result_characters=500, stored_bytes=905)) as yard:
        answer = await yard.call("run_chain", {"steps": steps, "final_only": True})

    assert answer.data["final"]["handle"] == "r_1"


@pytest.mark.parametrize("inside", [False, True])
async def test_a_chain_that_waits_for_a_person_says_so_after_large_results(inside: bool) -> None:  # noqa: FBT001 - a case
    made, wiped = (
        {"tool_id": "make", "args": {"letters": 30_000}},
        [{"tool_id": "make", "args": {"letters": 60_000}}, WIPE],
    )
    async with Yard(tools=[Bench(), make], policies=[hold]) as yard:
        data = await ask(yard, "run_chain", steps=[made, made, chain_of(*wiped)] if inside else [made, *wiped])

    assert data["status"] == "approval_required"
    assert any("handle" in result["data"] for result in data["results"])
    pending = data["pending"]["pending"] if inside else data["pending"]
    assert pending["approval_id"]


async def test_results_before_a_failed_step_are_stored_one_by_one_if_all_are_too_large() -> None:
    steps = [{"tool_id": "make", "args": {"letters": letters}} for letters in (400, 4700)]
    async with Yard(tools=[Bench(), make], limits=Limits(result_characters=500, stored_bytes=10_000)) as yard:
        answer = await yard.call("run_chain", {"steps": [steps[0], chain_of(*steps[1:], FAIL)]})
        failure(answer)
        handle = answer.data["handle"]
        stored = (await yard.call("read_result", {"handle": handle, "path": "/results/0/data"})).data
        partial = (await yard.call("read_result", {"handle": handle, "path": "/partial/0"})).data

    assert "x" * 400 in str(stored)
    assert "r_" in str(partial)


async def test_every_approval_that_a_group_waits_for_is_answered() -> None:
    steps = [{**step, "parallel": "g"} for step in (WIPE, ADD, WIPE)]
    async with Yard(tools=[Bench()], policies=[hold]) as yard:
        data = await ask(yard, "run_chain", steps=steps)

    pending = [data["pending"], *(one["pending"] for one in data["also_pending"])]
    assert (data["step_index"], data["also_pending"][0]["step_index"]) == (0, 2)
    assert len({one["approval_id"] for one in pending}) == 2


@pytest.mark.parametrize(("operation", "more_time"), [("query", True), ("command", False)])
async def test_only_a_call_that_may_be_repeated_gets_the_hint_to_give_more_time(
    operation: Any,
    more_time: bool,  # noqa: FBT001 - a case
) -> None:
    @tool(operation=operation)
    async def dawdle() -> str:
        """Take for ever."""
        await asyncio.Event().wait()
        return "never"

    async with Yard(tools=[dawdle]) as yard:
        error = failure(await yard.call("run_chain", {"steps": [{"tool_id": "dawdle", "timeout_s": 0.02}]}))

    assert ("more time" in error.hint) is more_time
    assert error.details["cause"]["retryable"] is more_time


@pytest.mark.parametrize("way", ["run_tool", "run_chain"])
async def test_the_same_chain_twice_at_once_runs_its_steps_once(way: str) -> None:
    class Slow(MemoryStore):
        async def get(self, key: str) -> bytes | None:
            await asyncio.sleep(0)  # a turn of the loop, as a store elsewhere would take
            return await super().get(key)

    def at_once(handler: Handler) -> Handler:
        async def run(call: Call) -> object:
            if call.name != way:
                return await handler(call)
            first, _ = await asyncio.gather(handler(call), handler(call), return_exceptions=True)
            return first

        return run

    ran: list[int] = []

    @tool
    async def take(x: str) -> int:
        """Take a text."""
        ran.append(len(x))
        return len(x)

    @tool(operation="query")
    async def make() -> str:
        """Make a long text."""
        return "x" * 60_000

    step = {"tool_id": "take", "args": {"x": {"$ref": "r_1"}}}
    async with Yard(tools=[take, make], middleware=[at_once], store=Slow()) as yard:
        await yard.call("make")
        answer = await yard.call(way, step if way == "run_tool" else {"steps": [step]})

    assert (answer.success, ran) == (True, [60_000])


@every_row(
    "profile", [None, Profile(name="few", toolsets=(Toolset(name="few", deny=("describe_tool", "read_result")),))]
)
@every_row(
    "step",
    [
        {"tool_id": "echo", "args": {"previous": {"$ref": "r_7"}}},
        by_run_tool({"tool_id": "echo", "args": {"previous": {"$ref": "r_7"}}}),
        chain_of({"tool_id": "echo", "args": {"previous": {"$ref": "r_7"}}}),
    ],
    ids=["step", "run_tool", "chain"],
)
async def test_an_expired_handle_gets_the_hint_to_make_it_again(step: dict[str, Any], profile: Profile | None) -> None:
    bench, caller = Bench(), Caller(profile=profile)
    async with Yard(tools=[bench]) as yard:
        plain = failure(await yard.call("echo", {"previous": {"$ref": "r_7"}}, caller=caller))
        error = failure(await yard.call("run_chain", {"steps": [WIPE, step, FAIL]}, caller=caller))

    assert (error.code, error.next_actions, bench.ran) == ("invalid_input", plain.next_actions, [])
    assert plain.hint in error.hint
    assert error.next_actions


async def test_the_first_issue_decides_the_next_actions() -> None:
    steps = [{"tool_id": "add", "args": {"a": "x"}}, {"tool_id": "echo", "args": {"previous": {"$ref": "r_7"}}}]
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("run_chain", {"steps": steps}))

    assert error.next_actions == ("describe_tool(tool_id='add')",)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_stored_data_refer_to_nothing_in_a_chain_inside_that_takes_a_result(wrapped: bool) -> None:  # noqa: FBT001 - a case
    @tool(operation="query")
    async def make() -> dict[str, Any]:
        """Make something large that holds what looks like a reference."""
        return {"filter": {"$from": 0}, "text": "x" * 60_000}

    inner = chain_of(
        ADD, {"tool_id": "echo", "args": {"previous": {"$ref": "r_1", "path": "/filter"}}}, timeout_s={"$from": 0}
    )
    async with Yard(tools=[Bench(), make]) as yard:
        await yard.call("make")
        data = await ask(yard, "run_chain", steps=[ADD, by_run_tool(inner) if wrapped else inner])

    assert data["final"]["final"] == {"previous": {"$from": 0}}


async def cancelled_once_hanging(yard: Yard, steps: list[dict[str, Any]]) -> Envelope:
    """Run a chain, and cancel it as soon as its last step hangs."""
    task = asyncio.ensure_future(yard.call("run_chain", {"steps": steps}))
    while not any(call.name == "hang" and call.may_have_run for call in yard.dispatcher.in_flight.values()):  # noqa: ASYNC110 - the tool cannot tell
        await asyncio.sleep(0)
    outer = next(call for call in yard.dispatcher.in_flight.values() if call.parent is None)
    assert yard.dispatcher.cancel(outer.id)
    return await task


async def test_a_cancelled_chain_keeps_its_partial_results() -> None:
    async with Yard(tools=[Bench(), hang]) as yard:
        answer = await cancelled_once_hanging(yard, [ADD, HANG])

    assert failure(answer).code == "cancelled"
    assert [result["data"] for result in answer.data["results"]] == [2]


async def test_a_cancelled_chain_keeps_what_a_group_has_finished() -> None:
    async with Yard(tools=[Bench(), hang]) as yard:
        answer = await cancelled_once_hanging(yard, [{**ADD, "parallel": "g"}, {**HANG, "parallel": "g"}])

    assert failure(answer).code == "cancelled"
    assert [result["step"] for result in answer.data["results"]] == [0]


async def test_a_cancelled_chain_keeps_the_results_of_the_chain_inside() -> None:
    async with Yard(tools=[Bench(), hang]) as yard:
        answer = await cancelled_once_hanging(yard, [ADD, chain_of(ADD, HANG)])

    assert failure(answer).code == "cancelled"
    assert [one["data"]["results"][0]["data"] for one in answer.data["partial"]] == [2]


async def test_a_chain_that_is_cut_off_by_the_end_of_the_yard_keeps_its_partial_results() -> None:
    async with Yard(tools=[Bench(), hang]) as yard:
        task = asyncio.ensure_future(yard.call("run_chain", {"steps": [ADD, HANG]}))
        while not any(call.name == "hang" for call in yard.dispatcher.in_flight.values()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    answer = await task

    assert (failure(answer).code, failure(answer).blame) == ("cancelled", "yard")
    assert [result["data"] for result in answer.data["results"]] == [2]


async def test_references_that_need_too_much_room_are_refused_before_they_are_filled_in() -> None:
    steps = [{"tool_id": "make", "args": {"letters": 600}}, {"tool_id": "add", "args": {"a": [{"$from": 0}] * 150}}]
    async with Yard(tools=[Bench(), make], limits=Limits(stored_bytes=50_000, argument_bytes=50_000)) as yard:
        error = failure(await yard.call("run_chain", {"steps": steps}))

    assert (error.code, error.details["cause_code"]) == ("chain_step_failed", "too_large")


async def test_very_many_references_are_filled_in() -> None:
    @tool(operation="query")
    async def count(values: list[object]) -> int:
        """Count values."""
        return len(values)

    nested = [{"inner": [{"$from": 0}, 1]} for _ in range(20_000)]
    async with Yard(tools=[Bench(), count]) as yard:
        answer = await yard.call(
            "run_chain", {"steps": [ADD, {"tool_id": "count", "args": {"values": nested}}], "final_only": True}
        )

    assert answer.data == {"final": 20_000}
