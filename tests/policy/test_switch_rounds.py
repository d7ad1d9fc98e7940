"""Disabling and enabling again and again under 50 calls a second: no call is answered wrongly, and nothing is left.

`make test` runs a tenth: 10 rounds. `make soak` runs all: 100.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from callyard import Call, Caller, Envelope, Limits, SqliteStore, Yard, tool
from callyard.policy.approvals import Approvals
from callyard.policy.settings import Rule
from callyard.policy.switches import StoredSwitches
from callyard.testing import FakeProvider

ROUNDS = int(os.environ.get("ROUNDS", "10"))
PAUSE_S = 0.02
"""Between two calls: 50 a second."""
OPERATOR = "user:op"
TARGETS = ("pack", "pack_*", "pack")
NESTED = {"steps": [{"tool_id": "other"}, {"tool_id": "pack_add", "args": {"a": 1}}]}
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pack_add", {"a": 1}),
    ("other", {}),
    ("plus", {"a": 1}),
    ("run_tool", {"tool_id": "pack_add", "args": {"a": 1}}),
    ("pack_start", {}),
    ("run_chain", NESTED),
    ("pack_wait", {}),
    ("pack_burn", {"name": "x"}),
)


def pack_of(processes: list[asyncio.subprocess.Process], ran: list[str]) -> list[Any]:
    """Return tools of which one starts a process that its session ends, and one needs an approval."""

    @tool(operation="query", aliases=("plus",))
    async def pack_add(a: int) -> int:
        """Add one."""
        return a + 1

    @tool(operation="command")
    async def pack_wait() -> str:
        """Take a moment."""
        await asyncio.sleep(3 * PAUSE_S)  # so that calls run while it is disabled
        return "waited"

    @tool(operation="command")
    async def pack_start(call: Call) -> str:
        """Start a program that runs until its session ends."""
        session = call.start_session(kind="program")
        process = await asyncio.create_subprocess_exec("sleep", "1000")
        processes.append(process)

        async def end() -> None:
            process.kill()
            await process.wait()

        session.on_end(end)
        return session.id

    @tool(operation="destroy")
    async def pack_burn(name: str) -> str:
        """Burn something."""
        ran.append(name)
        return name

    return [pack_add, pack_wait, pack_start, pack_burn]


@tool(operation="query")
async def other() -> int:
    """Return one."""
    return 1


class Load:
    """Calls at a steady pace, each compared with what was disabled when it began and when it ended."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.is_off: bool | None = False
        """Whether the pack is disabled; None while that changes."""
        self.changes = 0
        self.counts = Counter[str]()
        self.wrong: list[tuple[str, bool | None, object]] = []
        self.is_over = asyncio.Event()

    async def run(self) -> None:
        """Call until it is over."""
        number = 0
        async with asyncio.TaskGroup() as calls:
            while not self.is_over.is_set():
                name, arguments = CALLS[number % len(CALLS)]
                calls.create_task(self._call(name, arguments, Caller(identity=f"caller{number}")))
                number += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await self.is_over.wait()

    async def _call(self, name: str, arguments: dict[str, Any], caller: Caller) -> None:
        was_off, changes = self.is_off, self.changes
        answer = await self.yard.call(name, arguments, caller=caller)
        state = was_off if changes == self.changes else None
        code = _inner_code(answer)
        self.counts[f"{name} {code}"] += 1
        if name == "other":
            allowed = {"ok"}
        elif was_off:
            allowed = {"disabled"}  # what began then has found nothing, whatever came later
        elif state is False:
            allowed = {"ok"}
        else:
            allowed = {"ok", "disabled"}
        if code not in allowed:
            self.wrong.append((name, state, answer))

    def change(self, *, is_off: bool | None) -> None:
        """Note whether the pack is disabled from now on."""
        self.is_off = is_off
        self.changes += 1


def _inner_code(answer: Envelope) -> str:
    """Return 'ok', 'disabled', or any other code: a chain names the cause of its failure."""
    error = answer.error
    if error is None:
        return "ok"
    if error.details.get("reason") == "disabled" or error.details.get("cause_code") == "tool_not_found":
        return "disabled"
    if "issues" in error.details and "disabled" in str(error):  # a chain that was refused before its first step
        return "disabled"
    return error.code


async def test_rounds_under_load_answer_no_call_wrongly_and_leave_nothing(
    tmp_path: Path, until: Callable[[Callable[[], object]], Any]
) -> None:
    processes, ran = list[asyncio.subprocess.Process](), list[str]()
    elsewhere = StoredSwitches(SqliteStore(tmp_path / "store"))
    limits = Limits(approval_hold_s=0.05, sessions=10_000, approval_ttl_s=3600)
    yard = Yard(
        "own",
        tools=[other],
        providers=[FakeProvider("pack", pack_of(processes, ran))],
        store=SqliteStore(tmp_path / "store"),
        rules=[Rule(decision="ask", tools=("pack_burn",))],
        limits=limits,
    )
    async with yard:
        load = Load(yard)
        calling = asyncio.ensure_future(load.run())
        for number in range(ROUNDS):
            target = TARGETS[number % len(TARGETS)]
            switches = elsewhere if number % 2 else yard.switches  # as a command does, or a button of this server
            begun = sum(load.counts.values())
            await until(lambda begun=begun: sum(load.counts.values()) >= begun + len(CALLS))
            load.change(is_off=None)
            await switches.disable(target, by=OPERATOR)
            await until(lambda: yard.registry.resolve("pack_add") is None)
            load.change(is_off=True)
            begun = sum(load.counts.values())
            await until(lambda begun=begun: sum(load.counts.values()) >= begun + len(CALLS))
            if target == "pack":
                await until(lambda: not len(yard.sessions))
                await until(lambda: all(process.returncode is not None for process in processes))
            load.change(is_off=None)
            await switches.enable(target, by=OPERATOR)
            await until(lambda: yard.registry.resolve("pack_add") is not None)
            load.change(is_off=False)
        load.change(is_off=None)
        await yard.switches.disable("pack", by=OPERATOR)
        load.is_over.set()
        await calling
        await until(lambda: not len(yard.sessions))
        pending = await Approvals(yard.store).pending()
        left = yard.calls_in_flight, len(yard.sessions), pending
    alive = [process.pid for process in processes if process.returncode is None]

    print(f"rounds {ROUNDS}, {dict(load.counts)}")  # noqa: T201 - the result of a long run
    assert load.wrong == []
    assert left == (0, 0, [])
    assert alive == []
    assert ran == []
    assert load.counts["pack_add ok"]
    assert load.counts["pack_add disabled"]
