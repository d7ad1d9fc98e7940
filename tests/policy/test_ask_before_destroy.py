"""`ask_before_destroy` of a server or conversation: it holds for calls that come in there, and for all inside them."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from table_tests import every_row

from callyard import Call, Limits, Operation, Yard, asgi, tool
from callyard.inject import Conversation
from callyard.policy.settings import Rule
from callyard.state.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

QUICK = Limits(approval_hold_s=0.01)
HELD = "approval_required"


class Disk:
    """A yard with a tool that destroys, and one that calls it in a way of its own."""

    def __init__(self, way: "Way | None" = None, **options: Any) -> None:
        self.wiped = 0

        @tool(operation="destroy")
        def wipe() -> str:
            """Delete everything."""
            self.wiped += 1
            return "wiped"

        @tool(operation="command", idempotent=True)
        async def outer(call: Call) -> Any:
            """Call the tool that destroys."""
            assert way is not None
            return (await way(self, call)).data

        @tool(operation="command")
        def outer_in_thread(call: Call) -> Any:
            """Call the tool that destroys from a handler in a thread."""
            work = self.yard.call("wipe")
            return asyncio.run_coroutine_threadsafe(work, self.loop).result().data

        self.loop = asyncio.get_running_loop()
        options = {"limits": QUICK, **options}
        self.yard = Yard("disk", tools=[wipe, outer, outer_in_thread], **options)


Way = Callable[[Disk, Call], Awaitable[Any]]


def wipe_from_thread(disk: Disk) -> Any:
    """Call the tool that destroys from a thread, and wait for the answer."""
    return asyncio.run_coroutine_threadsafe(disk.yard.call("wipe"), disk.loop).result()


async def by_a_task(disk: Disk, call: Call) -> Any:
    """Call from a task that outlives the call which started it."""
    return await asyncio.create_task(later(disk, call))


async def later(disk: Disk, _: Call) -> Any:
    """Call after a turn of the loop."""
    await asyncio.sleep(0)
    return await disk.yard.call("wipe")


async def by_a_bare_thread(disk: Disk, _: Call) -> Any:
    """Call from a thread that has no context."""
    answers: list[Any] = []
    ended = asyncio.Event()

    def work() -> None:
        answers.append(wipe_from_thread(disk))
        disk.loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=work, daemon=True).start()
    await ended.wait()
    return answers[0]


async def by_a_program_of_the_host(disk: Disk, _: Call) -> Any:
    """Call in a conversation that the host opened without the default."""
    return await Conversation(disk.yard, ask_before_destroy=False).call("wipe")


WAYS: dict[str, Way] = {
    "the yard": lambda disk, _: disk.yard.call("wipe"),
    "the call": lambda _, call: call.invoke("wipe"),
    "a metatool": lambda disk, _: disk.yard.call("run_tool", {"tool_id": "wipe"}),
    "a chain": lambda disk, _: disk.yard.call("run_chain", {"steps": [{"tool_id": "wipe"}]}),
    "a job": lambda disk, _: disk.yard.call("run_tool", {"tool_id": "wipe", "background": True}),
    "a task": by_a_task,
    "a thread": lambda disk, _: asyncio.to_thread(wipe_from_thread, disk),
    "an executor": lambda disk, _: disk.loop.run_in_executor(None, wipe_from_thread, disk),
    "a bare thread": by_a_bare_thread,
    "another conversation": by_a_program_of_the_host,
}


async def test_asgi_and_conversations_leave_the_calls_of_the_program_itself_alone() -> None:
    disk = Disk()
    asgi(disk.yard)
    async with disk.yard as yard:
        conversation = Conversation(yard)
        held = await conversation.call("wipe")
        own = await yard.call("wipe")
        from_thread = await asyncio.to_thread(wipe_from_thread, disk)
        nested = await yard.call("outer_in_thread")
        unasked = await Conversation(yard, ask_before_destroy=False).call("wipe")

    assert (held.data["status"], own.data, from_thread.data) == (HELD, "wiped", "wiped")
    assert (nested.data, unasked.data, disk.wiped) == ("wiped", "wiped", 4)


@every_row("way", WAYS.values(), ids=WAYS)
async def test_everything_inside_a_call_that_asks_is_asked_about(way: Way) -> None:
    disk = Disk(way)
    async with disk.yard as yard:
        data: Any = (await Conversation(yard).call("outer")).data
        if data["status"] == "working":
            data = (await yard.call("wait_job", {"job_id": data["job_id"]})).data["result"]["data"]

    assert (data["status"], disk.wiped) == (HELD, 0)


async def test_a_handler_in_a_thread_is_asked_about_what_it_calls() -> None:
    disk = Disk()
    async with disk.yard as yard:
        answer = await Conversation(yard).call("outer_in_thread")

    assert (answer.data["status"], disk.wiped) == (HELD, 0)


async def test_the_programs_own_call_runs_while_another_one_waits_for_approval() -> None:
    disk = Disk(limits=Limits(approval_hold_s=60))
    async with disk.yard as yard:
        asked = asyncio.create_task(Conversation(yard).call("wipe"))
        assert yard.gate is not None
        while not await yard.gate.approvals.pending():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        own = await yard.call("wipe")
        contextvars.ContextVar[str]("of_a_framework").set("")
        from_thread = await asyncio.to_thread(wipe_from_thread, disk)
        asked.cancel()

    assert (own.data, from_thread.data, disk.wiped) == ("wiped", "wiped", 2)


async def test_rules_that_the_program_gave_to_the_yard_hold_for_its_own_calls() -> None:
    disk = Disk(rules=[Rule(decision="ask", operations=(Operation.DESTROY,))])
    async with disk.yard as yard:
        own = await yard.call("wipe")
        unasked = await Conversation(yard, ask_before_destroy=False).call("wipe")

    assert (own.data["status"], unasked.data["status"], disk.wiped) == (HELD, HELD, 0)


async def test_a_yard_that_always_asks_asks_its_own_program_too() -> None:
    disk = Disk()
    disk.yard.ask_before_destroy()
    asgi(disk.yard)
    async with disk.yard as yard:
        own = await yard.call("wipe")

    assert (own.data["status"], disk.wiped) == (HELD, 0)


async def test_descriptions_and_plans_say_what_holds_for_their_caller() -> None:
    disk = Disk()
    plan = {"steps": [{"tool_id": "wipe"}], "dry_run": True}
    async with disk.yard as yard:
        conversation = Conversation(yard)
        asked = await conversation.call("describe_tool", {"tool_id": "wipe"})
        own = await yard.call("describe_tool", {"tool_id": "wipe"})
        planned, own_plan = await conversation.call("run_chain", plan), await yard.call("run_chain", plan)

    assert asked.data["needs_approval"] is True
    assert "needs_approval" not in own.data
    assert [answer.data["plan"][0]["needs_approval"] for answer in (planned, own_plan)] == [True, False]


async def test_a_job_that_goes_on_in_another_process_asks_as_the_call_that_started_it(tmp_path: "Path") -> None:
    started = asyncio.Event()

    async def wait_or_wipe(disk: Disk, call: Call) -> Any:
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return await disk.yard.call("wipe")

    def disk() -> Disk:
        made = Disk(wait_or_wipe, store=SqliteStore(tmp_path / "store"))
        made.yard.ask_before_destroy(always=False)
        return made

    async with disk().yard as yard:
        job = (await Conversation(yard).call("run_tool", {"tool_id": "outer", "background": True})).data
        await started.wait()
    second = disk()
    async with second.yard as yard:
        result = (await yard.call("wait_job", {"job_id": job["job_id"]})).data

    assert (result["result"]["data"]["status"], second.wiped) == (HELD, 0)


async def test_a_mounted_yard_does_not_ask_a_second_time_and_leads_around_nothing() -> None:
    yards: list[Yard] = []

    @tool(operation="command")
    async def detour() -> Any:
        """Call the outer yard from inside the mounted one."""
        return (await yards[0].call("wipe")).data

    mounted = Disk(limits=QUICK)
    mounted.yard.ask_before_destroy(always=False)
    inner = Yard("inner", tools=[detour], providers=[mounted.yard])
    async with Yard("outer", providers=[inner], limits=QUICK) as outer:
        yards.append(outer)
        conversation = Conversation(outer)
        around = await conversation.call("detour")
        held = await conversation.call("wipe")
        assert outer.gate is not None
        await outer.gate.approvals.decide(held.data["approval_id"], "approve", by="user:test")
        done = await conversation.call("wipe")

    assert (around.data["status"], held.data["status"], done.data, mounted.wiped) == (HELD, HELD, "wiped", 1)
