"""More than a thousand attempts to get past an approval: none runs."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from backends import require
from table_tests import every_row

from callyard import Call, Caller, Envelope, Limits, Operation, Profile, RuntimeSettings, Yard, tool
from callyard.dispatch.call import Handler
from callyard.policy.approvals import Approvals
from callyard.policy.settings import Rule
from callyard.testing import FakeClock, FakeProvider

ASK = Rule(decision="ask", operations=(Operation.DESTROY,))
LIMITS = Limits(approval_hold_s=0.001, jobs=10_000, approval_ttl_s=7200)
SANDBOX = RuntimeSettings(enabled=True, backend="bubblewrap")
OTHER_PROFILE = Profile(name="other")
Arguments = dict[str, Any]

SPELLINGS: dict[str, Arguments] = {
    "as it is": {"name": "a", "count": 1},
    "another order": {"count": 1, "name": "a"},
    "a number as a string": {"name": "a", "count": "1"},
    "a default left out": {"name": "a"},
    "a float": {"name": "a", "count": 1.0},
    "escaped": {"name": "\u0061", "count": 1},
}
NAMES = ("delete", "wipe")
NOTE = {"tool_id": "note", "args": {"text": "x"}}
WRAPS: dict[str, Callable[[str, Arguments], tuple[str, Arguments]]] = {
    "direct": lambda name, args: (name, args),
    "run_tool": lambda name, args: ("run_tool", {"tool_id": name, "args": args}),
    "call_tool": lambda name, args: ("call_tool", {"tool_id": name, "args": args}),
    "wrapped twice": lambda name, args: ("run_tool", {"tool_id": "run_tool", "args": {"tool_id": name, "args": args}}),
    "job": lambda name, args: ("run_tool", {"tool_id": name, "args": args, "background": True}),
    "chain": lambda name, args: ("run_chain", {"steps": [NOTE, {"tool_id": name, "args": args}]}),
    "parallel": lambda name, args: (
        "run_chain",
        {"steps": [{**NOTE, "parallel": "p"}, {"tool_id": name, "args": args, "parallel": "p"}]},
    ),
    "nested chain": lambda name, args: (
        "run_chain",
        {"steps": [{"tool_id": "run_chain", "args": {"steps": [{"tool_id": name, "args": args}]}}]},
    ),
    "chain of run_tool": lambda name, args: (
        "run_chain",
        {"steps": [{"tool_id": "run_tool", "args": {"tool_id": name, "args": args}}]},
    ),
    "a chain as a job": lambda name, args: (
        "run_tool",
        {"tool_id": "run_chain", "args": {"steps": [{"tool_id": name, "args": args}]}, "background": True},
    ),
}
ATTEMPTS = list(itertools.product(SPELLINGS, NAMES, WRAPS))


class Target:
    """A yard with a tool that destroys, and what it destroyed."""

    def __init__(self, yard: Yard, provider: FakeProvider, gone: list[Any]) -> None:
        self.yard = yard
        self.provider = provider
        self.gone = gone
        self.clock = FakeClock()
        self.approvals = Approvals(yard.store, clock=self.clock)
        if yard.gate is not None:
            self.approvals = yard.gate.approvals
            self.approvals.clock = self.clock

    async def approve(self, caller: Caller, name: str = "a") -> str:
        """Have the call of a caller approved, and not used yet."""
        held = await self.yard.call("delete", {"name": name}, caller=caller)
        assert held.data["status"] == "approval_required"
        await self.approvals.decide(held.data["approval_id"], "approve", by="user:test")
        return held.data["approval_id"]

    async def attempt(self, caller: Caller, spelling: str, name: str, wrap: str) -> Envelope:
        tool_id, arguments = WRAPS[wrap](name, SPELLINGS[spelling])
        text = json.dumps(arguments)
        if spelling == "escaped":
            text = text.replace('"a"', '"\\u0061"')
        return await self.yard.call(tool_id, msgspec.Raw(text.encode()), caller=caller)

    async def finish(self, answer: Envelope, caller: Caller) -> None:
        """Wait for the job that an attempt started, if it did."""
        data: Any = answer.data
        if isinstance(data, dict) and "job_id" in data:
            await self.yard.call("wait_job", {"job_id": data["job_id"], "timeout_s": 1}, caller=caller)


def tools_of(gone: list[Any], text: str = "Delete something.") -> list[Any]:
    @tool(operation="destroy", aliases=("wipe",), description=text)
    async def delete(name: str, count: int = 1) -> str:
        gone.append((name, count))
        return f"deleted {name}"

    @tool(operation="query")
    async def note(text: str) -> str:
        """Return a text."""
        return text

    return [delete, note]


@asynccontextmanager
async def target(**options: Any) -> AsyncGenerator[Target]:
    gone: list[Any] = []
    provider = FakeProvider("shop", tools_of(gone))
    settings: dict[str, Any] = {"rules": [ASK], "limits": LIMITS, "profiles": [OTHER_PROFILE], **options}
    async with Yard(providers=[provider], **settings) as yard:
        yield Target(yard, provider, gone)


async def nothing(_: Target, caller: Caller) -> Caller:
    """Have nothing approved."""
    return caller


async def denied(aim: Target, caller: Caller) -> Caller:
    """Have the very call denied."""
    held = await aim.yard.call("delete", {"name": "a"}, caller=caller)
    await aim.approvals.decide(held.data["approval_id"], "deny", by="user:test")
    return caller


async def spent(aim: Target, caller: Caller) -> Caller:
    """Have the very call approved, and use that."""
    await aim.approve(caller)
    assert (await aim.yard.call("delete", {"name": "a"}, caller=caller)).data == "deleted a"
    return caller


async def expired(aim: Target, caller: Caller) -> Caller:
    """Let an approval expire."""
    await aim.approve(caller)
    aim.clock.advance(LIMITS.approval_ttl_s + 1)
    return caller


async def of_another_argument(aim: Target, caller: Caller) -> Caller:
    """Have another argument approved."""
    await aim.approve(caller, "b")
    return caller


async def of_another_scope(aim: Target, caller: Caller) -> Caller:
    """Have the call approved in another conversation."""
    await aim.approve(caller)
    return Caller(identity=caller.identity, scope="other")


async def of_another_identity(aim: Target, caller: Caller) -> Caller:
    """Have the call of somebody else approved."""
    await aim.approve(Caller(identity=f"{caller.identity}:", scope=""))
    return caller


async def of_another_profile(aim: Target, caller: Caller) -> Caller:
    """Have the call approved under another profile."""
    await aim.approve(caller)
    return Caller(identity=caller.identity, profile=OTHER_PROFILE)


async def of_another_definition(aim: Target, caller: Caller) -> Caller:
    """Have the call approved before the definition changes."""
    await aim.approve(caller)
    aim.provider.change(tools_of(aim.gone, f"Delete something else than {caller.identity}."))
    return caller


Before = Callable[[Target, Caller], Awaitable[Caller]]
STATES: list[Before] = [
    nothing,
    denied,
    spent,
    expired,
    of_another_argument,
    of_another_scope,
    of_another_identity,
    of_another_profile,
    of_another_definition,
]


def test_there_are_a_thousand_attempts() -> None:
    assert len(ATTEMPTS) * len(STATES) > 1000


@every_row("before", STATES)
async def test_no_attempt_runs(before: Before) -> None:
    async with target() as aim:
        for number, (spelling, name, wrap) in enumerate(ATTEMPTS):
            caller = await before(aim, Caller(identity=f"agent{number}"))
            ran = len(aim.gone)
            answer = await aim.attempt(caller, spelling, name, wrap)
            assert len(aim.gone) == ran, (spelling, name, wrap)
            assert answer.error is not None or answer.data["status"] in {"approval_required", "working"}, answer
        known = len(aim.gone)

    assert len(aim.gone) == known == (len(ATTEMPTS) if before is spent else 0)


PROGRAM = """
import asyncio
async def attempt(name, args):
    try:
        return await asyncio.wait_for(call_tool(name, args), 0.2)
    except (ToolError, TimeoutError) as error:
        return getattr(error, "code", "waits")
await asyncio.gather(*[attempt(*one) for one in inputs["attempts"]])
"""


def in_programs(spellings: Iterable[str]) -> list[tuple[str, Arguments]]:
    """Return the attempts that one program makes."""
    return [WRAPS[wrap](name, SPELLINGS[spelling]) for spelling in spellings for name in NAMES for wrap in WRAPS]


@every_row("before", STATES)
async def test_no_attempt_of_a_program_runs(before: Before) -> None:
    await require("bubblewrap")
    async with target(runtime=SANDBOX) as aim:
        for number, spelling in enumerate(SPELLINGS):
            caller = await before(aim, Caller(identity=f"agent{number}"))
            ran = len(aim.gone)
            arguments = {"code": PROGRAM, "inputs": {"attempts": in_programs([spelling])}}
            answer = await aim.yard.call("execute_code", arguments, caller=caller)
            await aim.finish(answer, caller)
            assert len(aim.gone) == ran, spelling


async def test_without_the_rule_every_attempt_of_a_program_runs() -> None:
    await require("bubblewrap")
    async with target(rules=[], runtime=SANDBOX) as aim:
        code = "for one in inputs['attempts']:\n    await call_tool(*one)"
        answer = await aim.yard.call("execute_code", {"code": code, "inputs": {"attempts": in_programs(SPELLINGS)}})
        jobs = (await aim.yard.call("list_jobs", {"limit": 100})).data["jobs"]
        for job in jobs:
            await aim.yard.call("wait_job", {"job_id": job["job_id"]})

    assert answer.success, answer.error
    assert len(aim.gone) == len(ATTEMPTS)


async def test_without_the_rule_every_attempt_runs() -> None:
    async with target(rules=[]) as aim:
        for spelling, name, wrap in ATTEMPTS:
            answer = await aim.attempt(Caller(identity="agent"), spelling, name, wrap)
            await aim.finish(answer, Caller(identity="agent"))

    assert len(aim.gone) == len(ATTEMPTS)


@every_row("wrap", WRAPS)
async def test_of_many_retries_at_once_one_runs(wrap: str) -> None:
    async with target() as aim:
        caller = Caller(identity="agent")
        await aim.approve(caller)
        await asyncio.gather(*(aim.attempt(caller, spelling, name, wrap) for spelling in SPELLINGS for name in NAMES))
        for job in (await aim.yard.call("list_jobs", {"limit": 100}, caller=caller)).data["jobs"]:
            await aim.yard.call("wait_job", {"job_id": job["job_id"], "timeout_s": 0.01}, caller=caller)

    assert aim.gone == [("a", 1)]


def rewritten(change: Callable[[Call], None]) -> Callable[[Handler], Handler]:
    def wrap(handler: Handler) -> Handler:
        async def run(call: Call) -> object:
            if call.spec.name == "delete":
                change(call)
            return await handler(call)

        return run

    return wrap


def replace_all(call: Call) -> None:
    call.arguments = {"name": "everything", "count": 9}


def change_one(call: Call) -> None:
    call.arguments["count"] = 1000


def add_one(call: Call) -> None:
    call.arguments["count"] += 1


@every_row("wrap", WRAPS)
@every_row("change", [replace_all, change_one, add_one])
async def test_arguments_that_middleware_rewrites_do_not_run(change: Callable[[Call], None], wrap: str) -> None:
    async with target(middleware=[rewritten(change)]) as aim:
        caller = Caller(identity="agent")
        approval_id = await aim.approve(caller)
        answer = await aim.attempt(caller, "as it is", "delete", wrap)
        await aim.finish(answer, caller)
        approval = await aim.approvals.get(approval_id)

    assert aim.gone == []
    assert approval.status == "approved"


async def test_a_reference_whose_value_changed_does_not_run() -> None:
    values = iter(["a", "b", "b"])
    gone: list[Any] = []

    @tool(operation="query")
    async def newest() -> str:
        """Return the newest name."""
        return next(values)

    steps = [{"tool_id": "newest"}, {"tool_id": "delete", "args": {"name": {"$from": 0}}}]
    async with Yard(tools=[*tools_of(gone), newest], rules=[ASK], limits=LIMITS) as yard:
        approvals = Approvals(yard.store)
        first = await yard.call("run_chain", {"steps": steps})
        await yard.call("cancel_job", {"job_id": first.data["job_id"]})
        await approvals.decide(first.data["approval_id"], "approve", by="user:test")
        second = await yard.call("run_chain", {"steps": steps})

    assert second.data["status"] == "approval_required"
    assert second.data["approval_id"] != first.data["approval_id"]
    assert gone == []


async def test_a_stored_result_that_changed_does_not_run() -> None:
    gone: list[Any] = []

    @tool(operation="query")
    async def names() -> list[str]:
        """Return many names."""
        return ["a" * 100] * 10

    async with Yard(
        tools=[*tools_of(gone), names], rules=[ASK], limits=Limits(approval_hold_s=0.001, result_characters=500)
    ) as yard:
        handle = (await yard.call("names")).data["handle"]
        call = {"name": {"$ref": handle, "path": "/0"}}
        first = await yard.call("delete", call)
        await Approvals(yard.store).decide(first.data["approval_id"], "approve", by="user:test")
        for key in await yard.store.keys(""):
            value = await yard.store.get(key)
            if value is not None and b"a" * 100 in value and not key.startswith("approval"):
                await yard.store.put(key, value.replace(b"a" * 100, b"b" * 100))
        second = await yard.call("delete", call)

    assert second.data["status"] == "approval_required"
    assert second.data["approval_id"] != first.data["approval_id"]
    assert gone == []


async def test_another_session_needs_another_approval() -> None:
    ended: list[str] = []

    @tool(operation="command")
    async def start(call: Call) -> str:
        """Start a session."""
        return call.start_session().id

    @tool(operation="destroy", session="required")
    async def erase(call: Call) -> str:
        """Erase what a session holds."""
        assert call.session is not None
        ended.append(call.session.id)
        return "erased"

    async with Yard(tools=[start, erase], rules=[ASK], limits=LIMITS) as yard:
        first = (await yard.call("start")).data
        held = await yard.call("erase")
        await Approvals(yard.store).decide(held.data["approval_id"], "approve", by="user:test")
        await yard.call("start")
        again = await yard.call("erase", session=(await yard.call("start")).data)
        assert again.data["status"] == "approval_required"
        assert ended == []
        assert (await yard.call("erase", session=first)).data[
            "status"
        ] == "approval_required"  # the id is an argument now


async def test_a_caller_cannot_decide_about_its_own_call_whoever_it_is() -> None:
    async with target() as aim:
        agent = Caller(identity="agent", claims={"role": "operator"})
        held = await aim.yard.call("delete", {"name": "a"}, caller=agent)
        gate = aim.yard.gate
        assert gate is not None
        for operators in ([], ["agent"], ["claim:role=operator"]):
            gate._operators = frozenset(operators)  # pyright: ignore[reportPrivateUsage] - as settings would
            with pytest.raises(Exception, match=r"Only operators|Nobody decides"):
                await gate.decide(held.data["approval_id"], "approve", caller=agent)
        for name in ("approve", "approvals", "approve_call", "decide"):
            assert not (await aim.yard.call(name, {"approval_id": held.data["approval_id"]}, caller=agent)).success
        again = await aim.yard.call("delete", {"name": "a", "approval_id": held.data["approval_id"]}, caller=agent)
        assert again.error is not None

    assert aim.gone == []
