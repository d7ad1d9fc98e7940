"""Programs that try to bypass an approval: by other names, metatools, forged frames or repetition. None does."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attacks import SNIPPETS
from backends import require

from callyard import Caller, Envelope, Limits, Operation, RuntimeSettings, Yard, tool
from callyard.policy.approvals import Approvals
from callyard.policy.settings import Rule
from callyard.testing import FakeProvider

ASK = Rule(decision="ask", operations=(Operation.DESTROY,))
LIMITS = Limits(approval_hold_s=0.001, jobs=10_000)
SANDBOX = RuntimeSettings(enabled=True, backend="bubblewrap")
ARGUMENTS = "{'name': 'a'}"
STEP = "{'tool_id': 'delete', 'args': {'name': 'a'}}"
TRY = "async def attempt(call):\n    try: return await call\n    except ToolError as error: return error.error\n"
FORGE = f"import asyncio\ndriver = {SNIPPETS['$DRIVER']}\n"
FRAME = "'t': 'call', 'n': driver.run_id, 'args': {'name': 'a'}"
AWAIT = "await asyncio.sleep(0.3)"
WORKING = {
    "by id": f"await call_tool('delete', {ARGUMENTS})",
    "by path": "await tools.shop.delete(name='a')",
    "by alias": f"await call_tool('wipe', {ARGUMENTS})",
    "run_tool": f"await call_tool('run_tool', {STEP})",
    "run_tool by path": "await tools.run_tool(tool_id='delete', args={'name': 'a'})",
    "run_tool twice": f"await call_tool('run_tool', {{'tool_id': 'run_tool', 'args': {STEP}}})",
    "call_tool as a tool": f"await call_tool('call_tool', {STEP})",
    "a job": f"await call_tool('run_tool', {{**{STEP}, 'background': True}})\nimport asyncio\n{AWAIT}",
    "a chain": f"await run_chain([{STEP}])",
    "a parallel chain": f"await run_chain([{{**{STEP}, 'parallel': 'p'}}, {{**{STEP}, 'parallel': 'p'}}])",
    "a chain in a chain": f"await run_chain([{{'tool_id': 'run_chain', 'args': {{'steps': [{STEP}]}}}}])",
    "a chain as a job": (
        f"await call_tool('run_tool', {{'tool_id': 'run_chain', 'args': {{'steps': [{STEP}]}}, 'background': True}})\n"
        f"import asyncio\n{AWAIT}"
    ),
    "side by side": f"import asyncio\nawait asyncio.gather(*[attempt(call_tool('delete', {ARGUMENTS})) for n in "
    "range(20)])",
    "again and again": f"for n in range(20): await attempt(call_tool('delete', {ARGUMENTS}))",
    "given up and tried again": (
        "import asyncio\nfor n in range(5):\n    try: await asyncio.wait_for(attempt(call_tool('delete', "
        f"{ARGUMENTS})), 0.02)\n"
        "    except TimeoutError: pass\n"
        f"await asyncio.wait([asyncio.ensure_future(attempt(call_tool('delete', {ARGUMENTS})))], timeout=0.3)"
    ),
    "not waited for": f"import asyncio\nasyncio.ensure_future(attempt(call_tool('delete', {ARGUMENTS})))\n{AWAIT}",
    "from a thread": (
        f"{FORGE}import threading\nthreading.Thread(target=lambda: asyncio.run_coroutine_threadsafe("
        f"attempt(call_tool('delete', {ARGUMENTS})), driver.loop)).start()\n{AWAIT}"
    ),
    "a frame": f"{FORGE}driver.pipe.send({{'id': 1, 'name': 'delete', {FRAME}}})\n{AWAIT}",
    "a frame with a path": (
        f"{FORGE}driver.pipe.send({{'id': 1, 'path': True, 'name': 'shop.delete', {FRAME}}})\n{AWAIT}"
    ),
    "a frame that says more": (
        f"{FORGE}driver.pipe.send({{'id': 1, 'name': 'delete', 'approved': True, 'approval_id': 'a_1', "
        f"'ok': True, {FRAME}}})\n{AWAIT}"
    ),
    "frames of one number": (
        f"{FORGE}for n in range(3):\n    driver.pipe.send({{'id': 7, 'name': 'delete', {FRAME}}})\n    await "
        "asyncio.sleep(0.2)"
    ),
    "a frame that is dropped": (
        f"{FORGE}driver.pipe.send({{'id': 1, 'name': 'delete', {FRAME}}})\n{AWAIT}\n"
        "driver.pipe.send({'t': 'drop', 'n': driver.run_id, 'id': 1})"
    ),
    "a list that a handle holds": (
        "handle = (await call_tool('run_tool', {'tool_id': 'names', 'args': {}}))\n"
        "await call_tool('delete', {'name': handle[0] if isinstance(handle, list) else {'$ref': "
        "handle['handle'], 'path': '/0'}})"
    ),
}
"""Dodges that reach the tool where no rule asks."""
USELESS = {
    "a program in a program": "await call_tool('execute_code', "
    f"{{'code': \"await call_tool('delete', {ARGUMENTS})\"}})",
    "a program by run_tool": (
        "await call_tool('run_tool', {'tool_id': 'execute_code', 'args': {'code': \"await call_tool('delete', "
        "{'name': 'a'})\"}})"
    ),
    "a program in a chain": (
        "await run_chain([{'tool_id': 'execute_code', 'args': {'code': \"await call_tool('delete', {'name': 'a'})\"}}])"
    ),
    "spellings": (
        "for name in ('Delete', ' delete', 'delete ', 'delete\\n', 'delete\\0', 'de\\u200blete', "
        "'\\uff44elete', '//delete'):\n"
        f"    await attempt(call_tool(name, {ARGUMENTS}))"
    ),
    "an approval of its own": (
        f"held = await attempt(call_tool('delete', {ARGUMENTS}))\n"
        "for name in ('approve', 'approvals', 'decide', 'approve_call', 'resolve_approval'):\n"
        "    await attempt(call_tool(name, {'approval_id': str(held), 'decision': 'approve'}))\n"
        "await attempt(call_tool('delete', {'name': 'a', 'approval_id': str(held), 'approved': True, '_meta': "
        "{'approved': True}}))"
    ),
    "a frame of another run": (
        f"{FORGE}driver.pipe.send({{**{{'id': 1, 'name': 'delete', {FRAME}}}, 'n': 'x'}})\n{AWAIT}"
    ),
    "a call after the end": (
        f"{FORGE}driver.pipe.send({{'t': 'done', 'n': driver.run_id, 'ok': True, 'v': 1}})\n"
        f"driver.pipe.send({{'id': 1, 'name': 'delete', {FRAME}}})\n{AWAIT}"
    ),
}
"""Dodges that reach nothing, with or without a rule."""
DODGES = {**WORKING, **USELESS}


class Target:
    """A yard with a tool that destroys, and what it destroyed."""

    def __init__(self, yard: Yard, gone: list[Any]) -> None:
        self.yard, self.gone = yard, gone

    async def run(self, code: str, caller: Caller) -> Envelope:
        """Run a program; if it became a job, wait a moment and cancel it."""
        answer = await self.yard.call("execute_code", {"code": f"{TRY}{code}", "timeout_ms": 5000}, caller=caller)
        for job in (await self.yard.call("list_jobs", {"limit": 100}, caller=caller)).data["jobs"]:
            await self.yard.call("wait_job", {"job_id": job["job_id"], "timeout_s": 0.3}, caller=caller)
            await self.yard.call("cancel_job", {"job_id": job["job_id"]}, caller=caller)
        return answer

    async def decide(self, decision: Any, caller: Caller, **arguments: Any) -> None:
        """Have a call of a caller decided about, and not used yet."""
        held = await self.yard.call("delete", arguments, caller=caller)
        await Approvals(self.yard.store).decide(held.data["approval_id"], decision, by="user:test")


@asynccontextmanager
async def target(**options: Any) -> AsyncGenerator[Target]:
    await require("bubblewrap")
    gone: list[Any] = []

    @tool(operation="destroy", aliases=("wipe",))
    async def delete(name: str, count: int = 1) -> str:
        """Delete something."""
        gone.append((name, count))
        return f"deleted {name}"

    @tool(operation="query")
    async def names() -> list[str]:
        """Return many names."""
        return ["a"] * 100

    settings: dict[str, Any] = {"rules": [ASK], "limits": LIMITS, "runtime": SANDBOX, **options}
    async with Yard(providers=[FakeProvider("shop", [delete, names])], **settings) as yard:
        yield Target(yard, gone)


async def test_no_program_gets_past_an_approval() -> None:
    async with target() as aim:
        for name, code in DODGES.items():
            await aim.run(code, Caller(identity=name))
            assert aim.gone == [], name

    assert aim.gone == []


async def test_without_the_rule_these_programs_run_the_tool() -> None:
    async with target(rules=[]) as aim:
        for name, code in WORKING.items():
            aim.gone.clear()
            answer = await aim.run(code, Caller(identity=name))
            assert aim.gone, (name, answer)
        aim.gone.clear()
        for name, code in USELESS.items():
            if name != "an approval of its own":  # the plain call in it runs
                await aim.run(code, Caller(identity=name))
                assert aim.gone == [], name


@pytest.mark.parametrize("decision", ["deny", "approve"])
async def test_a_decision_about_other_arguments_lets_no_program_run(decision: str) -> None:
    async with target() as aim:
        for name, code in DODGES.items():
            caller = Caller(identity=name)
            await aim.decide(decision, caller, name="b")
            await aim.decide(decision, caller, name="a", count=2)
            await aim.run(code, caller)
            assert aim.gone == [], name

    assert aim.gone == []


async def test_a_denied_call_runs_in_no_program() -> None:
    async with target() as aim:
        for name, code in DODGES.items():
            caller = Caller(identity=name)
            await aim.decide("deny", caller, name="a")
            await aim.run(code, caller)
            assert aim.gone == [], name

    assert aim.gone == []


async def test_one_approval_lets_a_call_run_once_however_often_a_program_makes_it() -> None:
    async with target() as aim:
        for name in (
            "side by side",
            "again and again",
            "given up and tried again",
            "frames of one number",
            "a parallel chain",
        ):
            caller = Caller(identity=name)
            await aim.decide("approve", caller, name="a")
            await aim.run(DODGES[name], caller)
            assert len(aim.gone) <= 1, name
            aim.gone.clear()


async def test_a_program_that_is_cancelled_while_a_call_waits_runs_nothing() -> None:
    async with target(limits=Limits(approval_hold_s=30, jobs=10_000)) as aim:
        caller = Caller(identity="agent")
        call = asyncio.create_task(
            aim.yard.call("execute_code", {"code": f"{TRY}{WORKING['side by side']}"}, caller=caller)
        )
        approvals = Approvals(aim.yard.store)
        approval = await asyncio.wait_for(approvals.watch(set()), 60)
        call.cancel()
        await asyncio.wait([call])
        await approvals.decide(approval.id, "approve", by="user:test")

    assert aim.gone == []
