"""Calls that a rule asks about wait for a person, and run exactly once when they are approved."""

import asyncio
from pathlib import Path
from typing import Any

from callyard import Call, Caller, Envelope, Limits, Operation, QueueSettings, SqliteStore, Yard, tool
from callyard.jobs.stored import StoredJobs
from callyard.policy.approvals import Approvals
from callyard.policy.settings import Predicate, Rule

ASK = Rule(decision="ask", operations=(Operation.DESTROY,), reason="It deletes something.")
QUICK = Limits(approval_hold_s=0.01)


class Bin:
    """A tool that destroys, and what it destroyed."""

    def __init__(self) -> None:
        self.gone: list[Any] = []

    def tool(self) -> Any:
        @tool(operation="destroy", aliases=("wipe",))
        async def delete(name: str, count: int = 1) -> str:
            """Delete something."""
            self.gone.append((name, count))
            return f"deleted {name}"

        return delete

    def note(self) -> Any:
        @tool
        async def note(text: str) -> str:
            """Note something."""
            self.gone.append(text)
            return text

        return note


async def approve_next(yard: Yard, *, decision: Any = "approve", reason: str = "") -> str:
    """Decide about the next pending approval, as an operator."""
    approvals = Approvals(yard.store)
    approval = await approvals.watch(set())
    await approvals.decide(approval.id, decision, by="user:test", reason=reason)
    return approval.id


async def test_an_asked_call_is_held_and_resumes_with_the_real_result() -> None:
    bin_ = Bin()
    async with Yard(tools=[bin_.tool()], rules=[ASK]) as yard:
        call = asyncio.create_task(yard.call("delete", {"name": "a"}))
        await approve_next(yard)
        answer = await call

    assert answer.data == "deleted a"
    assert bin_.gone == [("a", 1)]


async def test_after_the_hold_the_same_call_runs_once_it_is_approved() -> None:
    bin_ = Bin()
    async with Yard(tools=[bin_.tool()], rules=[ASK], limits=QUICK) as yard:
        first = await yard.call("delete", {"name": "a"})
        again = await yard.call("delete", {"count": 1, "name": "a"})
        assert first.data["status"] == again.data["status"] == "approval_required"
        assert first.data["approval_id"] == again.data["approval_id"]
        assert bin_.gone == []
        await Approvals(yard.store).decide(first.data["approval_id"], "approve", by="user:test")
        assert (await yard.call("delete", {"name": "a"})).data == "deleted a"
        assert (await yard.call("delete", {"name": "a"})).data["status"] == "approval_required"

    assert bin_.gone == [("a", 1)]


async def test_a_denied_call_is_denied_with_the_reason_until_the_denial_expires() -> None:
    bin_ = Bin()
    async with Yard(tools=[bin_.tool()], rules=[ASK]) as yard:
        call = asyncio.create_task(yard.call("delete", {"name": "a"}))
        await approve_next(yard, decision="deny", reason="Not on a Friday.")
        answers = [await call, await yard.call("delete", {"name": "a"})]

    for answer in answers:
        assert answer.error is not None
        assert (answer.error.code, answer.error.details["reason"], answer.error.may_have_run) == (
            "approval_denied",
            "denied",
            False,
        )
        assert "Not on a Friday." in answer.error.message
    assert bin_.gone == []


async def test_run_tool_and_a_background_job_take_the_same_approval() -> None:
    bin_ = Bin()
    async with Yard(tools=[bin_.tool()], rules=[ASK], limits=QUICK) as yard:
        held = await yard.call("run_tool", {"tool_id": "wipe", "args": {"name": "a"}})
        await Approvals(yard.store).decide(held.data["approval_id"], "approve", by="user:test")
        started = await yard.call("run_tool", {"tool_id": "delete", "args": {"name": "a"}, "background": True})
        job = await yard.call("wait_job", {"job_id": started.data["job_id"]})

    assert job.data["result"]["data"] == "deleted a"
    assert bin_.gone == [("a", 1)]


async def test_a_rule_may_allow_by_argument_and_caller_before_another_asks() -> None:
    bin_ = Bin()
    rules = [
        Rule(decision="deny", callers=("guest*",)),
        Rule(decision="allow", tools=("del*",), when=(Predicate(pointer="/count", less_than=3),)),
        ASK,
    ]
    async with Yard(tools=[bin_.tool()], rules=rules, limits=QUICK) as yard:
        allowed = await yard.call("delete", {"name": "a", "count": 2})
        asked = await yard.call("delete", {"name": "a", "count": 3})
        denied = await yard.call("delete", {"name": "a"}, caller=Caller(identity="guest7"))

    assert allowed.data == "deleted a"
    assert asked.data["status"] == "approval_required"
    assert denied.error is not None
    assert (denied.error.code, denied.error.details["reason"]) == ("permission_denied", "denied_by_rule")


async def test_middleware_that_rewrites_arguments_is_refused_and_the_approval_is_not_spent() -> None:
    bin_ = Bin()

    def rewrite(handler: Any) -> Any:
        async def changed(call: Call) -> object:
            call.arguments = {**call.arguments, "name": "everything"}
            return await handler(call)

        return changed

    async with Yard(tools=[bin_.tool()], rules=[ASK], middleware=[rewrite]) as yard:
        call = asyncio.create_task(yard.call("delete", {"name": "a"}))
        approval_id = await approve_next(yard)
        answer = await call
        approval = await Approvals(yard.store).get(approval_id)

    assert answer.error is not None
    assert (answer.error.code, answer.error.details["reason"], answer.error.may_have_run) == (
        "approval_denied",
        "arguments_changed",
        False,
    )
    assert approval.status == "approved"
    assert bin_.gone == []


async def test_two_retries_at_once_run_once() -> None:
    bin_ = Bin()
    async with Yard(tools=[bin_.tool()], rules=[ASK], limits=QUICK) as yard:
        held = await yard.call("delete", {"name": "a"})
        await Approvals(yard.store).decide(held.data["approval_id"], "approve", by="user:test")
        answers: list[Envelope] = await asyncio.gather(*(yard.call("delete", {"name": "a"}) for _ in range(10)))

    assert sum(answer.data == "deleted a" for answer in answers) == 1
    assert bin_.gone == [("a", 1)]


async def test_a_chain_is_asked_about_known_steps_before_the_first_one_runs() -> None:
    bin_ = Bin()
    steps = [{"tool_id": "note", "args": {"text": "x"}}, {"tool_id": "delete", "args": {"name": "a"}}]
    async with Yard(tools=[bin_.tool(), bin_.note()], rules=[ASK]) as yard:
        call = asyncio.create_task(yard.call("run_chain", {"steps": steps}))
        await Approvals(yard.store).watch(set())
        assert bin_.gone == []
        await approve_next(yard)
        answer = await call

    assert [result["data"] for result in answer.data["results"]] == ["x", "deleted a"]
    assert bin_.gone == ["x", ("a", 1)]


async def test_a_chain_held_at_a_step_becomes_a_job_and_is_not_run_again() -> None:
    bin_ = Bin()
    steps = [{"tool_id": "note", "args": {"text": "x"}}, {"tool_id": "delete", "args": {"name": {"$from": 0}}}]
    async with Yard(tools=[bin_.tool(), bin_.note()], rules=[ASK], limits=QUICK) as yard:
        answer = await yard.call("run_tool", {"tool_id": "run_chain", "args": {"steps": steps}})
        assert answer.data["status"] == "approval_required"
        job = await yard.call("get_job", {"job_id": answer.data["job_id"]})
        assert job.data["status"] == "working"
        assert bin_.gone == ["x"]
        await Approvals(yard.store).decide(answer.data["approval_id"], "approve", by="user:test")
        job = await yard.call("wait_job", {"job_id": answer.data["job_id"]})

    assert job.data["result"]["data"]["final"] == "deleted x"
    assert bin_.gone == ["x", ("x", 1)]


async def test_a_chain_in_a_chain_is_held_as_one_job() -> None:
    bin_ = Bin()
    inner = {"steps": [{"tool_id": "run_tool", "args": {"tool_id": "delete", "args": {"name": "a"}}}]}
    async with Yard(tools=[bin_.tool(), bin_.note()], rules=[ASK], limits=QUICK) as yard:
        answer = await yard.call("run_chain", {"steps": [{"tool_id": "run_chain", "args": inner}]})
        await Approvals(yard.store).decide(answer.data["approval_id"], "deny", by="user:test", reason="No.")
        job = await yard.call("wait_job", {"job_id": answer.data["job_id"]})

    assert job.data["result"]["error"]["code"] == "chain_step_failed"
    assert bin_.gone == []


async def test_a_caller_that_goes_away_takes_its_chain_along() -> None:
    bin_ = Bin()
    steps = [{"tool_id": "delete", "args": {"name": "a"}}]
    async with Yard(tools=[bin_.tool()], rules=[ASK]) as yard:
        call = asyncio.create_task(yard.call("run_chain", {"steps": steps}))
        approval = await Approvals(yard.store).watch(set())
        call.cancel()
        await asyncio.wait({call})
        await Approvals(yard.store).decide(approval.id, "approve", by="user:test")
        assert yard.calls_in_flight == 0

    assert bin_.gone == []


async def test_a_dry_run_tells_which_steps_ask() -> None:
    bin_ = Bin()
    rules = [Rule(decision="allow", tools=("delete",), when=(Predicate(pointer="/name", equals="a"),)), ASK]
    steps = [
        {"tool_id": "note", "args": {"text": "x"}},
        {"tool_id": "delete", "args": {"name": "a"}},
        {"tool_id": "delete", "args": {"name": "b"}},
        {"tool_id": "delete", "args": {"name": {"$from": 0}}},
    ]
    async with Yard(tools=[bin_.tool(), bin_.note()], rules=rules) as yard:
        answer = await yard.call("run_chain", {"steps": steps, "dry_run": True})

    assert [step["needs_approval"] for step in answer.data["plan"]] == [False, False, True, None]


async def test_a_chain_that_may_ask_needs_no_second_place_in_the_queue() -> None:
    bin_ = Bin()
    steps = [{"tool_id": "note", "args": {"text": "x"}}, {"tool_id": "delete", "args": {"name": "a"}}]
    async with Yard(tools=[bin_.tool(), bin_.note()], rules=[ASK], queue=QueueSettings(calls=1)) as yard:
        call = asyncio.create_task(yard.call("run_tool", {"tool_id": "run_chain", "args": {"steps": steps}}))
        await approve_next(yard)
        answer = await asyncio.wait_for(call, 60)

    assert answer.data["final"] == "deleted a"


async def test_a_call_is_not_held_for_longer_than_its_client_waits() -> None:
    bin_ = Bin()
    async with Yard(tools=[bin_.tool()], rules=[ASK], limits=Limits(client_timeout=0.05)) as yard:
        answer = await asyncio.wait_for(yard.call("delete", {"name": "a"}, caller=Caller(client="hasty")), 60)

    assert answer.data["status"] == "approval_required"


async def test_rules_can_be_replaced_while_the_yard_is_open() -> None:
    bin_ = Bin()
    async with Yard(tools=[bin_.tool()], limits=QUICK) as yard:
        assert (await yard.call("delete", {"name": "a"})).success
        yard.use_rules([ASK])
        asked = await yard.call("delete", {"name": "a"})
        yard.use_rules([Rule(decision="deny")], instead_of=[ASK])
        denied = await yard.call("delete", {"name": "a"})
        yard.use_rules([], instead_of=[ASK])
        allowed = await yard.call("delete", {"name": "a"})

    assert asked.data["status"] == "approval_required"
    assert denied.error is not None
    assert allowed.data == "deleted a"


async def test_middleware_cannot_change_arguments_that_a_rule_allowed_into_others() -> None:
    bin_ = Bin()

    def rewrite(handler: Any) -> Any:
        async def changed(call: Call) -> object:
            if call.spec.name == "delete":
                call.arguments = {**call.arguments, "count": 100}
            return await handler(call)

        return changed

    rules = [Rule(decision="allow", when=(Predicate(pointer="/count", less_than=3),)), ASK]
    async with Yard(tools=[bin_.tool()], rules=rules, middleware=[rewrite]) as yard:
        answer = await yard.call("delete", {"name": "a", "count": 1})

    assert answer.error is not None
    assert (answer.error.code, answer.error.details["reason"]) == ("approval_denied", "arguments_changed")
    assert bin_.gone == []


async def test_a_chain_that_is_interrupted_keeps_its_results(tmp_path: Path) -> None:
    bin_ = Bin()
    steps = [{"tool_id": "note", "args": {"text": "x"}}, {"tool_id": "delete", "args": {"name": {"$from": 0}}}]

    def yard() -> Yard:
        return Yard(tools=[bin_.tool(), bin_.note()], rules=[ASK], limits=QUICK, store=SqliteStore(tmp_path / "store"))

    async with yard() as first:
        answer = await first.call("run_chain", {"steps": steps})
    async with yard() as second:
        job = await second.call("wait_job", {"job_id": answer.data["job_id"]})

    assert job.data["status"] == "interrupted"
    assert [result["data"] for result in job.data["result"]["data"]["results"]] == ["x"]
    assert bin_.gone == ["x"]


async def test_another_process_can_read_a_chain_that_waits(tmp_path: Path) -> None:
    bin_ = Bin()
    steps = [{"tool_id": "note", "args": {"text": "x"}}, {"tool_id": "delete", "args": {"name": {"$from": 0}}}]
    async with Yard(
        tools=[bin_.tool(), bin_.note()], rules=[ASK], limits=QUICK, store=SqliteStore(tmp_path / "store")
    ) as yard:
        answer = await yard.call("run_chain", {"steps": steps})
        store = SqliteStore(tmp_path / "store")
        job = await StoredJobs(store).get(answer.data["job_id"], None)
        await store.close()

    assert (job.status, [result["data"] for result in job.partial["results"]]) == ("working", ["x"])
